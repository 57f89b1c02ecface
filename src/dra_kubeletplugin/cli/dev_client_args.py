"""Command line of the verbs of ``dra dev``. Imports are kept light, because every command loads this module."""

from __future__ import annotations

import argparse
import math

from .shell.output import add_output
from .shell.parsing import Parser

VERBS = {
    "status": "show nodes, drivers, folders, and the injected faults",
    "print-link": "print a new link to the cluster's status page",
    "plug-function": "plug a PCI function into a described host",
    "unplug-function": "remove a PCI function from a described host",
    "write-sysfs": "write to a sysfs file of a described host, which has the same effect as in the kernel",
    "set-health": "set the health of a device, instead of the driver's reports",
    "restart-kubelet": "stop a node's kubelet and start it again",
    "reboot-node": "reboot a node: containers and drivers end, CDI specs are lost, and the boot id changes",
    "kill-driver": "kill a driver (SIGKILL); it is started again",
    "upgrade-driver": "start a new instance of a driver, then stop the old one",
    "cut-connections": "cut all connections to the API server",
    "drop-fields": "make the API server drop fields of slices, as with a feature gate off",
    "serve-versions": "make the API server serve only these versions of resource.k8s.io",
    "api-conflicts": "make the API server reject the next updates with a conflict",
    "api-throttling": "make the API server reject the next requests with 429",
    "api-delay": "make the API server delay each response",
    "api-outage": "make the API server unavailable for some seconds",
    "exit-container": "stop a simulated container",
    "stop": "stop the cluster",
}


def parser(prog: str = "dra dev") -> Parser:
    out = Parser(prog=prog, description="Changes a running `dra dev`, or shows its state.")
    commands = out.add_subparsers(dest="verb", metavar="VERB", required=True)
    made: dict[str, Parser] = {}
    for name, help in VERBS.items():
        made[name] = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made[name].add_argument("--state-dir", metavar="DIR", help="state folder of the running `dra dev`")
        add_output(made[name])
    for name in (
        "plug-function",
        "unplug-function",
        "write-sysfs",
        "set-health",
        "restart-kubelet",
        "reboot-node",
        "kill-driver",
        "upgrade-driver",
    ):
        made[name].add_argument(
            "--node", metavar="NAME", default="", help="name of the node; needed if there are several"
        )
    for name in ("set-health", "kill-driver", "upgrade-driver"):
        made[name].add_argument(
            "--driver", metavar="NAME", default="", help="name of the driver; needed if there are several"
        )
    made["plug-function"].add_argument(
        "function",
        metavar="ADDRESS|FILE",
        help="address of an unplugged function, or a YAML file that describes one (- for standard input)",
    )
    made["unplug-function"].add_argument("address", metavar="ADDRESS", help="PCI address, such as 0000:17:00.0")
    made["write-sysfs"].add_argument(
        "path", metavar="PATH", help="path below sysfs, such as bus/pci/devices/0000:17:00.0/label"
    )
    made["write-sysfs"].add_argument("text", metavar="TEXT", help="content to write")
    made["set-health"].add_argument("device", metavar="DEVICE", help="name of the device in the driver's slices")
    made["set-health"].add_argument(
        "health",
        choices=("healthy", "unhealthy", "unknown", "reported"),
        help="new health; reported: as the driver reports it",
    )
    made["set-health"].add_argument("--message", default="", help="reason, which the pod's status shows")
    made["set-health"].add_argument(
        "--effect", choices=("None", "NoSchedule", "NoExecute"), default="", help="effect of the device's taint"
    )
    made["restart-kubelet"].add_argument(
        "--down-for", type=_seconds, default=0.0, metavar="SECONDS", help="time until it starts again (0)"
    )
    made["kill-driver"].add_argument(
        "--down-for", type=_seconds, default=1.0, metavar="SECONDS", help="time until it starts again (1)"
    )
    made["drop-fields"].add_argument(
        "fields",
        metavar="FIELD",
        nargs="*",
        help="names of fields, such as taints; without a FIELD, no field is dropped any more",
    )
    made["serve-versions"].add_argument(
        "versions",
        metavar="VERSION",
        nargs="*",
        help="versions, such as v1beta2; without a VERSION, all versions are served again",
    )
    for name in ("api-conflicts", "api-throttling"):
        made[name].add_argument("count", metavar="COUNT", nargs="?", type=int, default=1, help="number of requests (1)")
    for name in ("api-delay", "api-outage"):
        made[name].add_argument("seconds", metavar="SECONDS", type=_seconds, help="number of seconds")
    made["exit-container"].add_argument("pod", metavar="POD", help="name of the pod")
    made["exit-container"].add_argument("-n", "--namespace", default="default", help="namespace of the pod (default)")
    made["exit-container"].add_argument(
        "-c", "--container", default="", help="name of the container; by default the first"
    )
    made["exit-container"].add_argument("--exit-code", type=int, default=0, help="exit code of the container (0)")
    return out


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found
