"""How sentences for people name many things."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[str], most: int = 3) -> str:
    """``a, b, c and 7 more``."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def counted(number: int, one: str, many: str = "") -> str:
    """``1 node``, ``2 nodes``; ``many`` where it is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
