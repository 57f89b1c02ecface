"""The ``dra`` command: runs drivers, develops with them, and shows their records."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .. import __version__
from . import analysis_args, command_args, dev_args
from .shell.exit_codes import Exit, epilog
from .shell.exit_handling import ended
from .shell.options import add_settings
from .shell.parsing import Parser

if TYPE_CHECKING:
    from ..driver import Driver


class Command(NamedTuple):
    """A command. ``module`` and ``function`` name the function that runs it; the module is imported when the command runs."""

    help: str
    add_arguments: Callable[[Parser], None]
    module: str
    function: str


COMMANDS: Mapping[str, Command] = {
    "run": Command("run a driver as the plugin of a node", command_args.add_run, "run", "run_command"),
    "controller": Command(
        "run the controller of a driver", command_args.add_controller, "controller", "controller_command"
    ),
    "dev": Command("run a local cluster with drivers, or change a running one", dev_args.add_dev, "dev", "dev"),
    "claims": Command("list or forget records of prepared claims", command_args.add_claims, "claims", "claims"),
    "cleanup": Command(
        "remove the files and slices of an uninstalled driver from this node",
        command_args.add_cleanup, "cleanup", "cleanup",
    ),
    "inspect": Command(
        "show the PCI functions and what a driver would publish", command_args.add_inspect, "inspect", "inspect"
    ),
    "validate": Command(
        "validate claims, templates, classes and pods in files", command_args.add_validate, "validate", "validate"
    ),
    "webhook": Command(
        "run an admission webhook that rejects invalid parameters", command_args.add_webhook, "webhook", "webhook"
    ),
    "schema": Command(
        "print the JSON Schema of a driver's opaque parameters", command_args.add_schema, "validate", "schema"
    ),
    "doctor": Command("check this node, its drivers and the cluster", analysis_args.add_doctor, "doctor", "doctor"),
    "gather": Command(
        "pack the findings of `dra doctor`, objects and logs into one file without secrets",
        analysis_args.add_gather, "doctor", "gathered",
    ),
    "new": Command(
        "create a driver's package, with tests, image, manifests and CI", command_args.add_new, "new", "new"
    ),
    "deploy": Command("render a driver's manifests from its values", command_args.add_deploy, "deploy", "deploy"),
    "completion": Command(
        "print a completion script for a shell", command_args.add_completion, "shell.completion", "completion"
    ),
    "explain": Command(
        "explain why a pod or a claim waits, and which change would be enough",
        analysis_args.add_explain, "explain", "explain_command",
    ),
    "simulate": Command(
        "find out whether and where pods would fit, and how many more",
        analysis_args.add_simulate, "simulate", "simulate_command",
    ),
    "top": Command("show devices, their holders and waiting pods, live", analysis_args.add_top, "top", "top"),
}  # fmt: skip
VERBS: Mapping[str, Command] = {
    verb: Command(help, functools.partial(dev_args.add_verb, verb), "dev_client", "run_verb")
    for verb, help in dev_args.VERBS.items()
}
_ALL = {**COMMANDS, **{f"dev {verb}": command for verb, command in VERBS.items()}}
OF_DRIVERS = ("run", "controller", "inspect", "dev")
"""Commands that accept, in addition to their own options, the options that a driver defines."""


def parser() -> Parser:
    """Returns the parser of the whole command line, without the verbs of `dra dev`."""
    out = Parser(prog="dra", description="Kubernetes DRA drivers in Python.", epilog=epilog())
    out.add_argument("--version", action="store_true", help="print the version and exit")
    commands = out.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.help))
    return out


def command_parser(name: str) -> Parser:
    """Returns the parser of one command, such as ``claims`` or ``dev status``."""
    out = Parser(prog=f"dra {name}")
    _ALL[name].add_arguments(out)
    return out


def commands() -> dict[str, Parser]:
    """Returns the parser of every command by its words, including the verbs of `dra dev`."""
    return {name: command_parser(name) for name in _ALL}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of :class:`.Exit`; ``run``, ``controller`` and ``webhook`` exit the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    length = 2 if " ".join(words[:2]) in _ALL else 1
    name, rest = " ".join(words[:length]), words[length:]
    command = _ALL.get(name)
    if command is None:
        return _without_command(words)
    parser = command_parser(name)
    loaded = _with_own_flags(parser, rest) if name in OF_DRIVERS else {}
    args = parser.parse_args(rest, argparse.Namespace(command=name, loaded=loaded))
    code: int = getattr(importlib.import_module(f".{command.module}", __package__), command.function)(args)
    return code


def _without_command(words: Sequence[str]) -> int:
    """Prints the version or the help, or reports that the first word is no command."""
    # The version is printed without the slow parser, because programs often ask for it.
    if words[:1] != ["--version"]:
        top = parser()
        if words and words[0] in VERBS:
            top.error(f"{words[0]} changes a running cluster: did you mean `dra dev {words[0]}`?")
        command = next((word for word in words if word in COMMANDS), None)
        if command and words[0] not in top.flags:
            top.error(f"a command precedes its options: did you mean `dra {command} {words[0]}`?")
        if not top.parse_args(words).version:
            top.error("a COMMAND is needed")
    print(f"dra {__version__}")
    return Exit.SUCCESS


def _with_own_flags(command: Parser, words: Sequence[str]) -> Mapping[str, type[Driver]]:
    """Loads the drivers and adds flags for the options that they define. Does nothing if the words have no such flag, as in a pod."""
    unknown, targets, candidates = command.classify_words(words)
    if not unknown and {"-h", "--help"}.isdisjoint(words):
        return {}
    from .shell.driver_options import add_flags_of

    named = targets or candidates
    return add_flags_of(command, named if command.prog.endswith(" dev") else named[:1], unknown)


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
