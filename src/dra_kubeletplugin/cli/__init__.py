"""The ``dra`` command: its subcommands run drivers, help to develop them, and examine nodes and clusters."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import __version__
from ..errors import describe
from . import command_args  # noqa: F401 it defines the commands
from .shell.exit_codes import Exit, epilog
from .shell.exit_handling import ended, print_line
from .shell.options import add_settings
from .shell.parsing import COMMANDS, Parser

if TYPE_CHECKING:
    from ..driver import Driver

ENTRY_POINTS = "dra.commands"
"""The group of entry points with which other packages add commands. Each names a module that defines them with :func:`.command`."""
PACKAGES = {
    "dra-devkit": ("completion", "deploy", "dev", "inspect", "new", "schema", "validate"),
    "dra-tools": ("doctor", "explain", "gather", "simulate", "top"),
    "dra-conformance": ("conformance",),
}
"""Our other packages with their commands, for the error of a command whose package is not installed."""


@functools.cache  # so that a package that cannot be loaded is reported once
def load_packages() -> None:
    """Adds the commands of all installed packages. Done only when one of them is needed: a node's plugin never pays for it."""
    import importlib.metadata  # brings email and zipfile

    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: e.name):
        known = dict(COMMANDS)
        try:
            entry.load()
        except (Exception, SystemExit) as e:  # one broken package must not take the commands of the others
            print_line(f"dra: the commands of {entry.value} cannot be loaded: {describe(e)}")
        COMMANDS.update(known)  # a package adds commands, and replaces none


def parser() -> Parser:
    """Returns the parser of the whole command line, without the verbs of `dra dev`."""
    load_packages()
    out = Parser(
        prog="dra", description="Kubernetes DRA drivers in Python.", epilog=epilog() + _commands_of_missing_packages()
    )
    out.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = out.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        if " " not in name:
            command.add_arguments(subparsers.add_parser(name, help=command.help))
    return out


def _commands_of_missing_packages() -> str:
    """Returns sentences with the commands of our packages that are not installed, for the help."""
    missing = {package: [n for n in names if n not in COMMANDS] for package, names in PACKAGES.items()}
    return "".join(f" In {package}, not installed: {', '.join(names)}." for package, names in missing.items() if names)


def command_parser(name: str) -> Parser:
    """Returns the parser of one command, such as ``claims`` or ``dev status``."""
    out = Parser(prog=f"dra {name}")
    COMMANDS[name].add_arguments(out)
    return out


def commands() -> dict[str, Parser]:
    """Returns the parser of every command by its words, including the verbs of `dra dev`."""
    load_packages()
    return {name: command_parser(name) for name in COMMANDS}


def verbs(name: str) -> list[str]:
    """Returns the verbs of a command; empty if it has none or is not installed."""
    return [words.removeprefix(f"{name} ") for words in COMMANDS if words.startswith(f"{name} ")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of :class:`.Exit`; ``run``, ``controller`` and ``webhook`` exit the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        load_packages()
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:length]), words[length:]
    command = COMMANDS.get(name)
    if command is None:
        return _without_command(words)
    parser = command_parser(name)
    if rest and rest[0].startswith("-") and (names := verbs(name)):
        _, positional, candidates = parser.classify_words(rest)
        if verb := next((word for word in positional or candidates if word in names), None):
            parser.error(f"a verb precedes its options: did you mean `dra {name} {verb} {rest[0]}`?")
    loaded = _with_own_flags(parser, rest) if command.driver_options else {}
    args = parser.parse_args(rest, argparse.Namespace(command=name, loaded=loaded))
    code: int = command.load()(args)
    return code


def _without_command(words: Sequence[str]) -> int:
    """Prints the version or the help, or reports that the first word is no command."""
    # The version is printed without the slow parser, because programs often ask for it.
    if words[:1] != ["--version"]:
        top = parser()
        for package, names in PACKAGES.items():
            if words and words[0] in names:
                top.exit(Exit.USAGE, f"dra: dra {words[0]} is in {package}: pip install {package}\n")
        if words and (of := next((name.split()[0] for name in COMMANDS if name.split()[1:] == [words[0]]), None)):
            top.error(f"{words[0]} is a verb of `dra {of}`: did you mean `dra {of} {words[0]}`?")
        command = next((word for word in words if word in COMMANDS), None)
        if command and words[0].startswith("-") and words[0] not in top.flags:
            top.error(f"a command precedes its options: did you mean `dra {command} {words[0]}`?")
        # Only the first word of a misspelt command is parsed. Otherwise the error would name its options, not the command.
        if not top.parse_args(words if not words or words[0].startswith("-") else words[:1]).version:
            top.error("a COMMAND is needed")
    print(f"dra {__version__}")
    return Exit.SUCCESS


def _with_own_flags(command: Parser, words: Sequence[str]) -> Mapping[str, type[Driver]]:
    """Loads the drivers and adds flags for the options that they define.

    Does nothing if the words contain neither an unknown flag nor ``--help``. In a pod, environment variables set a driver's options.
    """
    unknown, targets, candidates = command.classify_words(words)
    if not unknown and {"-h", "--help"}.isdisjoint(words):
        return {}
    from .shell.driver_options import add_flags_of

    if not targets:
        return add_flags_of(command, candidates, unknown, certain=False)
    return add_flags_of(command, targets if command.prog.endswith(" dev") else targets[:1], unknown)


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
