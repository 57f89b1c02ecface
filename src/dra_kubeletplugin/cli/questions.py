"""Options of the commands that ask a cluster. Nothing here is imported that a node's plugin would pay for."""

from __future__ import annotations

import argparse
from pathlib import Path

_CODES = (
    "Exit code: 0 it runs, is scheduled or would fit now; 1 it waits; 2 the question cannot be answered; 3 what may not be read "
    "decides it."
)


def add_explain(explain: argparse.ArgumentParser) -> None:
    explain.description = (
        "Says why a pod or a claim waits, node by node and device by device, and what would have to change; or which devices it has. "
        "Any cluster, any driver; reads only."
    )
    explain.epilog = _CODES
    explain.add_argument("what", metavar="pod/NAME|claim/NAME", help="a name alone is a pod's")
    add_cluster(explain)
    explain.add_argument(
        "-f", "--file", metavar="FILE", dest="files", action="append", type=Path, default=[],
        help="ask these objects in place of a cluster: `kubectl get ... -o yaml`, a file or a folder; may be repeated",
    )  # fmt: skip
    add_output(explain)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Options that say which cluster."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="as kubectl has it (KUBECONFIG; ~/.kube/config); in a pod without one, its service account",
    )
    parser.add_argument("--context", metavar="NAME", default="", help="context of the kubeconfig; its current one")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="namespace; that of the context, or default")


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text")
