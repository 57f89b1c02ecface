"""The grammar of the command line: words in any order, one sentence for a mistake, and for a misspelt name the nearest name."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

from ...base.text import did_you_mean
from .exit_codes import Exit

_OPTION = re.compile(r"--.+|-[a-zA-Z].*", re.DOTALL)
_OF_ARGUMENT = re.compile(r"^argument (.+?): ", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """The parser of the command line, and of each subcommand.

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

    # argparse calls this method for subcommands.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if self.commands:
            return super().parse_known_args(command_first(words, self.commands, self), namespace)
        namespace, rest = super().parse_known_args(self._options_first(words), namespace)
        if rest:  # all known options were moved to the front
            self.error(f"{next((word for word in rest if word != '--'), '--')!r} is an unexpected argument")
        return namespace, rest

    def _options_first(self, words: Sequence[str]) -> list[str]:
        """Moves options before positional words, because argparse assigns all positional arguments when it meets the first one."""
        options: list[str] = []
        others: list[str] = []
        for part in _read(self, words):
            if isinstance(part, str):
                others.append(part)
                continue
            if not part.known:
                self.error(self._unknown(part.word))
            if part.wants and part.value is None:
                # Without this check, a word from another position would become the value of the option.
                self.error(f"{part.word} needs a value")
            options += [part.word] if part.value is None else [part.word, part.value]
        dashed = any(word.startswith("-") and word != "-" for word in others)
        return [*options, *(["--"] if dashed else []), *others]

    def _unknown(self, word: str) -> str:
        option = word.partition("=")[0]
        return f"there is no option {option}{did_you_mean(option, self._option_string_actions)}"

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


def command_first(words: Sequence[str], commands: Mapping[str, Parser], above: Parser | None = None) -> list[str]:
    """Returns ``words`` with the command moved to the front, if only options of this command precede it.

    If an option of the parser ``above`` precedes the command, returns ``words`` unchanged.
    """
    for i, word in enumerate(words):
        command = commands.get(word)
        if command is not None and _are_options(words[:i], command):
            return [word, *words[:i], *words[i + 1 :]]
        if word == "--" or (above is not None and _OPTION.fullmatch(word) and above.known(word)):
            break
    return list(words)


def classify_words(parser: Parser, words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns unknown options, positional words, and words that may be values of the unknown options."""
    unknown: list[str] = []
    others: list[str] = []
    candidates: list[str] = []
    into = others
    for part in _read(parser, words):
        if isinstance(part, str):
            into.append(part)
            into = others
        elif not part.known:
            unknown.append(part.word.partition("=")[0])
            into = others if "=" in part.word else candidates
    return unknown, others, candidates


class _Option(NamedTuple):
    """An option on a command line.

    ``wants``: whether the option needs a value. ``value`` is the next word; None if the option needs no value or no value follows.
    """

    word: str
    known: bool
    wants: bool
    value: str | None


def _read(parser: Parser, words: Sequence[str]) -> Iterator[_Option | str]:
    """Yields the options and positional words of a command line in order. All words after ``--`` are positional."""
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word == "--":
            yield from rest
            return
        if not _OPTION.fullmatch(word):
            yield word
            continue
        wants = _wants_value(parser, word)
        there = wants and rest and rest[0] != "--" and not _OPTION.fullmatch(rest[0])
        yield _Option(word, _action(parser, word) is not None, wants, rest.popleft() if there else None)


def _are_options(words: Iterable[str], parser: Parser) -> bool:
    value = False  # whether the next word is a value
    for word in words:
        if value:
            value = False
        elif _OPTION.fullmatch(word) and _action(parser, word) is not None:
            value = _wants_value(parser, word)
        else:
            return False
    return not value


def _action(parser: Parser, word: str) -> argparse.Action | None:
    """Returns the action for ``--flag``, ``--flag=value``, ``-f`` and ``-fvalue``."""
    return parser.known(word.partition("=")[0]) or (None if word.startswith("--") else parser.known(word[:2]))


def _wants_value(parser: Parser, word: str) -> bool:
    action = parser.known(word)
    return action is not None and action.nargs != 0


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
