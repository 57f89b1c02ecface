"""Semantic versions 2.0.0, with the rules of Kubernetes' library: numbers fit into 64 bits, builds are not compared."""

from __future__ import annotations

import re
from functools import total_ordering

from .immutable import Immutable

# Regular expressions of other languages contain this pattern too; there, \d matches ASCII digits only.
PATTERN = (
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_VERSION = re.compile(PATTERN, re.ASCII)
_MAX = 2**64 - 1
_MAX_DIGITS = len(str(_MAX))


class VersionError(ValueError):
    """The text is not a semantic version 2.0.0."""


@total_ordering
class Version(Immutable):
    """A semantic version, such as ``Version("1.2.3-rc.1+build")``. Compared by precedence, which ignores builds.

    Raises :class:`VersionError` for other text, including ``v1.2.3``, ``1.2`` and ``535.104.05``.
    """

    __slots__ = ("major", "minor", "patch", "pre", "build", "_key")  # noqa: RUF023 - the order of the arguments of _set

    _key: tuple[int | bool | tuple[tuple[int, int, str], ...], ...]
    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...]
    build: str

    def __init__(self, text: str | Version) -> None:
        if not isinstance(text, (str, Version)):
            raise TypeError(f"{text!r} is not a version: use text such as '1.2.3'")
        numbers, pre, build = _parts(str(text))
        # A release is higher than its pre-releases; numbers are lower than words.
        key = (*numbers, not pre, tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in pre))
        self._set(*numbers, pre, build, key)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key if isinstance(other, Version) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        pre = "-" + ".".join(map(str, self.pre)) if self.pre else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}{'+' + self.build if self.build else ''}"

    def __repr__(self) -> str:
        return f"Version({str(self)!r})"


def is_semantic(text: str) -> bool:
    """Returns whether the API server accepts ``text`` as a version. Numbers may have any length, although CEL reads only 64 bits."""
    return _VERSION.fullmatch(text) is not None


def _parts(text: str) -> tuple[tuple[int, int, int], tuple[int | str, ...], str]:
    match = _VERSION.fullmatch(text)
    if not match:
        if len(text.split(".", 2)) != 3:
            raise VersionError(f"{text!r} is not a version (No Major.Minor.Patch elements found): write it as 1.2.3")
        raise VersionError(f"{text!r} must be a string compatible with semver.org spec 2.0.0, such as 1.2.3-rc.1")
    words = match[4].split(".") if match[4] else []
    digits = [match[1], match[2], match[3], *filter(str.isdigit, words)]
    if any(len(d) > _MAX_DIGITS or int(d) > _MAX for d in digits):
        raise VersionError(f"{text!r} has a number that exceeds 64 bits, which no selector could read")
    pre = tuple(int(w) if w.isdigit() else w for w in words)
    return (int(match[1]), int(match[2]), int(match[3])), pre, match[5] or ""


def parse(text: str) -> Version:
    """Returns the version in ``text``. Raises :class:`VersionError`."""
    return Version(text)


def parse_tolerant(text: str) -> Version:
    """Parses like :func:`parse`, after trimming and removing a leading v and leading zeros; missing parts are zero."""
    parts = [_unpad(p) for p in text.strip().removeprefix("v").split(".", 2)]
    if len(parts) < 3:
        if any(c in parts[-1] for c in "+-"):
            raise VersionError("Short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return parse(".".join(parts))


def _unpad(part: str) -> str:
    stripped = part.lstrip("0") if len(part) > 1 else part
    return stripped if stripped[:1].isdigit() else "0" * (len(part) > 1) + stripped
