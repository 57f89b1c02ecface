"""Arguments of the commands that query a cluster. Imports are kept light, because `dra --help` loads this module."""

from __future__ import annotations

import argparse
from pathlib import Path

from dra_devkit.commands.command_args import RELEASES
from dra_kubeletplugin.cli.command_args import DRIVER
from dra_kubeletplugin.cli.shell.options import add_repeated, add_settings
from dra_kubeletplugin.cli.shell.output import add_output
from dra_kubeletplugin.cli.shell.parsing import Group, Parser, command


@command(
    "explain",
    "explain why a pod or a claim waits, and which change would be enough",
    "explain:explain_command",
    group=Group.CLUSTER,
    example="dra explain pod/train-0 -n team-a",
)
def add_explain(explain: Parser) -> None:
    explain.description = (
        "Explains why a pod or a claim waits, for each node and device, and which change would be enough; or shows its devices. "
        "Works with any cluster and driver, and only reads."
    )
    explain.epilog = (
        "Exit code: 0 the pod runs, has ended, is scheduled or would fit now; 1 the pod waits; 2 the question cannot be answered; "
        "3 something that decides the result was not read or evaluated, or a timeout."
    )
    text = (
        "pod or claim; NAME without pod/ or claim/ is a pod; by default, all pods with devices that have not started, in the namespace "
        "of -n, or in all namespaces"
    )
    explain.add_argument("what", metavar="pod/NAME|claim/NAME", nargs="?", help=text)
    _add_cluster(explain)
    text = "file or folder with the output of `kubectl get ... -o yaml`, used instead of a cluster; may be repeated"
    add_repeated(explain, "-f", "--file", metavar="FILE", dest="files", type=Path, help=text)
    _add_release(explain, "the objects of -f")
    add_output(explain)


@command(
    "simulate",
    "find out whether and where pods would fit, and how many more",
    "simulate:simulate_command",
    group=Group.CLUSTER,
    example="dra simulate -f deployment.yaml --host nvlink-server=4 --driver acme.py",
)
def add_simulate(simulate: Parser) -> None:
    simulate.description = (
        "Finds out whether and where the pods of manifests would fit, how many more would fit, and why the others do not. It uses the "
        "current nodes and slices of a cluster, or described hosts with the slices that a driver would publish there. It writes nothing."
    )
    simulate.epilog = (
        "Exit code: 0 all fit; 1 some do not; 2 the simulation is not possible, or no release accepts a manifest; 3 all that were "
        "counted fit, and the result names objects or parts that were not read or evaluated; or a pool to export is incomplete."
    )
    text = (
        "manifest, or folder of manifests: pods and objects of any kind with a pod template, with their claims, templates and classes; "
        "may be repeated"
    )
    add_repeated(simulate, "-f", "--file", metavar="FILE", dest="files", type=Path, help=text)
    _add_cluster(simulate)
    text = (
        "described host (a YAML file, or the name of a description in the package) and number of such nodes, used instead of a "
        "cluster; "
        "may be repeated"
    )
    add_repeated(simulate, "--host", metavar="HOST=NUMBER", dest="hosts", help=text)
    text = (
        "driver of the described hosts: a Python file, a package's folder, or module:Class; its folder deploy/ contains the "
        "DeviceClasses"
    )
    add_repeated(simulate, "--driver", metavar="DRIVER", dest="drivers", help=text)
    text = "allocatable resources of a described host, such as cpu=64,memory=512Gi"
    simulate.add_argument("--allocatable", metavar="NAME=QUANTITY,...", help=text)
    _add_release(simulate, "manifests on described hosts")
    simulate.add_argument(
        "--fill", action="store_true", help="also count how many more pods of each workload would fit"
    )
    text = (
        "print the slices of a template node, with which an autoscaler starts the first node of a group, and place no pods: of the node "
        "--node of a cluster, or of one described host; YAML by default"
    )
    simulate.add_argument("--export-slices", action="store_true", help=text)
    simulate.add_argument(
        "--node", metavar="NAME", default="", help="node of the cluster whose slices --export-slices prints"
    )
    add_output(simulate)


@command(
    "top",
    "show devices, their holders and waiting pods, live",
    "top:top",
    group=Group.CLUSTER,
    example="dra top --node worker-1",
)
def add_top(top: Parser) -> None:
    top.description = (
        "Shows devices by node, PCIe root, NUMA node and partition, with their holders and health, and why pods wait: live, until q. "
        "Works with any cluster and driver, and only reads, except with --pool-status. ? shows the keys."
    )
    top.epilog = (
        "Exit code of a table: 0 all objects of the kinds that it shows were read and evaluated; 2 there is no table, or no such node "
        "or namespace; 3 notes name the objects that were not read or evaluated."
    )
    top.add_argument("--node", metavar="NAME", default="", help="name of a node; by default all nodes")
    text = (
        "show only devices whose names, holders, taints, health or attributes contain all these words; "
        "!word hides devices that contain the word"
    )
    top.add_argument("--filter", metavar="WORDS", default="", help=text)
    top.add_argument(
        "--once",
        action="store_true",
        help="print a table once and exit; -o json, -o yaml, -f and --pool-status also print once",
    )
    text = (
        "also show what the control plane counts in each pool: creates a ResourcePoolStatusRequest for each driver, and deletes it; "
        "prints once"
    )
    top.add_argument("--pool-status", action="store_true", help=text)
    text = (
        "file or folder with the output of `kubectl get ... -o yaml`, used instead of a cluster; prints a table once and exits; "
        "may be repeated"
    )
    add_repeated(top, "-f", "--file", metavar="FILE", dest="files", type=Path, help=text)
    _add_release(top, "the objects of -f")
    _add_cluster(top, "namespace of the waiting pods to show; by default all namespaces")
    add_output(top)


def _add_release(parser: Parser, objects: str) -> None:
    text = f"release of Kubernetes whose rules apply to {objects}: {RELEASES}; a cluster reports its own"
    parser.add_argument("--kubernetes", metavar="RELEASE", default="", help=text)


def _add_cluster(
    parser: Parser, namespace: str = "namespace; by default the namespace of the context, or default"
) -> None:
    """Adds the options that select the cluster."""
    text = "path of a kubeconfig (KUBECONFIG, or ~/.kube/config); in a pod without a kubeconfig, the pod's service account is used"
    parser.add_argument("--kubeconfig", metavar="FILE", help=text)
    text = "context of the kubeconfig; by default its current context"
    parser.add_argument("--context", metavar="NAME", default="", help=text)
    parser.add_argument("-n", "--namespace", metavar="NAME", help=namespace)


@command(
    "doctor",
    "check this node, its drivers and the cluster",
    "doctor:doctor",
    group=Group.CLUSTER,
    example="dra doctor --driver-name gpu.example.com",
)
def add_doctor(doctor: Parser) -> None:
    doctor.description = (
        "Checks the kernel, kubelet, runtime, CDI, drivers of any vendor, API server, slices and records, and changes nothing. "
        "Exit code 1 if a check failed, 3 if no check failed and a check could not decide."
    )
    _add_examination(doctor)


@command(
    "gather",
    "pack the findings of `dra doctor`, objects and logs into one file without secrets",
    "doctor:gathered",
    group=Group.CLUSTER,
    example="dra gather support.tar.gz",
)
def add_gather(gather: Parser) -> None:
    gather.description = (
        "Packs findings, objects of resource.k8s.io, pods with claims, logs of drivers, CDI specs and records into a tar.gz. "
        "It reads no Secrets, and removes values of environment variables and texts that look like a secret."
    )
    gather.add_argument("file", metavar="FILE", nargs="?", help="archive to create; by default dra-DATE.tar.gz")
    _add_examination(gather)


def _add_examination(command: Parser) -> None:
    add_output(command)
    text = "check this machine too; by default, if NODE_NAME is set or the machine has a kubelet's folder"
    command.add_argument("--host", action=argparse.BooleanOptionalAction, default=None, help=text)
    text = "folder where the host's root file system is mounted; by default HOST_ROOT, else /"
    command.add_argument("--host-root", metavar="DIR", type=Path, help=text)
    text = DRIVER + "; its devices are compared with its slices; may be repeated"
    add_repeated(command, "--driver", metavar="DRIVER", dest="drivers", help=text)
    text = "role whose permissions this account must have; in a plugin's pod, use plugin"
    command.add_argument("--permissions", choices=("reader", "plugin"), help=text)
    add_settings(
        command,
        only=(
            "driver_name",
            "node_name",
            "kubeconfig",
            "service_account",
            "kubelet_root",
            "cdi_root",
            "sysfs_root",
            "dev_root",
            "proc_root",
            "api_timeout",
            "discovery_timeout",
            "start_timeout",
            "list_attributes",
        ),
    )
