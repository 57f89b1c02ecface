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
_NUMBERS = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", re.ASCII)
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*")
_MAX_COERCED = 64  # the maximum length of an attribute
_Precedence = tuple[int | bool | tuple[tuple[int, int, str], ...], ...]


class VersionError(ValueError):
    """The text is not a semantic version 2.0.0."""


@total_ordering
class Version(Immutable):
    """A semantic version, such as ``Version("1.2.3-rc.1+build")``. Compared by precedence, which ignores builds.

    Any text can be given, because drivers read versions from hardware. A text that is no semantic version, such as ``v1.2.3``, ``1.2`` or
    ``535.104.05``, is a fault of the device that has it as an attribute: this device is not published. :meth:`coerce` corrects such texts.

    The numbers, ``<`` and ``>`` raise :class:`VersionError` for such a text.
    """

    __slots__ = ("text",)
    text: str

    def __init__(self, text: object) -> None:
        self._set(str(text))

    @classmethod
    def coerce(cls, text: object) -> Version:
        """Returns the semantic version that is nearest to a version of hardware or firmware.

        The first numbers in the text become major, minor and patch. A missing number becomes 0. Leading zeros and the text before the
        numbers are left out. The rest stays as a pre-release (``-rc1``), or becomes the build, which comparisons ignore::

            Version.coerce("535.129.03")        # 535.129.3
            Version.coerce("6.19.14.31400000")  # 6.19.14+31400000
            Version.coerce("v2.10-rc1")         # 2.10.0-rc1

        A text without a number, and a semantic version, do not change. Raises nothing.
        """
        text = str(text)
        found = _NUMBERS.search(text)
        if found is None or is_semantic(text):
            return cls(text)
        numbers = ".".join((number or "").lstrip("0") or "0" for number in found.groups())
        rest = text[found.end() :].strip()
        if is_semantic(numbers + rest):
            return cls(numbers + rest)
        build = ".".join(_WORD.findall(rest))
        return cls(f"{numbers}+{build}"[:_MAX_COERCED].rstrip("+."))

    @property
    def major(self) -> int:
        return _parts(self.text)[0][0]

    @property
    def minor(self) -> int:
        return _parts(self.text)[0][1]

    @property
    def patch(self) -> int:
        return _parts(self.text)[0][2]

    def __eq__(self, other: object) -> bool:
        return _identity(self) == _identity(other) if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: Version) -> bool:
        return _precedence(self.text) < _precedence(other.text) if isinstance(other, Version) else NotImplemented

    def __hash__(self) -> int:
        return hash(_identity(self))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


def is_semantic(text: str) -> bool:
    """Returns whether the API server accepts ``text`` as a version. Numbers may have any length, although CEL reads only 64 bits."""
    return _VERSION.fullmatch(text) is not None


def _precedence(text: str) -> _Precedence:
    """Returns a key for comparisons. A release is higher than its pre-releases; numbers are lower than words."""
    numbers, pre = _parts(text)
    return (*numbers, not pre, tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in pre))


def _identity(version: Version) -> _Precedence | str:
    """Returns a key for equality, also of a text that is no version."""
    try:
        return _precedence(version.text)
    except VersionError:
        return version.text


def _parts(text: str) -> tuple[tuple[int, int, int], tuple[int | str, ...]]:
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
    return (int(match[1]), int(match[2]), int(match[3])), pre


def parse(text: str) -> Version:
    """Returns the version in ``text``. Raises :class:`VersionError` if it is no semantic version."""
    _parts(text)
    return Version(text)
