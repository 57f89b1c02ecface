"""Options of the commands that query a cluster. Imports are kept light, because a node's plugin loads this module."""

from __future__ import annotations

import argparse
from pathlib import Path

from .shell.output import add_output

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
    explain.add_argument(
        "what",
        metavar="pod/NAME|claim/NAME",
        nargs="?",
        help="a name alone is a pod's; when left out, all pods that wait for devices",
    )
    add_cluster(explain)
    explain.add_argument(
        "-f", "--file", metavar="FILE", dest="files", action="append", type=Path, default=[],
        help="ask these objects in place of a cluster: `kubectl get ... -o yaml`, a file or a folder; may be repeated",
    )  # fmt: skip
    add_output(explain)


def add_simulate(simulate: argparse.ArgumentParser) -> None:
    simulate.description = (
        "Says whether and where the pods of manifests would fit, how many more would, and what stops the rest: on the nodes and slices of "
        "a cluster as they are now, or on described hosts with what a driver's own code would publish there. Nothing is written."
    )
    simulate.epilog = "Exit code: 0 all fit; 1 some do not; 2 the question cannot be answered."
    simulate.add_argument(
        "-f", "--file", metavar="FILE", dest="files", action="append", type=Path, required=True,
        help="manifests: a file or a folder; pods and workloads, with their claims, templates and classes; may be repeated",
    )  # fmt: skip
    add_cluster(simulate)
    simulate.add_argument(
        "--host", metavar="HOST=NUMBER", dest="hosts", action="append", default=[],
        help="in place of a cluster: so many nodes of a described host (a YAML file, or the name of one that comes with the package); "
        "may be repeated",
    )  # fmt: skip
    simulate.add_argument(
        "--driver", metavar="DRIVER", dest="drivers", action="append", default=[],
        help="whose devices the hosts have: a file, a package's folder, or module:Class; its deploy/ brings DeviceClasses; may be repeated",
    )  # fmt: skip
    simulate.add_argument(
        "--allocatable", metavar="NAME=QUANTITY,...", help="what a described host has: cpu=64,memory=512Gi"
    )
    simulate.add_argument(
        "--fill", action="store_true", help="also count how many more pods of each workload would fit"
    )
    add_output(simulate)


def add_top(top: argparse.ArgumentParser) -> None:
    top.description = (
        "Shows devices by node, PCIe root, NUMA node and partition, who has them, how they are, and which pods wait and why: live, "
        "until q. Any cluster, any driver; reads only. ? shows the keys."
    )
    top.add_argument("--node", metavar="NAME", default="", help="the devices of this node; of all nodes when left out")
    top.add_argument("--filter", metavar="WORDS", default="", help="devices with all these words; !word: without it")
    top.add_argument("--once", action="store_true", help="print a table and end; so does -o json")
    add_cluster(top)
    add_output(top)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the cluster."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="as kubectl has it (KUBECONFIG; ~/.kube/config); in a pod without one, its service account",
    )
    parser.add_argument("--context", metavar="NAME", default="", help="context of the kubeconfig; its current one")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="namespace; that of the context, or default")
