"""How sentences for people name many things, and the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST_NAME = 512  # that is looked for: whatever is longer is no misspelt one


def listed(names: Iterable[str], most: int = 3) -> str:
    """``a, b, c and 7 more``."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def counted(number: int, one: str, many: str = "") -> str:
    """``1 node``, ``2 nodes``; ``many`` where it is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def near(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """``, did you mean 'x'?``, of the ``known`` names; or nothing."""
    if len(name) > _LONGEST_NAME:
        return ""
    import difflib  # for a mistake alone

    found = difflib.get_close_matches(name, list(known), 1, cutoff)
    return f", did you mean {found[0]!r}?" if found else ""
