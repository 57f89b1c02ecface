"""If another writer changed the publisher's slices, computes how long to wait before they are written again.

The first three deletions are repaired at once, because they may be accidents. After that, the pause doubles with each conflict, up to
60 s. The plugin always writes its slices again. Another instance of the same plugin is no conflict: see `leadership.py`.
"""

from __future__ import annotations

from enum import Enum

from ...base.backoff import Backoff

_FIRST = 5.0  # seconds from the publisher's last write to the first delayed write
_LONGEST = 60.0  # seconds; the pause stops doubling here
_ACCIDENTS = 3  # consecutive deletions that are repaired at once
_RESET_AFTER = 120.0  # the count restarts if the publisher has not written for this number of seconds


class WriterConflict(Enum):
    """The change that another writer made to the publisher's slices."""

    MISSING = "slices were deleted"
    CHANGED = "slices were changed or added"


class ConflictBackoff:
    """Counts how often another writer changed the publisher's slices. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.count = 0
        self._written = float("-inf")

    def delay(self, conflict: WriterConflict, now: float) -> float:
        """Returns the seconds to wait before the slices are written again."""
        if now - self._written > _RESET_AFTER:
            self.count = 0
        accidents = _ACCIDENTS if conflict is WriterConflict.MISSING else 0
        pause = Backoff(_FIRST, _LONGEST, failures=self.count + 1 - accidents).delay()
        return max(0.0, self._written + pause - now)

    def reset(self) -> None:
        """Forgets the conflicts so far, because a known cause explains them."""
        self.count = 0

    def written(self, now: float, *, is_repair: bool) -> None:
        """Records a write at ``now``. ``is_repair`` is False if the write published a change of the devices."""
        self.count += is_repair
        self._written = now
