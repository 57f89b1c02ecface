"""Command line of the verbs of ``dra dev``. Imports are kept light, because every command loads this module."""

from __future__ import annotations

import argparse
import math

from .shell.output import add_output
from .shell.parsing import Parser

VERBS = {
    "status": "show nodes, drivers, folders, and active faults",
    "print-link": "print a new link to the page that shows the cluster",
    "plug-function": "plug a PCI function into a described host",
    "unplug-function": "remove a PCI function from a described host",
    "write-sysfs": "write to a file of a described host's sysfs, with the kernel's effect",
    "set-health": "set the health of a device, in place of what the driver reports",
    "restart-kubelet": "stop a node's kubelet and start it again",
    "reboot-node": "reboot a node: containers and drivers end, CDI files are deleted, the boot id changes",
    "kill-driver": "kill a driver (SIGKILL); it is started again",
    "upgrade-driver": "start a new instance of a driver, then stop the old one",
    "cut-connections": "cut all connections to the API server",
    "drop-fields": "make the API server drop fields of slices, as with a disabled feature gate",
    "serve-versions": "make the API server serve only these versions of resource.k8s.io",
    "api-conflicts": "make the API server reject the next updates with a conflict (409)",
    "api-throttling": "make the API server reject the next requests with 429",
    "api-delay": "delay each response by some seconds; 0 ends the delay",
    "api-outage": "make the API server unavailable for some seconds",
    "exit-container": "end a simulated container, as if its process had exited",
    "stop": "stop the cluster",
}


def parser(prog: str = "dra dev") -> Parser:
    out = Parser(prog=prog, description="Says what happens to a running `dra dev`.")
    commands = out.add_subparsers(dest="verb", metavar="VERB", required=True)
    made: dict[str, Parser] = {}
    for name, help in VERBS.items():
        made[name] = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made[name].add_argument("--state-dir", metavar="DIR", help="state folder of the `dra dev` that is meant")
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
        made[name].add_argument("--node", metavar="NAME", default="", help="which node; needed where there are several")
    for name in ("set-health", "kill-driver", "upgrade-driver"):
        made[name].add_argument(
            "--driver", metavar="NAME", default="", help="which driver; needed where there are several"
        )
    made["plug-function"].add_argument(
        "function",
        metavar="ADDRESS|FILE",
        help="a function that was unplugged, or a YAML file that describes one (- for stdin)",
    )
    made["unplug-function"].add_argument("address", metavar="ADDRESS", help="for example 0000:17:00.0")
    made["write-sysfs"].add_argument(
        "path", metavar="PATH", help="below sysfs, for example bus/pci/devices/0000:17:00.0/label"
    )
    made["write-sysfs"].add_argument("text", metavar="TEXT")
    made["set-health"].add_argument("device", metavar="DEVICE", help="its name in the driver's slices")
    made["set-health"].add_argument("health", choices=("healthy", "unhealthy", "unknown", "reported"))
    made["set-health"].add_argument("--message", default="", help="why, as it shows in the pod's status")
    made["set-health"].add_argument(
        "--effect", choices=("None", "NoSchedule", "NoExecute"), default="", help="of the taint"
    )
    made["restart-kubelet"].add_argument(
        "--down-for",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="seconds until the kubelet is started again (0)",
    )
    made["kill-driver"].add_argument(
        "--down-for",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="seconds until the driver is started again (1)",
    )
    made["drop-fields"].add_argument(
        "fields", metavar="FIELD", nargs="*", help="for example taints; none: keep all again"
    )
    made["serve-versions"].add_argument(
        "versions", metavar="VERSION", nargs="*", help="for example v1beta2; none: all again"
    )
    for name in ("api-conflicts", "api-throttling"):
        made[name].add_argument("count", metavar="COUNT", nargs="?", type=int, default=1)
    for name in ("api-delay", "api-outage"):
        made[name].add_argument("seconds", metavar="SECONDS", type=_seconds)
    made["exit-container"].add_argument("pod", metavar="POD")
    made["exit-container"].add_argument("-n", "--namespace", default="default")
    made["exit-container"].add_argument("-c", "--container", default="", help="the first when left out")
    made["exit-container"].add_argument("--exit-code", type=int, default=0)
    return out


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return found
