"""Quantities as expressions compute with them: the value, and whether Kubernetes holds it as a scaled 64-bit number.

Only such a number can be an integer: `0.5Mi` and `1.0` are none, as they are held as a decimal and as 10 tenths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import total_ordering

from ...resources import quantity

_PARTS = re.compile(r"[+-]?0*(\d*)(?:\.(\d*))?(.*)", re.ASCII)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DIGITS, _LEAST_SCALE, _MAX = 18, -9, 2**63 - 1


@total_ordering
@dataclass(frozen=True, eq=False)
class Amount:
    """A quantity. ``scale`` is the power of ten of the number that holds it, None for a decimal."""

    value: Decimal
    scale: int | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and self.value == other.value

    def __lt__(self, other: Amount) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    @property
    def integer(self) -> int | None:
        """The value, where Kubernetes takes it for a 64-bit integer."""
        whole = self.scale is not None and self.scale >= 0 and abs(self.value) <= _MAX
        return int(self.value) if whole else None

    def plus(self, other: Amount) -> Amount:
        total = self.value + other.value
        if not other.value:
            return Amount(total, self.scale)
        if not self.value:
            return Amount(total, other.scale)
        if self.scale is None or other.scale is None:
            return Amount(total, None)
        scale = min(self.scale, other.scale)
        fits = all(abs(v.scaleb(-scale)) <= _MAX for v in (self.value, other.value, total))
        return Amount(total, scale if fits else None)

    def __neg__(self) -> Amount:
        return Amount(-self.value, self.scale)


def parse(text: str) -> Amount:
    """The quantity that ``text`` stands for.

    Raises :class:`QuantityError` where the API server would refuse it.
    """
    value = quantity.parse(text).value
    match = _PARTS.fullmatch(text)
    return Amount(value, _scale(match[1] or "0", match[2] or "", match[3]) if match else None)


def _scale(whole: str, fraction: str, suffix: str) -> int | None:
    """The scale that Kubernetes' parser gives a number that it can hold in 64 bits."""
    if suffix in _BINARY[1:]:
        exponent = 10 * _BINARY.index(suffix)
        # So many digits are left for the number itself.
        if fraction or 15 - len(whole) - int(exponent * 3 / 10) - 1 < 0:
            return None
        return 0 if int(whole) << exponent <= _MAX else None
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    scale = exponent - len(fraction)
    return scale if len(whole) + len(fraction) <= _DIGITS and scale >= _LEAST_SCALE else None
