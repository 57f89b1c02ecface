"""Options of the commands that query a cluster. Imports are kept light, because a node's plugin loads this module."""

from __future__ import annotations

import argparse
from pathlib import Path

from .shell.output import add_output

_CODES = (
    "Exit code: 0 the pod runs, is scheduled or would fit now; 1 the pod waits; 2 the question cannot be answered; 3 the result depends on "
    "objects that may not be read."
)


def add_explain(explain: argparse.ArgumentParser) -> None:
    explain.description = (
        "Explains why a pod or a claim waits, for each node and device, and which change would be enough; or shows its devices. "
        "Works with any cluster and driver, and only reads."
    )
    explain.epilog = _CODES
    explain.add_argument(
        "what",
        metavar="pod/NAME|claim/NAME",
        nargs="?",
        help="pod or claim; a name alone is the name of a pod; by default all pods that wait for devices",
    )
    add_cluster(explain)
    explain.add_argument(
        "-f", "--file", metavar="FILE", dest="files", action="append", type=Path, default=[],
        help="file or folder with the output of `kubectl get ... -o yaml`, used instead of a cluster; may be repeated",
    )  # fmt: skip
    add_output(explain)


def add_simulate(simulate: argparse.ArgumentParser) -> None:
    simulate.description = (
        "Finds out whether and where the pods of manifests would fit, how many more would fit, and why the others do not. It uses the "
        "current nodes and slices of a cluster, or described hosts with the slices that a driver would publish there. It writes nothing."
    )
    simulate.epilog = "Exit code: 0 all fit; 1 some do not; 2 the question cannot be answered."
    simulate.add_argument(
        "-f", "--file", metavar="FILE", dest="files", action="append", type=Path, required=True,
        help="manifest, or folder of manifests: pods and workloads, with their claims, templates and classes; may be repeated",
    )  # fmt: skip
    add_cluster(simulate)
    simulate.add_argument(
        "--host", metavar="HOST=NUMBER", dest="hosts", action="append", default=[],
        help="described host (a YAML file, or the name of one in the package) and number of such nodes, used instead of a cluster; "
        "may be repeated",
    )  # fmt: skip
    simulate.add_argument(
        "--driver", metavar="DRIVER", dest="drivers", action="append", default=[],
        help="driver of the described hosts: a Python file, a package's folder, or module:Class; its deploy/ has the DeviceClasses",
    )  # fmt: skip
    simulate.add_argument(
        "--allocatable",
        metavar="NAME=QUANTITY,...",
        help="allocatable resources of a described host, such as cpu=64,memory=512Gi",
    )
    simulate.add_argument(
        "--fill", action="store_true", help="also count how many more pods of each workload would fit"
    )
    add_output(simulate)


def add_top(top: argparse.ArgumentParser) -> None:
    top.description = (
        "Shows devices by node, PCIe root, NUMA node and partition, with their holders and health, and why pods wait: live, until q. "
        "Works with any cluster and driver, and only reads. ? shows the keys."
    )
    top.add_argument("--node", metavar="NAME", default="", help="name of a node; by default all nodes")
    top.add_argument(
        "--filter",
        metavar="WORDS",
        default="",
        help="words that a device must contain; !word: a word that it must not contain",
    )
    top.add_argument("--once", action="store_true", help="print a table once and exit, as -o json does")
    add_cluster(top)
    add_output(top)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the cluster."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="path of a kubeconfig (KUBECONFIG, or ~/.kube/config); in a pod without one, its service account is used",
    )
    parser.add_argument(
        "--context", metavar="NAME", default="", help="context of the kubeconfig; by default its current context"
    )
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="namespace; by default the namespace of the context, or default"
    )
