"""Semantic versions 2.0.0, to the rules of the library that Kubernetes uses: numbers fit 64 bits, builds do not compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, total_ordering
from typing import Any

_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_MAX = 2**64 - 1


class VersionError(ValueError):
    """Not a semantic version 2.0.0."""


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()
    build: str = ""

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        # A release sorts after its pre-releases; numbers sort before words.
        pre = tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, pre)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return bool(self._key < other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        pre = "-" + ".".join(map(str, self.pre)) if self.pre else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}{'+' + self.build if self.build else ''}"


def parse(text: str) -> Version:
    """The version that ``text`` stands for.

    Raises :class:`VersionError`: `v1.2.3`, `1.2` and `535.104.05` are no semantic versions.
    """
    match = _VERSION.fullmatch(text)
    if not match:
        elements = text.split(".", 2)
        if len(elements) != 3:
            raise VersionError("No Major.Minor.Patch elements found")
        raise VersionError(f"{text!r} must be a string compatible with semver.org spec 2.0.0")
    numbers = [int(match[i]) for i in (1, 2, 3)]
    pre = tuple(int(p) if p.isdigit() else p for p in match[4].split(".")) if match[4] else ()
    if any(n > _MAX for n in (*numbers, *(p for p in pre if isinstance(p, int)))):
        raise VersionError(f"{text!r} has a number that exceeds 64 bits")
    return Version(numbers[0], numbers[1], numbers[2], pre, match[5] or "")


def parse_tolerant(text: str) -> Version:
    """Like :func:`parse`, after a trim, without a leading v, leading zeros removed, missing parts zero."""
    parts = [_unpad(p) for p in text.strip().removeprefix("v").split(".", 2)]
    if len(parts) < 3:
        if any(c in parts[-1] for c in "+-"):
            raise VersionError("Short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return parse(".".join(parts))


def _unpad(part: str) -> str:
    stripped = part.lstrip("0") if len(part) > 1 else part
    return stripped if stripped[:1].isdigit() else "0" * (len(part) > 1) + stripped
