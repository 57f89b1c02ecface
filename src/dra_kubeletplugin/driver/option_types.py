"""The types that a driver's option may have, and the parser of each.

A parser raises ``ValueError`` with the end of the sentence "FLAG TEXT is ...", as in :mod:`..settings.values`.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ..base.settings.values import OFF, ON, as_text, read_flag
from ..base.text import did_you_mean
from ..errors import printable

PLAIN_TYPES = (str, int, float, bool, Path)
TYPE_NAMES = "str, int, float, bool, Path, an Enum, a Literal or tuple[str, ...], each with `| None` or without"
_INT = r"[+-]?([0-9]{1,18}|0x[0-9a-fA-F]{1,15})"
_FLOAT = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_FLAG = "|".join("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in (*ON, *OFF))


@dataclass(frozen=True)
class OptionType:
    """One type of options.

    Attributes:
        read: parses a text.
        holds: whether a value has this type.
        wrong: the end of the sentence "VALUE is ..." for a value of another type.
        metavar: placeholder for a text in ``--help``.
        form: the form of its texts: a regular expression with one meaning in Python, Go and JSON Schema, or all allowed texts.
    """

    read: Callable[[str], Any]
    holds: Callable[[object], bool]
    wrong: str
    metavar: str = ""
    form: str | tuple[str, ...] | None = None


def option_type(hint: Any) -> OptionType:
    """Returns the option type of an annotation. Raises ``ValueError`` with the end of the sentence "FIELD is ..."."""
    if get_origin(hint) in {Union, types.UnionType}:
        inner = [one for one in get_args(hint) if one is not type(None)]
        if len(inner) == 1:
            of = option_type(inner[0])
            return OptionType(of.read, lambda value: value is None or of.holds(value), of.wrong, of.metavar, of.form)
    elif hint in _PLAIN:
        return _PLAIN[hint]
    elif get_origin(hint) is tuple and get_args(hint) == (str, ...):
        return OptionType(_read_items, _are_items, "not a tuple of strings", "A,B")
    elif get_origin(hint) is Literal:
        return _one_of(get_args(hint))
    elif isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of(hint)
    name = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
    raise ValueError(f"of type {printable(name)}, which has no command-line form: use {TYPE_NAMES}")


def _one_of(values: Iterable[object]) -> OptionType:
    by_text = {as_text(value): value for value in values}
    listed = ", ".join(by_text)

    def read(text: str) -> object:
        if text not in by_text:
            raise ValueError(f"not one of {listed}{did_you_mean(text, by_text)}")
        return by_text[text]

    known = [(type(value), value) for value in by_text.values()]
    return OptionType(
        read, lambda value: (type(value), value) in known, f"not one of {listed}", "|".join(by_text), tuple(by_text)
    )


def _read_int(text: str) -> int:
    if not re.fullmatch(_INT, text):
        raise ValueError("not a whole number such as 4 or 0x10ee")
    return int(text, 16 if "0x" in text else 10)


def _read_float(text: str) -> float:
    value = float(text) if re.fullmatch(_FLOAT, text) else math.nan
    if not math.isfinite(value):
        raise ValueError("not a number such as 2.5")
    return value


def _read_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("not a path such as /run/npu")
    return Path(text)


def _read_items(text: str) -> tuple[str, ...]:
    return tuple(item for part in text.split(",") if (item := part.strip()))


def _are_items(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_PLAIN: dict[Any, OptionType] = {
    str: OptionType(str, lambda v: isinstance(v, str), "not text"),
    int: OptionType(
        _read_int, lambda v: isinstance(v, int) and not isinstance(v, bool), "not a whole number", form=_INT
    ),
    float: OptionType(_read_float, _is_number, "not a number", form=_FLOAT),
    bool: OptionType(read_flag, lambda v: isinstance(v, bool), "neither True nor False", form=_FLAG),
    Path: OptionType(_read_path, lambda v: isinstance(v, Path), "not a Path"),
}
