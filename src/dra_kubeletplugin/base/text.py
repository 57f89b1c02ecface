"""How sentences for people name many things, and the one that was meant."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

_LONGEST_NAME = 512  # that is looked for: whatever is longer is no misspelt one


def join_names(names: Iterable[str], most: int = 3) -> str:
    """``a, b, c and 7 more``."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def join_first(sentences: Sequence[str], between: str, most: int = 10, limit: int = 700) -> str:
    """The first of the sentences, ``most`` of them and as many as ``limit`` bytes hold, but one at least, and how many more there are."""
    sizes = itertools.accumulate(len(s.encode(errors="replace")) for s in sentences)
    told = max(1, sum(size <= limit for size in itertools.islice(sizes, most)))
    more = [f"and {len(sentences) - told} more"] if len(sentences) > told else []
    return between.join((*sentences[:told], *more))


def counted(number: int, one: str, many: str = "") -> str:
    """``1 node``, ``2 nodes``; ``many`` where it is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """``, did you mean 'x'?``, of the ``known`` names; or nothing."""
    if len(name) > _LONGEST_NAME:
        return ""
    import difflib  # for a mistake alone

    found = difflib.get_close_matches(name, list(known), 1, cutoff)
    return f", did you mean {found[0]!r}?" if found else ""
