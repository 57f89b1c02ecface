"""A mapping with a limited number of entries."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """Keeps the ``limit`` entries that were put last. Add entries only with :meth:`put`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: K, value: V) -> V | None:
        """Adds an entry, or moves it to the end. Returns the value of an entry that was removed because of the limit."""
        self.pop(key, None)
        self[key] = value
        return self.pop(next(iter(self))) if len(self) > self._limit else None
