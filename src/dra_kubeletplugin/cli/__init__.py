"""The ``dra`` command: its subcommands run drivers, help to develop them, and examine nodes and clusters."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from .. import __version__
from ..base.text import did_you_mean
from ..errors import describe
from . import command_args  # noqa: F401 it defines the commands
from .shell.exit_codes import Exit
from .shell.exit_handling import ended, print_line
from .shell.options import add_settings
from .shell.parsing import COMMANDS, Parser, fail

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
def load_packages(only: str = "") -> None:
    """Adds the commands of all installed packages, or of one of :data:`PACKAGES`.

    Done only when one of them is needed: a node's plugin never pays for it, and a command does not wait for the other packages.
    """
    import importlib.metadata  # brings email and zipfile

    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: e.name):
        if only and entry.module.partition(".")[0] != only.replace("-", "_"):
            continue
        known = dict(COMMANDS)
        try:
            entry.load()
        except (Exception, SystemExit) as e:  # one broken package must not take the commands of the others
            print_line(f"dra: the commands of {entry.value} cannot be loaded: {describe(e)}")
        COMMANDS.update(known)  # a package adds commands, and replaces none


def command_parser(name: str) -> Parser:
    """Returns the parser of one command, such as ``claims`` or ``dev status``."""
    out = Parser(prog=f"dra {name}")
    COMMANDS[name].add_arguments(out)
    out.example = COMMANDS[name].example
    return out


def commands() -> dict[str, Parser]:
    """Returns the parser of every command by its words, including the verbs of `dra dev`."""
    load_packages()
    return {name: command_parser(name) for name in sorted(COMMANDS, key=_package_place)}


def _package_place(name: str) -> int:
    """Returns the position of a command's package: the framework is first. Packages are loaded in any order."""
    package = COMMANDS[name].package.partition(".")[0]
    places = [__name__.partition(".")[0], *(p.replace("-", "_") for p in PACKAGES)]
    return places.index(package) if package in places else len(places)


def verbs(name: str) -> list[str]:
    """Returns the verbs of a command; empty if it has none or is not installed."""
    return [words.removeprefix(f"{name} ") for words in COMMANDS if words.startswith(f"{name} ")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of :class:`.Exit`; ``run``, ``controller`` and ``webhook`` exit the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ended(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    match words:
        case []:
            fail("dra", "a COMMAND is needed")
        case ["--version", *_]:
            print(f"dra {__version__}")
            return Exit.SUCCESS
        case ["-h" | "--help", *_]:
            load_packages()
            from .shell.help import help_text

            missing = {package: [n for n in names if n not in COMMANDS] for package, names in PACKAGES.items()}
            print(help_text(COMMANDS, {package: names for package, names in missing.items() if names}))
            return Exit.SUCCESS
    if words[0] not in COMMANDS:
        load_packages(next((package for package, names in PACKAGES.items() if words[0] in names), ""))
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:length]), words[length:]
    if name not in COMMANDS:
        _fail_without_command(words)
    command, parser = COMMANDS[name], command_parser(name)
    loaded = _add_own_flags(parser, rest) if command.driver_options else {}
    args = parser.parse_args(rest, argparse.Namespace(command=name, loaded=loaded))
    code: int = command.load()(args)
    return code


def _fail_without_command(words: Sequence[str]) -> NoReturn:
    """Reports that the first word is no command."""
    word = words[0]
    if package := next((package for package, names in PACKAGES.items() if word in names), None):
        print_line(f"dra: dra {word} is in {package}: pip install {package}")
        raise SystemExit(Exit.USAGE)
    if of := next((name.split()[0] for name in COMMANDS if name.split()[1:] == [word]), None):
        fail("dra", f"{word} is a verb of `dra {of}`: did you mean `dra {of} {word}`?")
    if not word.startswith("-"):
        fail("dra", f"there is no command {word!r}{did_you_mean(word, COMMANDS)}")
    if command := next((word for word in words if word in COMMANDS), None):
        fail("dra", f"a command precedes its options: did you mean `dra {command} {word}`?")
    fail("dra", f"there is no option {word}")


def _add_own_flags(parser: Parser, words: Sequence[str]) -> Mapping[str, type[Driver]]:
    """Loads the drivers and adds flags for the options that they define. These options follow the drivers.

    Does nothing if the words contain neither an unknown flag nor ``--help``. In a pod, environment variables set a driver's options.
    """
    targets, unknown = parser.before_unknown_option(words)
    if not unknown and {"-h", "--help"}.isdisjoint(words):
        return {}
    from .shell.driver_options import add_flags_of

    return add_flags_of(parser, targets, only_for_help=not unknown)


def run_class(driver: type[Driver], argv: Sequence[str] | None = None) -> int:
    """Runs ``dra run`` for a class; options come from the command line and the environment."""
    from .run import run
    from .shell.driver_options import add_own_options

    description = (driver.__doc__ or "").strip() or driver.__name__
    out = Parser(description=description.splitlines()[0])
    add_settings(out)

    def command() -> int:
        add_own_options(out, [driver])
        run(out.parse_args(argv), driver)

    return ended(command)


if __name__ == "__main__":
    raise SystemExit(main())
