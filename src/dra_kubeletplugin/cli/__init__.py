"""The ``dra`` command: runs drivers, develops with them, and shows their records."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..base.settings import ControllerSettings, WebhookSettings
from . import dev_client_args
from .analysis_args import add_explain, add_simulate, add_top
from .shell.exit_codes import Exit, epilog
from .shell.exit_handling import ended
from .shell.options import add_settings, given
from .shell.output import add_output
from .shell.parsing import Parser, classify_words, command_first

if TYPE_CHECKING:
    from ..driver import Driver

DEV_PLACES = frozenset({"kubeconfig", "service_account", "kubelet_root", "cdi_root", "pod_uid", "local_cluster"})
"""Settings that `dra dev` sets itself."""
OF_DRIVERS = ("run", "controller", "inspect", "dev")
"""Commands that accept, in addition to their own options, the options that a driver defines."""
KINDS = ("pci", "chardev", "sdk")
HOST = "described host to use instead of this machine: a YAML file, or the name of one in the package"
DRIVER = "driver: a Python file, a package's folder, or module:Class"


def parser() -> Parser:
    out = Parser(prog="dra", description="Kubernetes DRA drivers in Python.", epilog=epilog())
    out.add_argument("--version", action="store_true", help="print the version and exit")
    commands = out.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run a driver as the plugin of a node",
        description="Runs the plugin of a driver on a node until SIGTERM.",
    )
    run.add_argument("driver", metavar="DRIVER", help=DRIVER)
    add_settings(run)
    controller = commands.add_parser(
        "controller",
        help="run the controller of a driver",
        description="Publishes a driver's pools without a node, and binds claims, until SIGTERM.",
    )
    controller.add_argument("driver", metavar="DRIVER", help=DRIVER)
    add_settings(controller, ControllerSettings)
    _add_dev(commands.add_parser(
        "dev",
        help="run a local cluster with drivers, or change a running one",
        description="Starts a local cluster in one process, with drivers on its nodes, or changes a running cluster.",
        epilog="Verbs that change a cluster in another shell (`dra dev VERB --help`): " + ", ".join(dev_client_args.VERBS),
    ))  # fmt: skip
    claims = commands.add_parser(
        "claims",
        help="list or forget records of prepared claims",
        description="Lists the records of prepared claims on this node, of one driver or of all; `forget UID` deletes a record and "
        "releases its devices. Run it on the node or in the plugin's pod, where the kubelet's folder is.",
    )
    claims.add_argument("action", nargs="?", choices=("list", "forget"), default="list", help="default: list")
    claims.add_argument("uid", nargs="?", help="UID of the claim whose record is deleted")
    add_output(claims)
    claims.add_argument("--yes", action="store_true", help="forget without confirmation")
    add_settings(claims, only=("driver_name", "kubelet_root", "cdi_root", "lock_timeout"))
    cleanup = commands.add_parser(
        "cleanup",
        help="remove the files and slices of an uninstalled driver from this node",
        description="Removes an uninstalled driver's ResourceSlices, sockets, CDI specs and records of this node, unless its plugin runs.",
    )
    cleanup.add_argument(
        "--force", action="store_true", help="remove the files and slices even if claims are still prepared"
    )
    add_output(cleanup)
    add_settings(
        cleanup,
        only=(
            "driver_name", "node_name", "kubeconfig", "service_account", "kubelet_root", "cdi_root", "api_timeout", "lock_timeout",
        ),
    )  # fmt: skip
    inspect = commands.add_parser(
        "inspect",
        help="show the PCI functions and what a driver would publish",
        description="Shows this machine's PCI functions, the pools that a driver would publish, and why it would not publish some devices. "
        "Needs no cluster.",
    )
    inspect.add_argument("driver", metavar="DRIVER", nargs="?", help=DRIVER)
    inspect.add_argument("--host", metavar="HOST", help=HOST)
    inspect.add_argument(
        "--describe-host", action="store_true", help="print only this machine's description for --host"
    )
    inspect.add_argument("--controller", action="store_true", help="show what `dra controller` would publish")
    add_output(inspect)
    add_settings(
        inspect,
        only=(
            "driver_name", "node_name", "sysfs_root", "dev_root", "start_timeout", "discovery_timeout", "list_attributes",
        ),
    )  # fmt: skip
    _add_parameters(commands)
    _add_doctor(commands)
    _add_own_package(commands)
    _add_completion(commands)
    add_explain(
        commands.add_parser("explain", help="explain why a pod or a claim waits, and which change would be enough")
    )
    add_simulate(commands.add_parser("simulate", help="find out whether and where pods would fit, and how many more"))
    add_top(commands.add_parser("top", help="show devices, their holders and waiting pods, live"))
    return out


def _add_parameters(commands: Any) -> None:
    validate = commands.add_parser(
        "validate",
        help="validate claims, templates, classes and pods in files",
        description="Validates objects in files as an API server does, and their opaque parameters as the drivers do. Needs no cluster. "
        "Exit code 1 if an object is invalid.",
    )
    validate.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="YAML or JSON file with objects, or a folder of such files; - for standard input",
    )
    validate.add_argument(
        "--driver", metavar="DRIVER", dest="drivers", action="append", default=[],
        help=DRIVER + "; it validates the parameters; may be repeated",
    )  # fmt: skip
    validate.add_argument("--driver-name", metavar="NAME", help="name of the driver; by default the name in its class")
    validate.add_argument(
        "--host",
        metavar="HOST",
        help="with --driver: described host, whose devices' attributes selectors may use",
    )
    add_output(validate)
    _add_webhook(commands.add_parser(
        "webhook",
        help="run an admission webhook that rejects invalid parameters",
        description="Runs a validating admission webhook over HTTPS for claims, templates and classes, until SIGTERM.",
    ))  # fmt: skip
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of a driver's opaque parameters",
        description="Prints the JSON Schema of the opaque parameters that a driver accepts.",
    )
    schema.add_argument("driver", metavar="DRIVER", help=DRIVER)
    add_output(schema, "json")
    schema.add_argument("--kind", metavar="KIND", help="kind or apiVersion, if the driver has several")


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check this node, its drivers and the cluster",
        description="Checks the kernel, kubelet, runtime, CDI, drivers of any vendor, API server, slices and records, and changes nothing. "
        "Exit code 1 if a check failed.",
    )
    gather = commands.add_parser(
        "gather",
        help="pack the findings of `dra doctor`, objects and logs into one file without secrets",
        description="Packs findings, objects of resource.k8s.io, pods with claims, logs of drivers, CDI specs and records into a tar.gz. "
        "It reads no Secrets, and removes values of environment variables and texts that look like a secret.",
    )
    gather.add_argument("file", metavar="FILE", nargs="?", help="archive to create; by default dra-DATE.tar.gz")
    for command in (doctor, gather):
        add_output(command)
        command.add_argument(
            "--host", action=argparse.BooleanOptionalAction, default=None,
            help="check this machine too; by default if it has a kubelet's folder",
        )  # fmt: skip
        command.add_argument(
            "--host-root", metavar="DIR", type=Path, help="folder where the host's root file system is mounted (/)"
        )
        command.add_argument(
            "--driver", metavar="DRIVER", dest="drivers", action="append", default=[],
            help=DRIVER + "; its devices are compared with its slices; may be repeated",
        )  # fmt: skip
        command.add_argument(
            "--permissions",
            choices=("reader", "plugin"),
            help="role whose permissions this account must have; in a plugin's pod, use plugin",
        )
        add_settings(
            command,
            only=(
                "driver_name", "node_name", "kubeconfig", "service_account", "kubelet_root", "cdi_root", "sysfs_root", "dev_root",
                "api_timeout",
                "discovery_timeout", "start_timeout", "list_attributes",
            ),
        )  # fmt: skip


def _add_own_package(commands: Any) -> None:
    new = commands.add_parser(
        "new",
        help="create a driver's package, with tests, image, manifests and CI",
        description="Creates a folder with a driver's package that works at once: `cd NAME && make test && make dev`. "
        "On a terminal it asks for missing options. It never overwrites a file.",
    )
    new.add_argument("name", metavar="NAME", help="name of the folder, the package and the image, such as acme-fpga")
    new.add_argument(
        "--kind", choices=KINDS, help="source of the devices: PCI functions, device files, or a vendor's library"
    )
    new.add_argument(
        "--driver-name", metavar="NAME", help="name of the driver in Kubernetes; by default NAME.example.com"
    )
    new.add_argument("--vendor-id", metavar="ID", help="with --kind pci: the vendor's PCI id, four hex digits")
    new.add_argument(
        "-C",
        "--directory",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="folder in which the package's folder is created (.)",
    )
    add_output(new)
    deploy = commands.add_parser(
        "deploy",
        help="render a driver's manifests from its values",
        description="Writes kustomization.yaml, deviceclass.yaml and the files that they use, in the folder of VALUES (docs/deploy.md).",
    )
    deploy.add_argument("values", metavar="VALUES", nargs="?", help="values.yaml of a driver, or its folder")
    deploy.add_argument(
        "-f", "--values", dest="above", metavar="FILE", action="append", default=[],
        help="further values file, whose values replace values of VALUES, as in Helm; may be repeated",
    )  # fmt: skip
    deploy.add_argument(
        "--driver", metavar="DRIVER",
        help=DRIVER + "; its options are validated; with --shared-dir, by the chart; by default, the driver in the package of VALUES",
    )  # fmt: skip
    deploy.add_argument(
        "-C", "--directory", metavar="FOLDER", help="folder to write to; by default, the folder of VALUES"
    )
    deploy.add_argument(
        "--kustomize-base", metavar="PLACE", default="",
        help="folder or URL of an existing `kustomize` base, relative to FOLDER; no base is written",
    )  # fmt: skip
    deploy.add_argument(
        "--shared-dir",
        metavar="FOLDER",
        help="write the files that all drivers share: kustomize components, the Helm chart, alerts and a dashboard",
    )


def _add_completion(commands: Any) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description='Prints a completion script: `eval "$(dra completion bash)"`, or save it in the shell\'s folder for completions.',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell that runs the script")


def _add_webhook(webhook: argparse.ArgumentParser) -> None:
    webhook.add_argument("drivers", metavar="DRIVER", nargs="+", help=DRIVER + "; its parameters are validated")
    add_settings(webhook, WebhookSettings)


def _add_dev(dev: argparse.ArgumentParser) -> None:
    dev.add_argument(
        "drivers",
        metavar="DRIVER",
        nargs="*",
        help=DRIVER + "; without a DRIVER, start a driver in any language yourself",
    )
    dev.add_argument(
        "--nodes",
        metavar="N",
        type=int,
        default=1,
        help="number of nodes, named node-1 and so on; every driver runs on each",
    )
    dev.add_argument(
        "--host",
        metavar="HOST",
        dest="hosts",
        action="append",
        default=[],
        help=HOST + "; give it once for all nodes, or once for each node",
    )
    dev.add_argument(
        "--kubernetes",
        metavar="RELEASE",
        default="",
        help="release of Kubernetes to behave as: 1.34, 1.35, 1.36 (default) or 1.37",
    )
    dev.add_argument(
        "--feature-gates",
        metavar="NAME=BOOL,...",
        action="append",
        default=[],
        help="feature gates that differ from the defaults of the release",
    )
    dev.add_argument(
        "--runtime-config",
        metavar="VERSION=BOOL,...",
        action="append",
        default=[],
        help="API versions to serve in addition to the defaults, such as resource.k8s.io/v1beta1=true",
    )
    dev.add_argument(
        "--state-dir", metavar="DIR", help="folder for all files of the cluster; by default a temporary folder"
    )
    dev.add_argument("--api-address", metavar="HOST:PORT", default="127.0.0.1:0", help="address of the API server")
    dev.add_argument(
        "--api-cert-file",
        metavar="FILE",
        help="certificate of the API server, with --api-private-key-file; by default a generated one",
    )
    dev.add_argument("--api-private-key-file", metavar="FILE", help="private key of the certificate")
    dev.add_argument(
        "--apply",
        metavar="FILE",
        action="append",
        default=[],
        help="manifest, or folder of manifests, to apply at start; may be repeated",
    )
    dev.add_argument(
        "--controller", action="store_true", help="also run the drivers' controllers, as `dra controller` does"
    )
    dev.add_argument(
        "--containers", action="store_true", help="run real containers with runc; by default containers are simulated"
    )
    dev.add_argument(
        "--image", metavar="NAME=FOLDER", dest="images", action="append", default=[],
        help="with --containers: root folder or OCI layout of an image; NAME * is for all other images; busybox is built in",
    )  # fmt: skip
    dev.add_argument("--no-reload", action="store_true", help="do not restart a driver when its file changes")
    add_settings(dev, without=DEV_PLACES)


def commands() -> dict[str, Parser]:
    """Returns the parser of every command by its words, including the verbs of `dra dev`."""
    own = parser().commands
    return {**own, **{f"dev {verb}": p for verb, p in dev_client_args.parser().commands.items()}}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of :class:`.Exit`; ``run``, ``controller`` and ``webhook`` exit the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    if list(words) == ["--version"]:  # without the slow parser, because programs often ask for the version
        args = argparse.Namespace(version=True)
    else:
        args = _parsed(words)
    if args.version:
        print(f"dra {__version__}")
        return Exit.SUCCESS
    return _ended(args)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    top = parser()
    words = command_first(words, top.commands, top)
    if words[:1] == ["dev"] and not dev_client_args.VERBS.keys().isdisjoint(words):
        of_dev = dev_client_args.parser()
        rest = command_first(words[1:], of_dev.commands, of_dev)
        if rest[0] in of_dev.commands:
            return of_dev.parse_args(rest, argparse.Namespace(command="dev VERB", version=False))
    if words[:1] and words[0] in dev_client_args.VERBS:
        top.error(f"{words[0]} changes a running cluster: did you mean `dra dev {words[0]}`?")
    loaded = _with_own_flags(top.commands[words[0]], words[1:]) if words and words[0] in OF_DRIVERS else {}
    args = top.parse_args(words, argparse.Namespace(loaded=loaded))
    if args.command is None and not args.version:
        top.error("a COMMAND is needed")
    return args


def _with_own_flags(command: Parser, words: Sequence[str]) -> Mapping[str, type[Driver]]:
    """Loads the drivers and adds flags for the options that they define. Does nothing if the words have no such flag, as in a pod."""
    unknown, targets, candidates = classify_words(command, words)
    if not unknown and {"-h", "--help"}.isdisjoint(words):
        return {}
    from .shell.driver_options import add_flags_of

    named = targets or candidates
    return add_flags_of(command, named if command.prog.endswith(" dev") else named[:1], unknown)


# Commands that get all parsed arguments: module and function, imported when the command runs.
_WHOLE = {
    "dev": ("dev", "dev"),
    "dev VERB": ("dev_client", "run_verb"),
    "new": ("new", "new"),
    "deploy": ("deploy", "deploy"),
    "cleanup": ("cleanup", "cleanup"),
    "claims": ("claims", "claims"),
    "doctor": ("doctor", "doctor"),
    "gather": ("doctor", "gathered"),
    "explain": ("explain", "explain_command"),
    "simulate": ("simulate", "simulate_command"),
    "top": ("top", "top"),
    "validate": ("validate", "validate"),
    "schema": ("validate", "schema"),
    "inspect": ("inspect", "inspect"),
}


def _ended(args: argparse.Namespace) -> int:  # noqa: RET503 run, controller and webhook never return
    match args.command:
        case "run":
            from .run import run

            run(args.loaded.get(args.driver, args.driver), args)
        case "controller":
            from .controller import controller

            controller(args.loaded.get(args.driver, args.driver), args)
        case "webhook":
            from .webhook import webhook

            webhook(args.drivers, given(args, WebhookSettings))
        case "completion":
            from .shell.completion import script

            print(script(args.shell, parser(), OF_DRIVERS))
            return Exit.SUCCESS
        case _:
            module, function = _WHOLE[args.command]
            code: int = getattr(importlib.import_module(f".{module}", __package__), function)(args)
            return code


def run_class(driver: type[Driver], argv: Sequence[str] | None = None) -> int:
    """Runs ``dra run`` for a class; options come from the command line and the environment."""
    from .run import run
    from .shell.driver_options import add_own_options

    description = (driver.__doc__ or "").strip() or driver.__name__
    out = Parser(description=description.splitlines()[0])
    add_settings(out)

    def command() -> int:
        add_own_options(out, [driver])
        run(driver, out.parse_args(argv))

    return ended(command)


if __name__ == "__main__":
    raise SystemExit(main())
