"""The ``dra`` command: its subcommands run drivers, help to develop them, and examine nodes and clusters."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import __version__
from . import analysis_args, command_args, dev_args  # noqa: F401 they define the commands
from .shell.exit_codes import Exit, epilog
from .shell.exit_handling import ended
from .shell.options import add_settings
from .shell.parsing import COMMANDS, Command, Parser

if TYPE_CHECKING:
    from ..driver import Driver


VERBS = {
    verb: Command(help, functools.partial(dev_args.add_verb, verb), "dev_client:run_verb")
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
    if name == "dev" and rest and rest[0].startswith("-"):
        _, positional, candidates = parser.classify_words(rest)
        if verb := next((word for word in positional or candidates if word in VERBS), None):
            parser.error(f"a verb precedes its options: did you mean `dra dev {verb} {rest[0]}`?")
    loaded = _with_own_flags(parser, rest) if name in OF_DRIVERS else {}
    args = parser.parse_args(rest, argparse.Namespace(command=name, loaded=loaded))
    code: int = command.load()(args)
    return code


def _without_command(words: Sequence[str]) -> int:
    """Prints the version or the help, or reports that the first word is no command."""
    # The version is printed without the slow parser, because programs often ask for it.
    if words[:1] != ["--version"]:
        top = parser()
        if words and words[0] in VERBS:
            top.error(f"{words[0]} is a verb of `dra dev`: did you mean `dra dev {words[0]}`?")
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
