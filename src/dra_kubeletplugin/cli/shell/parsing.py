"""The parser of a command's words: options and other words in any order, one sentence for a mistake, and the nearest name."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn, TextIO

from ...base.text import did_you_mean
from .exit_codes import Exit

_OPTION = re.compile(r"--.+|-[a-zA-Z].*", re.DOTALL)
_OF_ARGUMENT = re.compile(r"^argument (.+?): ", re.DOTALL)


def fail(program: str, sentence: str) -> NoReturn:
    """Ends the process with one line: the mistake in the command line, and where to find help."""
    print(f"dra: {sentence}" + ("" if sentence.endswith("?") else f"; see {program} --help"), file=sys.stderr)
    raise SystemExit(Exit.USAGE)


class Parser(argparse.ArgumentParser):
    """The parser of one command.

    Options cannot be abbreviated, because a later release could make an abbreviation ambiguous.

    Attributes:
        arguments: all options and words that the parser accepts.
        settings: the options that have environment variables.
        example: a command line, which the help shows.
    """

    example = ""

    def __init__(self, prog: str | None = None, description: str = "") -> None:
        self.arguments: list[argparse.Action] = []
        self.settings: list[argparse.Action] = []
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_formatter)

    def add_argument(self, *names: str, **more: Any) -> argparse.Action:
        if choices := more.get("choices"):
            more["type"] = functools.partial(_chosen, choices)
        action = super().add_argument(*names, **more)
        self.arguments.append(action)
        return action

    def add_settings(self, title: str, description: str, options: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Adds a group of options that have environment variables: the flag and the arguments of ``add_argument`` for each."""
        group = self.add_argument_group(title, description)
        added = [group.add_argument(flag, **more) for flag, more in options]
        self.arguments += added
        self.settings += added

    @property
    def flags(self) -> dict[str, argparse.Action]:
        """Every option by each of its names, with the dashes."""
        return {name: action for action in self.arguments for name in action.option_strings}

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses options and other words in any order. If the words contain ``--``, options precede all other words."""
        words = list(sys.argv[1:] if args is None else args)
        if unknown := self.before_unknown_option(words)[1]:
            self.error(f"there is no option {unknown}{did_you_mean(unknown, self.flags)}")
        # parse_known_intermixed_args() would read the words after -- as options.
        parse = self.parse_known_args if "--" in words else self.parse_known_intermixed_args
        found, rest = parse(words, namespace)
        if rest:
            self.error(f"{next((word for word in rest if word != '--'), '--')!r} is an unexpected argument")
        return found

    def before_unknown_option(self, words: Sequence[str]) -> tuple[list[str], str]:
        """Returns the words that are neither options nor their values, up to the first unknown option; and that option, or ''."""
        flags, others, is_value = self.flags, list[str](), False
        for i, word in enumerate(words):
            if word == "--":
                return others + list(words[i + 1 :]), ""
            if is_value or not _OPTION.fullmatch(word):
                others += [] if is_value else [word]
                is_value = False
                continue
            name = word.partition("=")[0]
            if name not in flags and (name.startswith("--") or name[:2] not in flags):
                return others, name
            is_value = word in flags and flags[word].nargs != 0
        return others, ""

    def format_help(self) -> str:
        return super().format_help() + (f"\nexample:\n  {self.example}\n" if self.example else "")

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse ignores an output that cannot be written

    def error(self, message: str) -> NoReturn:
        fail(self.prog, _OF_ARGUMENT.sub(r"\1: ", message))


def _chosen(choices: Collection[str], text: str) -> str:
    if text and text not in choices:  # argparse converts defaults too, and '' is the usual one
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}{did_you_mean(text, choices)}")
    return text


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Without a width, argparse imports shutil and three compressors, even if no help is shown.
    return argparse.HelpFormatter(prog, width=terminal_columns() - 2)


class Group(StrEnum):
    """A group of commands in `dra --help`: what its reader wants to do."""

    AUTHOR = "Write a driver"
    NODE = "Run it on a node"
    CLUSTER = "Look into a cluster"
    ANY_DRIVER = "Test any driver"
    OTHER = "Other commands"


class Command(NamedTuple):
    """A command. ``target`` names the function that runs it as ``module:function`` in ``package``, and is imported when it runs."""

    help: str
    add_arguments: Callable[[Parser], None]
    target: str
    package: str
    driver_options: bool = False
    """Whether the command accepts, in addition to its own options, the options that a driver defines."""
    group: Group = Group.OTHER
    example: str = ""

    def load(self) -> Callable[[argparse.Namespace], int]:
        """Returns the function that runs the command."""
        module, _, function = self.target.partition(":")
        found: Callable[[argparse.Namespace], int] = getattr(
            importlib.import_module(f".{module}", self.package), function
        )
        return found


COMMANDS: dict[str, Command] = {}
"""Every loaded command by its name, in the order of `dra --help`. A name of two words, such as ``dev status``, is a verb of a command."""
_Add = Callable[[Parser], None]


def command(
    name: str,
    help: str,
    target: str,
    *,
    group: Group = Group.OTHER,
    example: str = "",
    driver_options: bool = False,
    package: str | None = None,
) -> Callable[[_Add], _Add]:
    """Adds a command. The decorated function adds the command's arguments to its parser.

    Args:
        name: the word, or two words, after ``dra``.
        help: a few words for the list of commands.
        target: ``module:function`` of the function that runs it, relative to ``package``.
        group: where `dra --help` lists it.
        example: a command line, for the command's help. `dra --help` shows the first example of each group.
        driver_options: whether it accepts the options that a driver defines too.
        package: by default, the package of the decorated function.
    """

    def add(add_arguments: _Add) -> _Add:
        home = package or add_arguments.__module__.rpartition(".")[0]
        COMMANDS[name] = Command(help, add_arguments, target, home, driver_options, group, example)
        return add_arguments

    return add


def terminal_columns(stream: TextIO | None = None) -> int:
    """Returns the line width: from COLUMNS, or from the terminal of ``stream`` (default: standard output); 80 without a terminal."""
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or 80
    except (OSError, ValueError, AttributeError):  # no terminal, or no output
        return 80
