"""Command line of the verbs of ``dra dev``. Imports are kept light, because every command loads this module."""

from __future__ import annotations

import argparse
import math

from .shell.output import add_output
from .shell.parsing import Parser

VERBS = {
    "status": "nodes, drivers, folders, and the faults that are on",
    "page": "print a new link to the page that shows the cluster",
    "plug": "plug a PCI function into a described host",
    "unplug": "take a PCI function out of a described host",
    "write": "write to a file of a described host's sysfs, with the kernel's effect",
    "health": "say how a device is, in place of what the driver reports",
    "restart-kubelet": "end a node's kubelet and start it again",
    "reboot": "reboot a node: containers and drivers end, CDI files and boot id go",
    "kill": "kill a driver (SIGKILL); it is started again",
    "upgrade": "start a new instance of a driver beside the old one, then end that",
    "cut-watch": "cut all connections to the API server",
    "drop-fields": "have the API server drop fields of slices, as with a feature gate off",
    "serve": "have the API server serve these versions of resource.k8s.io only",
    "conflict": "refuse the next updates with a conflict",
    "throttle": "refuse the next requests with 429",
    "slow": "answer each request after some seconds",
    "away": "let the API server answer nothing useful for some seconds",
    "end": "end a simulated container",
    "stop": "end the cluster",
}


def parser(prog: str = "dra dev") -> Parser:
    out = Parser(prog=prog, description="Says what happens to a running `dra dev`.")
    commands = out.add_subparsers(dest="verb", metavar="VERB", required=True)
    made: dict[str, Parser] = {}
    for name, help in VERBS.items():
        made[name] = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made[name].add_argument("--state-dir", metavar="DIR", help="state folder of the `dra dev` that is meant")
        add_output(made[name])
    for name in ("plug", "unplug", "write", "health", "restart-kubelet", "reboot", "kill", "upgrade"):
        made[name].add_argument("--node", metavar="NAME", default="", help="which node; needed where there are several")
    for name in ("health", "kill", "upgrade"):
        made[name].add_argument(
            "--driver", metavar="NAME", default="", help="which driver; needed where there are several"
        )
    made["plug"].add_argument(
        "function",
        metavar="ADDRESS|FILE",
        help="a function that was unplugged, or a YAML file that describes one (- for stdin)",
    )
    made["unplug"].add_argument("address", metavar="ADDRESS", help="for example 0000:17:00.0")
    made["write"].add_argument(
        "path", metavar="PATH", help="below sysfs, for example bus/pci/devices/0000:17:00.0/label"
    )
    made["write"].add_argument("text", metavar="TEXT")
    made["health"].add_argument("device", metavar="DEVICE", help="its name in the driver's slices")
    made["health"].add_argument("health", choices=("healthy", "unhealthy", "unknown", "reported"))
    made["health"].add_argument("--message", default="", help="why, as it shows in the pod's status")
    made["health"].add_argument(
        "--effect", choices=("None", "NoSchedule", "NoExecute"), default="", help="of the taint"
    )
    made["restart-kubelet"].add_argument(
        "--down-for",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="seconds until the kubelet is started again (0)",
    )
    made["kill"].add_argument(
        "--down-for",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="seconds until the driver is started again (1)",
    )
    made["drop-fields"].add_argument(
        "fields", metavar="FIELD", nargs="*", help="for example taints; none: keep all again"
    )
    made["serve"].add_argument("versions", metavar="VERSION", nargs="*", help="for example v1beta2; none: all again")
    for name in ("conflict", "throttle"):
        made[name].add_argument("count", metavar="COUNT", nargs="?", type=int, default=1)
    for name in ("slow", "away"):
        made[name].add_argument("seconds", metavar="SECONDS", type=_seconds)
    made["end"].add_argument("pod", metavar="POD")
    made["end"].add_argument("-n", "--namespace", default="default")
    made["end"].add_argument("-c", "--container", default="", help="the first when left out")
    made["end"].add_argument("--exit-code", type=int, default=0)
    return out


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return found
