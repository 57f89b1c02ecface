"""How soon to answer somebody who undoes our work: at once when it is an accident, ever more slowly when it is another writer."""

from __future__ import annotations

from enum import Enum

_FIRST = 5.0  # seconds from a write of ours to the next, when the one between was another's; doubles
_LONGEST = 60.0
_ACCIDENTS = 3  # deletions in a row that are made good at once
_CALM = 120.0  # seconds after which it is no row any more


class WriterConflict(Enum):
    """What became of what we wrote."""

    MISSING = "slices were deleted"
    CHANGED = "slices were changed or added"


class ConflictBackoff:
    """Counts how often our slices were undone. Times are those of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._written = float("-inf")

    def delay(self, undone: WriterConflict, now: float) -> float:
        """Seconds to wait before the answer."""
        if now - self._written > _CALM:
            self.count = 0
        paid = self.count - (_ACCIDENTS if undone is WriterConflict.MISSING else 0)
        if paid < 0:
            return 0.0
        pause: float = min(_LONGEST, _FIRST * 2 ** min(paid, 10))
        return max(0.0, self._written + pause - now)

    def forgive(self) -> None:
        """Forgets what was undone so far: a known cause explains it."""
        self.count = 0

    def written(self, now: float, *, answer: bool) -> None:
        """We wrote; as an ``answer``, or because our own devices changed."""
        self.count += answer
        self._written = now
