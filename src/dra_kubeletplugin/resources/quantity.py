"""Kubernetes quantities: grammar, exact value, canonical form.

The grammar is the API server's, not the documentation's: `1K` is no quantity, `1e3` and `1E3` are, `.5` and `5.` are.
Values are exact to 1e-9 (n), rounded away from zero below that, as the server does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from functools import total_ordering

GRAMMAR = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_NUMBER = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?", re.ASCII)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_EXPONENT = {v: k for k, v in _DECIMAL.items()}
_NANO = Decimal("1e-9")
_MAX = 2**63 - 1
_FAST_DIGITS = 18


class QuantityError(ValueError):
    """Not a quantity, with the server's own words."""

    def __init__(self) -> None:
        super().__init__(f"quantities must match the regular expression '{GRAMMAR}'")


@total_ordering
@dataclass(frozen=True, eq=False)
class Quantity:
    """A number with a display format: ``binary`` (Ki), ``decimal`` (k) or ``exponent`` (e3).

    Two quantities are equal when their values are, whatever their format. ``text`` is how it was written, where the
    server keeps that (it does for numbers of up to 18 digits; see ``_keeps_text``).
    """

    value: Decimal
    format: str = "decimal"
    text: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: Quantity) -> bool:
        return bool(self.value < other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.text or canonical(self)

    @property
    def is_integer(self) -> bool:
        """Fits a signed 64-bit integer without loss."""
        return self.value == self.value.to_integral_value() and abs(self.value) <= _MAX

    def __int__(self) -> int:
        return int(self.value)


def parse(text: str) -> Quantity:
    """The quantity that ``text`` stands for.

    Raises :class:`QuantityError` where the API server would answer 400.
    """
    match = _NUMBER.match(text)
    if not match or not (match[2] or match[3]):
        raise QuantityError
    sign, whole, fraction = match[1], match[2], match[3] or ""
    suffix = text[match.end() :]
    with localcontext() as context:
        context.prec = 200
        number = Decimal(f"{sign}{whole or '0'}.{fraction or '0'}")
        if suffix in _DECIMAL:
            form, value = "decimal", number.scaleb(_DECIMAL[suffix])
        elif suffix in _BINARY:
            form, value = "binary", number * (1024 ** _BINARY.index(suffix))
        elif re.fullmatch(r"[eE][-+]?\d+", suffix, re.ASCII):
            exponent = int(suffix[1:])
            if abs(exponent) > 2**31:
                raise QuantityError
            form = "exponent"
            value = Decimal(0) if not number else number.scaleb(max(min(exponent, 150), -150))
        else:
            raise QuantityError
        if value % _NANO:
            value = value.quantize(_NANO, ROUND_CEILING if value > 0 else ROUND_FLOOR)
        kept = text if _keeps_text(whole, fraction, suffix, form) else ""
        return Quantity(value.normalize() if value else Decimal(0), form, kept)


def _keeps_text(whole: str, fraction: str, suffix: str, form: str) -> bool:
    """Whether the server's parser takes its fast path, which stores the text as it was sent."""
    digits = whole.lstrip("0") or "0"
    if form == "binary":
        exponent = 10 * _BINARY.index(suffix)
        if fraction or 15 - len(digits) - int(exponent * 3 / 10) - 1 < 0:
            return False
        return int(digits) << exponent <= _MAX
    exponent = _DECIMAL[suffix] if form == "decimal" else int(suffix[1:])
    return len(digits) + len(fraction) <= _FAST_DIGITS and exponent - len(fraction) >= -9


def canonical(quantity: Quantity) -> str:
    """The form that the API server stores: no fraction, the largest fitting suffix."""
    value = quantity.value
    if not value:
        return "0"
    if quantity.format == "binary" and value == value.to_integral_value() and abs(value) >= 1024:
        number, index = int(value), 0
        while number % 1024 == 0 and index < len(_BINARY) - 1:
            number //= 1024
            index += 1
        return f"{number}{_BINARY[index]}"
    exponent = -9
    with localcontext() as context:
        context.prec = 200
        number = int(value.scaleb(9))
    while number % 1000 == 0 and exponent < 18:
        number //= 1000
        exponent += 3
    if quantity.format == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_BY_EXPONENT[exponent]}"
