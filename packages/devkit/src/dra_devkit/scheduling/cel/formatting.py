"""The function ``format``: parses format strings, and formats values for their clauses.

Numbers are formatted as in American English.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .values import CelError, Duration, Timestamp, Type, is_number, show_scalar, type_of

_KINDS = "sdfebxXo"
SHOWN = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
"""The values that a string clause can show, in messages."""
_DIGITS = 6  # decimal places of a clause without precision
_PRECISION_DIGITS = 18  # Go parses the precision as a 64-bit integer
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_POWER_OF_TEN = "\u202f\u00d7\u202f10"  # as in American English, between narrow spaces
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class FormatError(ValueError):
    """An invalid format string; the text names the position of the error."""


@dataclass(frozen=True)
class Clause:
    """A placeholder for one argument: ``%.2f`` is kind f with precision 2."""

    kind: str
    precision: int | None


def clauses(template: str) -> Iterator[str | Clause]:
    """Yields the parts of a format string: text and placeholders.

    Raises :class:`FormatError` at a malformed part.
    """
    i = 0
    while i < len(template):
        start = template.find("%", i)
        if start < 0:
            yield template[i:]
            return
        if start > i:
            yield template[i:start]
        if template[start + 1 : start + 2] == "%":
            yield "%"
            i = start + 2
            continue
        kind, precision, i = _clause(template, start + 1)
        yield Clause(kind, precision)


def _clause(template: str, i: int) -> tuple[str, int | None, int]:
    if i >= len(template):
        raise FormatError("unexpected end of string")
    precision = None
    if template[i] == ".":
        end = i + 1
        while end < len(template) and template[end] in "0123456789":
            end += 1
        if end == len(template):
            raise FormatError("could not parse formatting clause: could not find end of precision specifier")
        if end == i + 1:
            raise FormatError("could not parse formatting clause: error while parsing precision: no digits")
        if end - i > _PRECISION_DIGITS:
            raise FormatError("could not parse formatting clause: error while parsing precision: value out of range")
        precision, i = int(template[i + 1 : end]), end
    if template[i] not in _KINDS:
        raise FormatError(f'could not parse formatting clause: unrecognized formatting clause "{template[i]}"')
    return template[i], precision, i + 1


def render(template: str, values: Sequence[Any]) -> str:
    """Returns the template with its arguments inserted.

    Raises :class:`CelError` when an argument is missing or of the wrong kind.
    """
    out: list[str] = []
    used = 0
    try:
        for part in clauses(template):
            if isinstance(part, str):
                out.append(part)
                continue
            if used >= len(values):
                raise CelError(f"index {used} out of range")
            out.append(_RENDER[part.kind](values[used], part.precision))
            used += 1
    except FormatError as e:
        raise CelError(str(e)) from None
    return "".join(out)


def _type_error(word: str, listed: str, v: Any) -> CelError:
    return CelError(f"error during formatting: {word} clause can only be used on {listed}, was given {type_of(v)}")


def _integer(v: Any, word: str) -> int:
    if isinstance(v, bool) or not isinstance(v, int):
        raise _type_error(word, "integers", v)
    return int(v)


def _float(v: Any, word: str) -> float:
    if isinstance(v, str) and v in _NON_FINITE:
        return _NON_FINITE[v]
    if not isinstance(v, float):
        raise _type_error(word, "doubles", v)
    return v


def _non_finite(v: float) -> str:
    return "NaN" if math.isnan(v) else "-∞" if v < 0 else "∞"


def _fixed(v: Any, precision: int | None) -> str:
    number = _float(v, "fixed-point")
    return (
        f"{number:,.{_DIGITS if precision is None else precision}f}" if math.isfinite(number) else _non_finite(number)
    )


def _scientific(v: Any, precision: int | None) -> str:
    number = _float(v, "scientific")
    if not math.isfinite(number):
        return _non_finite(number)
    mantissa, _, exponent = f"{number:.{_DIGITS if precision is None else precision}e}".partition("e")
    return f"{mantissa}{_POWER_OF_TEN}{exponent.replace('+', '').translate(_RAISED)}"


def _binary(v: Any, precision: int | None) -> str:
    return str(int(v)) if isinstance(v, bool) else f"{_integer(v, 'binary'):b}"


def _hex(v: Any, precision: int | None) -> str:
    if isinstance(v, (str, bytes)):
        return (v.encode() if isinstance(v, str) else v).hex()
    return f"{_integer(v, 'hex'):x}"


_RENDER: dict[str, Callable[[Any, int | None], str]] = {
    "s": lambda v, _: show(v),
    "d": lambda v, _: str(_integer(v, "decimal")),
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": lambda v, _: f"{_integer(v, 'octal'):o}",
    "x": _hex,
    "X": lambda v, _: _hex(v, None).upper(),
}


def show(v: Any) -> str:
    """Formats a value for the string clause."""
    if isinstance(v, list):
        return "[" + ", ".join(_quoted(x) for x in v) + "]"
    if isinstance(v, dict):
        shown = sorted((show(k), _quoted(k), _quoted(x)) for k, x in v.items())
        return "{" + ", ".join(f"{key}: {value}" for _, key, value in shown) + "}"
    if v is None:
        return "null"
    if isinstance(v, (bool, str, bytes, Type, Timestamp, Duration)) or is_number(v):
        return show_scalar(v)
    raise _type_error("string", SHOWN, v)


def _quoted(v: Any) -> str:
    text = show(v)
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
    if isinstance(v, str) or (isinstance(v, float) and not math.isfinite(v)):
        return quoted
    if isinstance(v, bytes):
        return "b" + quoted
    if isinstance(v, Timestamp):
        return f"timestamp({quoted})"
    return f"duration({quoted})" if isinstance(v, Duration) else text
