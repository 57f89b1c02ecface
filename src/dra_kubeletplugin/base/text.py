"""Wording of messages: lists of names and their order, counts, ages, and suggestions for misspelt names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

_MAX_NAME = 512  # a longer name is not checked for misspelling
_PARTS = re.compile(r"[0-9][0-9a-f]*|[a-z]+|[^0-9a-z]+")


@lru_cache(1 << 14)  # `dra top` sorts the names of all nodes each time that the cluster changes
def natural(text: str) -> tuple[tuple[bool, int, str], ...]:
    """Returns the sort key of every list of names that people read.

    With it ``gpu-10`` comes after ``gpu-9``, and the PCI address ``0b:00.0`` between ``07:00.0`` and ``13:00.0``.
    """
    found = []
    for part in _PARTS.findall(text.lower()):
        if part.isdecimal():
            part = part.lstrip("0") or "0"
        number = part[0].isdecimal()
        found.append((not number, len(part) if number else 0, part))
    return tuple(found)


def join_names(names: Iterable[str], most: int = 3) -> str:
    """Returns ``a, b, c and 7 more``."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def names_by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Groups names that have the same reason. The names of a group are in natural order, and groups in the order of their first name."""
    out: dict[str, list[str]] = {}
    for name in sorted(reasons, key=natural):
        out.setdefault(reasons[name], []).append(name)
    return out


def join_first(sentences: Sequence[str], between: str, most: int = 10, limit: int = 700) -> str:
    """Joins the first sentences: at least one, at most ``most``, at most ``limit`` bytes. Appends the number of omitted sentences."""
    sizes = itertools.accumulate(len(s.encode(errors="replace")) for s in sentences)
    fitting = max(1, sum(size <= limit for size in itertools.islice(sizes, most)))
    more = [f"and {len(sentences) - fitting} more"] if len(sentences) > fitting else []
    return between.join((*sentences[:fitting], *more))


def counted(number: int, one: str, many: str = "") -> str:
    """Returns ``1 node``, ``2 nodes``; ``many`` is the plural if it is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns ``, did you mean 'x'?`` with the nearest ``known`` name; empty if no name is near."""
    if len(name) > _MAX_NAME:
        return ""
    import difflib  # only needed for a mistake

    found = difflib.get_close_matches(name, list(known), 1, cutoff)
    return f", did you mean {found[0]!r}?" if found else ""


def duration(seconds: float) -> str:
    """Formats an age in seconds: ``42s``, ``17m``, ``3h``, ``9d``. kubectl shows two units for some ages, such as `3m20s`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
