"""``dra dev VERB``: what happens to a cluster that ``dra dev`` runs in another shell, said over its control socket."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import DraError, SettingsError
from ..local.cluster import state_root
from ..local.dev import control
from ..local.dev.verbs import AnyVerb
from .options import Parser

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
    made: dict[str, argparse.ArgumentParser] = {}
    for name, help in VERBS.items():
        made[name] = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made[name].add_argument("--state", metavar="DIR", help="state folder of the `dra dev` that is meant")
        made[name].add_argument("-o", "--output", choices=("text", "json"), default="text")
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
    made["restart-kubelet"].add_argument("--down", type=_seconds, default=0.0, metavar="SECONDS")
    made["kill"].add_argument(
        "--down", type=_seconds, default=1.0, metavar="SECONDS", help="until it is started again (1)"
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


def main(argv: Sequence[str]) -> int:
    """``argv`` begins with the verb. Answers the exit code: 0, or 2 for what the user has to correct."""
    args = parser().parse_args(argv)
    try:
        answer = control.ask(_state(args.state), _verb(args))
    except control.ControlError as e:
        if args.output == "json":
            print(json.dumps({"error": str(e)}))
        else:
            print(f"dra dev {args.verb}: {e}", file=sys.stderr)
        return 2
    except DraError as e:
        from . import report  # the command line imports this module when it is needed

        return report(e)
    print(json.dumps(answer.data, indent=2) if args.output == "json" else answer.text)
    return 0


def _verb(args: argparse.Namespace) -> AnyVerb:
    given = {k: v for k, v in vars(args).items() if k not in {"state", "output"}}
    if args.verb == "plug":
        given["function"] = _function(args.function)
    try:
        found: AnyVerb = msgspec.convert(given, type=AnyVerb)
    except msgspec.ValidationError as e:
        raise control.ControlError(str(e)) from None
    return found


def _function(text: str) -> str:
    """An address as it is, or what a file describes."""
    if text == "-":
        return sys.stdin.read()
    if Path(text).is_file():
        return Path(text).read_text(errors="replace")
    if "/" in text or text.endswith((".yaml", ".yml")):
        raise control.ControlError(f"{text} is not a file")
    return text


def _state(given: str | None) -> Path:
    """The state folder of the cluster that is meant. Raises :class:`SettingsError` where that cannot be told."""
    if given:
        return Path(given)
    for config in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        if config and (Path(config).parent / control.NAME).is_socket():
            return Path(config).parent
    found = control.running(state_root())
    if len(found) == 1:
        return found[0]
    if not found:
        raise SettingsError(
            "no `dra dev` of yours runs on this machine; if it was started with --state DIR, give that here too"
        )
    listed = ", ".join(map(str, found))
    raise SettingsError(f"{len(found)} clusters run: say which with --state, or by its KUBECONFIG: {listed}")


__all__ = ["VERBS", "main", "parser"]
