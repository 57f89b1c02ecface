"""What a command answers, for programs: one document on standard output, with the fields of the answer's type.

Names of fields are lowerCamelCase, and a field is there also where it is empty. Keys of mappings (names of nodes, attributes)
stay as they are. What cannot be printed is U+FFFD.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from ...base.terminal import on_one_line
from ...errors import printable

A = TypeVar("A")
TEXT = "text"
FORMS = (TEXT, "json", "yaml")


def add_output(parser: argparse.ArgumentParser, default: str = TEXT) -> None:
    """``-o``; ``default`` is ``text``, which is for people, or the form that a command without text has."""
    parser.add_argument(
        "-o", "--output", choices=FORMS if default == TEXT else FORMS[1:], default=default,
        help=f"how the answer is written ({default}); json and yaml have all of it, for programs",
    )  # fmt: skip


def camel(name: str) -> str:
    """``device_class`` as ``deviceClass``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def document(answer: object) -> Any:
    """What JSON and YAML know, of dataclasses, enumerations, mappings and sequences; text of anything else."""
    if is_dataclass(answer):
        return {camel(f.name): document(getattr(answer, f.name)) for f in fields(answer)}
    if isinstance(answer, Enum):
        return document(answer.value)
    if isinstance(answer, Mapping):
        return {printable(key): document(value) for key, value in answer.items()}
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        return [document(value) for value in answer]
    if answer is None or isinstance(answer, int) or (isinstance(answer, float) and math.isfinite(answer)):
        return answer
    return printable(answer)


def encoded(answer: object, form: str, *, unicode: bool = True) -> str:
    """``form`` is json or yaml; without ``unicode`` only ASCII comes out, which says the same."""
    plain = document(answer)
    if form == "json":
        return json.dumps(plain, indent=2, ensure_ascii=not unicode) + "\n"
    import yaml  # for those who ask for it

    from ...base.yaml.loader import Dumper

    shown: str = yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=unicode, width=120)
    return shown


def put(answer: A, form: str, text: Callable[[A], Iterable[str]]) -> None:
    """Writes the answer to standard output.

    Args:
        text: makes the lines for people from the answer, in which every text is printable and on one line: most of it was written by
            users or other drivers, and a terminal would obey its control characters.
    """
    if form == TEXT:
        print("\n".join(text(on_lines(answer))))
    else:
        write(answer, form)


def write(answer: object, form: str) -> None:
    """The document, and nothing else, on standard output."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(encoded(answer, form, unicode=unicode), end="")


def on_lines(value: A) -> A:
    """``value`` with every text printable and on one line: in fields of dataclasses, mappings, lists and tuples.

    Parts that are so already are not copied: an overview of a large cluster has a million texts.
    """
    return _on_lines(value)  # type: ignore[no-any-return]


def _on_lines(value: Any) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else on_one_line(value)
    if isinstance(value, tuple | list):
        items = [_on_lines(v) for v in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if isinstance(value, Mapping):
        pairs = [(_on_lines(k), _on_lines(v)) for k, v in value.items()]
        same = all(k is key and v is inner for (k, v), (key, inner) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for name in _fields(type(value)):
            before = getattr(value, name)
            if (after := _on_lines(before)) is not before:
                changed[name] = after
        return replace(value, **changed) if changed else value
    return value


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.init)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; the first row is its head. An empty cell is a dash."""
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join((c or "-").ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
