"""Prints a command's result: as text, or for programs as one document with all fields of the result's type.

Field names are lowerCamelCase, and empty fields are included. Keys of mappings (names of nodes, attributes) are unchanged.
Unprintable characters become U+FFFD.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TextIO, TypeVar

from ...base.terminal import on_one_line
from ...errors import printable

A = TypeVar("A")
TEXT = "text"
FORMS = (TEXT, "json", "yaml")


def add_output(parser: argparse.ArgumentParser, default: str = TEXT) -> None:
    """Adds the option ``-o``. ``default`` is ``text``, or ``json`` for a command without text output."""
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMS if default == TEXT else FORMS[1:],
        default=default,
        help=f"format of the result ({default}); json and yaml contain all fields, for programs",
    )


def has_colours(stream: TextIO) -> bool:
    """Returns whether the stream is a terminal with colours, and the user wants them. Source: no-color.org."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"} and "NO_COLOR" not in os.environ


def camel(name: str) -> str:
    """Converts ``device_class`` to ``deviceClass``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def document(value: object) -> Any:
    """Converts dataclasses, enumerations, mappings and sequences to types of JSON and YAML, and all other objects to text."""
    if is_dataclass(value):
        return {camel(f.name): document(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return document(value.value)
    if isinstance(value, Mapping):
        return {printable(key): document(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [document(item) for item in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return printable(value)


def encoded(value: object, form: str, *, unicode: bool = True) -> str:
    """Encodes the result; ``form`` is json or yaml. Without ``unicode``, the document is ASCII with the same content."""
    plain = document(value)
    if form == "json":
        return json.dumps(plain, indent=2, ensure_ascii=not unicode) + "\n"
    from ...base.yaml import dump  # imported here, because the other forms need no YAML

    return dump(plain, width=120, unicode=unicode)


def put(value: A, form: str, text: Callable[[A], Iterable[str]]) -> None:
    """Writes the result to standard output.

    Args:
        text: returns the lines of the form ``text``. Its argument is the result with every string printable and on one line: users
            and other drivers wrote most strings, and a terminal would execute their control characters.
    """
    if form == TEXT:
        print("\n".join(text(on_lines(value))))
    else:
        write(value, form)


def write(value: object, form: str) -> None:
    """Writes the result to standard output as a document; ``form`` is json or yaml."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(encoded(value, form, unicode=unicode), end="")


def on_lines(value: Any) -> Any:
    """Returns ``value`` with every text printable and on one line: in fields of dataclasses, mappings, lists and tuples.

    Unchanged parts are not copied: an overview of a large cluster has a million texts.
    """
    if isinstance(value, str):
        return value if isinstance(value, Enum) else on_one_line(value)
    if isinstance(value, tuple | list):
        items = [on_lines(v) for v in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if isinstance(value, Mapping):
        pairs = [(on_lines(k), on_lines(v)) for k, v in value.items()]
        same = all(k is key and v is inner for (k, v), (key, inner) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for name in _fields(type(value)):
            before = getattr(value, name)
            if (after := on_lines(before)) is not before:
                changed[name] = after
        return replace(value, **changed) if changed else value
    return value


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.init)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats a table whose first row is the head. An empty cell is shown as a dash."""
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join((c or "-").ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
