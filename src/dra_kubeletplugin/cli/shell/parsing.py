"""The parser of the command line: options and other words in any order, one sentence for a mistake, and the nearest name."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

from ...base.text import did_you_mean
from .exit_codes import Exit

_OPTION = re.compile(r"--.+|-[a-zA-Z].*", re.DOTALL)
_OF_ARGUMENT = re.compile(r"^argument (.+?): ", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """The parser of one command, or of the command line before the command.

    Options cannot be abbreviated, because a later release could make an abbreviation ambiguous.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)

    @property
    def commands(self) -> Mapping[str, Parser]:
        """Subcommands by name; empty if there are none."""
        found = (a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction))
        return next(found, {})

    @property
    def flags(self) -> Iterable[str]:
        """Every option, with its dashes."""
        return self._option_string_actions

    def known(self, option: str) -> argparse.Action | None:
        """Returns the action of an option with its dashes and without a value; None if the parser has no such option."""
        return self._option_string_actions.get(option)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses options and other words in any order. If the words contain ``--``, options precede all other words."""
        words = list(sys.argv[1:] if args is None else args)
        if unknown := self.classify_words(words)[0]:
            self.error(f"there is no option {unknown[0]}{did_you_mean(unknown[0], self.flags)}")
        # parse_known_intermixed_args() would read the words after -- as options, and it accepts no subcommands.
        in_order = "--" in words or self.commands
        parse = self.parse_known_args if in_order else self.parse_known_intermixed_args
        found, rest = parse(words, namespace)
        if rest:
            self.error(f"{next((word for word in rest if word != '--'), '--')!r} is an unexpected argument")
        return found

    def classify_words(self, words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Returns unknown options, positional words, and words that may be values of the unknown options."""
        unknown: list[str] = []
        others: list[str] = []
        candidates: list[str] = []
        into = others  # the list for the next word that is no option
        for i, word in enumerate(words):
            if word == "--":
                others += words[i + 1 :]
                break
            if not _OPTION.fullmatch(word):
                into.append(word)
                into = others
            elif self._action(word) is None:
                unknown.append(word.partition("=")[0])
                into = others if "=" in word else candidates
            else:
                action = self.known(word)
                into = [] if action is not None and action.nargs != 0 else others
        return unknown, others, candidates

    def _action(self, word: str) -> argparse.Action | None:
        """Returns the action for ``--flag``, ``--flag=value``, ``-f`` and ``-fvalue``."""
        return self.known(word.partition("=")[0]) or (None if word.startswith("--") else self.known(word[:2]))

    def _parse_optional(self, arg_string: str) -> Any:
        """Returns None for a word that is no option, such as ``-5%``, which argparse would read as an unknown option."""
        return super()._parse_optional(arg_string) if _OPTION.fullmatch(arg_string) else None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(action.choices)
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(
                None, f"there is no command {value!r}{did_you_mean(value, known) or ': ' + ', '.join(known)}"
            )
        raise argparse.ArgumentError(action, f"{value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}")

    def _needed(self, missing: re.Match[str]) -> str:
        """Returns the message for a missing argument, with its choices if there are few."""
        choices = next((a.choices for a in self._actions if a.dest == missing[1] and a.choices), None)
        return f"{missing[1]} is needed{': ' + ', '.join(choices) if choices else ''}"

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse's own method ignores an output that cannot be written

    def error(self, message: str) -> NoReturn:
        """Ends the process with one line: the mistake, and where to find help."""
        sentence = _OF_ARGUMENT.sub(r"\1: ", message)
        sentence = sentence.replace(": expected one argument", " needs a value")
        sentence = re.sub(r"^the following arguments are required: (.+)$", self._needed, sentence)
        sentence = re.sub(r"invalid int value: (.+)$", r"\1 is not a whole number", sentence)
        self.exit(
            Exit.USAGE, f"dra: {sentence}\n" if sentence.endswith("?") else f"dra: {sentence}; see {self.prog} --help\n"
        )


class Command(NamedTuple):
    """A command. ``target`` names the function that runs it as ``module:function`` in ``package``, and is imported when it runs."""

    help: str
    add_arguments: Callable[[Parser], None]
    target: str
    package: str
    driver_options: bool = False
    """Whether the command accepts, in addition to its own options, the options that a driver defines."""

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
    name: str, help: str, target: str, *, driver_options: bool = False, package: str | None = None
) -> Callable[[_Add], _Add]:
    """Adds a command. The decorated function adds the command's arguments to its parser.

    Args:
        name: the word, or two words, after ``dra``.
        help: a few words for the list of commands.
        target: ``module:function`` of the function that runs it, relative to ``package``.
        driver_options: whether it accepts the options that a driver defines too.
        package: by default, the package of the decorated function.
    """

    def add(add_arguments: _Add) -> _Add:
        home = package or add_arguments.__module__.rpartition(".")[0]
        COMMANDS[name] = Command(help, add_arguments, target, home, driver_options)
        return add_arguments

    return add


class _Formatter(argparse.HelpFormatter):
    """Sets the width of the terminal. Without it, argparse imports shutil and three compressors, even if no help is shown."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_columns() - 2)


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
