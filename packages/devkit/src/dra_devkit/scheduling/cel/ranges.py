"""Ranges of sizes and costs, for estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNBOUNDED = 2**64 - 1
WRAP = 2**64


@dataclass(frozen=True)
class Range:
    """Minimum and maximum of a size or cost. Sums and products are capped at 2^64 - 1."""

    least: int
    most: int

    def __add__(self, other: Range) -> Range:
        return Range(capped(self.least + other.least), capped(self.most + other.most))

    def __mul__(self, other: Range) -> Range:
        return Range(capped(self.least * other.least), capped(self.most * other.most))

    def __or__(self, other: Range) -> Range:
        return Range(min(self.least, other.least), max(self.most, other.most))

    def times(self, factor: float) -> Range:
        return Range(_scaled(self.least, factor), _scaled(self.most, factor))


def capped(value: int) -> int:
    return min(value, UNBOUNDED)


def _scaled(size: int, factor: float) -> int:
    product = float(size) * factor
    return UNBOUNDED if product >= float(WRAP) else capped(math.ceil(product))


def fixed(value: int) -> Range:
    return Range(value, value)


UNKNOWN = Range(0, UNBOUNDED)
ONE, NOTHING = fixed(1), fixed(0)
