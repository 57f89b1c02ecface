"""One command, ``dra``: run a driver, develop with it, look at its records."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..driver import Driver
from ..errors import DraError, SettingsError
from ..settings import NODE_ONLY, ControllerSettings
from .options import Parser, add_settings, given

HOST = "a described host in place of this machine: a YAML file, or the name of one that comes with the package"


def parser() -> Parser:
    out = Parser(prog="dra", description="Kubernetes DRA drivers in Python.")
    out.add_argument("--version", action="store_true", help="print the version and end")
    commands = out.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser("run", help="run a driver as a node's plugin", description="Runs a driver until SIGTERM.")
    run.add_argument("driver", metavar="DRIVER", help="path to a file, or module:Class")
    add_settings(run)
    controller = commands.add_parser(
        "controller",
        help="run a driver's controller, one for the cluster",
        description="Publishes a driver's pools that belong to no single node, and binds claims, until SIGTERM.",
    )
    controller.add_argument("driver", metavar="DRIVER", help="path to a file, or module:Class")
    add_settings(controller, ControllerSettings, NODE_ONLY)
    dev = commands.add_parser(
        "dev",
        help="a local cluster with a driver",
        description="Starts a whole cluster in one process, with the driver in it.",
    )
    dev.add_argument("driver", metavar="DRIVER", help="path to a file, or module:Class")
    dev.add_argument("--host", metavar="HOST", help=HOST)
    dev.add_argument("--state", metavar="DIR", help="where to keep everything; a temporary folder when left out")
    dev.add_argument("--api-address", metavar="HOST:PORT", default="127.0.0.1:0", help="where the API server listens")
    dev.add_argument(
        "--api-cert", metavar="FILE", help="certificate for HTTPS, with --api-key; plain HTTP when left out"
    )
    dev.add_argument("--api-key", metavar="FILE", help="the certificate's key")
    dev.add_argument(
        "--apply", metavar="FILE", action="append", default=[], help="apply this YAML file at start; may be repeated"
    )
    dev.add_argument(
        "--controller", action="store_true", help="run the driver's controller too, as `dra controller` does"
    )
    add_settings(dev)
    claims = commands.add_parser(
        "claims",
        help="list or forget records of prepared claims",
        description="Lists what is prepared on this node, of one driver or of all; `forget UID` drops a record and frees its devices. "
        "Run it where the kubelet's folder is: on the node, or in the plugin's pod.",
    )
    claims.add_argument("action", nargs="?", choices=("list", "forget"), default="list")
    claims.add_argument("uid", nargs="?", help="UID of the record to forget")
    claims.add_argument("-o", "--output", choices=("table", "json"), default="table")
    claims.add_argument("--yes", action="store_true", help="forget without asking")
    add_settings(claims, only=("driver_name", "kubelet_root", "cdi_root", "lock_wait"))
    cleanup = commands.add_parser(
        "cleanup",
        help="remove what an uninstalled driver left on this node",
        description="Removes an uninstalled driver's ResourceSlices, sockets, CDI files and records of this node. Never while it lives.",
    )
    cleanup.add_argument("--force", action="store_true", help="also when claims are still prepared")
    add_settings(
        cleanup, only=("driver_name", "node_name", "kubeconfig", "kubelet_root", "cdi_root", "api_timeout", "lock_wait")
    )
    inspect = commands.add_parser(
        "inspect",
        help="show the PCI tree and what a driver would publish",
        description="Shows this machine's PCI functions, and the pools that a driver would publish with the reasons for what is left out. "
        "Needs no cluster.",
    )
    inspect.add_argument("driver", metavar="DRIVER", nargs="?", help="path to a file, or module:Class")
    inspect.add_argument("--host", metavar="HOST", help=HOST)
    inspect.add_argument(
        "--record", action="store_true", help="print the machine as a description for --host, and nothing else"
    )
    inspect.add_argument("--controller", action="store_true", help="what `dra controller` would publish")
    add_settings(
        inspect,
        only=(
            "driver_name", "node_name", "sysfs_root", "dev_root", "start_timeout", "scan_timeout", "list_attributes",
        ),
    )  # fmt: skip
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and answers its exit code: 0, 1 for a failure, 2 for what the user has to correct; ``run`` has its own."""
    parse = parser()
    args = parse.parse_args(argv)
    if args.version:
        from importlib.metadata import version  # loads e-mail parsers

        print(f"dra {version('dra-kubeletplugin')}")
        return 0
    if args.command is None:
        parse.error("a COMMAND is needed: see dra --help")
    try:
        code = _ended(args)
        sys.stdout.flush()  # here, where its fault is caught
        return code
    except DraError as e:
        return report(e)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough: `dra claims | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _ended(args: argparse.Namespace) -> int:  # noqa: RET503 run and controller never return
    match args.command:
        case "run":
            from .run import run

            run(args.driver, given(args))
        case "controller":
            from .controller import controller

            controller(args.driver, given(args, ControllerSettings))
        case "dev":
            from .dev import dev

            return dev(args)
        case "cleanup":
            from .cleanup import cleanup

            return cleanup(args)
        case "claims":
            from .claims import claims

            return claims(args)
        case _:
            from .inspect import inspect

            return inspect(args)


def report(e: DraError) -> int:
    """Says on standard error what is wrong, one sentence a fault."""
    faults = e.faults if isinstance(e, SettingsError) else (e.message,)
    for fault in faults:
        print(f"dra: {fault} [{e.code}]", file=sys.stderr)
    return 2


def run_class(driver: type[Driver], argv: Sequence[str] | None = None) -> int:
    """``dra run`` for a class at hand; options from the command line and the environment."""
    from .run import run

    out = Parser(description=(driver.__doc__ or driver.__name__).strip().splitlines()[0])
    add_settings(out)
    try:
        run(driver, given(out.parse_args(argv)))
    except DraError as e:
        return report(e)


if __name__ == "__main__":
    raise SystemExit(main())
