"""Objects and their history: one counter of versions for all, watches that start at any recent version."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]
HISTORY = 4096  # events that a watch can go back


class ExpiredError(Exception):
    """The version is too old, or from another life of this server (410)."""


@dataclass(frozen=True)
class Change:
    version: int
    type: str  # ADDED, MODIFIED, DELETED
    kind: str  # key of the kind
    object: JSON  # as stored after the change; for DELETED as it was last
    before: JSON | None


class Storage:
    """In memory. Objects that come out are shared and must not be changed; those that go in are kept as they are."""

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[str, dict[tuple[str, str], JSON]] = {}
        self._history: deque[Change] = deque(maxlen=HISTORY)
        self._oldest = 1  # watches may start at this version or later
        self._woken = asyncio.Event()
        self.cut = 0  # counts up whenever all watches are to end

    def get(self, kind: str, namespace: str, name: str) -> JSON | None:
        return self._objects.get(kind, {}).get((namespace, name))

    def list(self, kind: str, namespace: str = "") -> list[JSON]:
        """Objects of a kind, of one namespace or of all, by name."""
        found = self._objects.get(kind, {})
        return [o for (ns, _), o in sorted(found.items()) if not namespace or ns == namespace]

    def put(self, kind: str, obj: JSON, *, fresh: bool = False) -> JSON:
        """Creates or replaces; gives it the next version. ``fresh``: nobody else has the object, so it need not be copied."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        before = self._objects.setdefault(kind, {}).get(key)
        self.version += 1
        stored = {**obj, "metadata": dict(meta)} if fresh else copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(self.version)
        self._objects[kind][key] = stored
        self._record(Change(self.version, "MODIFIED" if before else "ADDED", kind, stored, before))
        return stored

    def remove(self, kind: str, namespace: str, name: str) -> JSON | None:
        before = self._objects.get(kind, {}).pop((namespace, name), None)
        if before is None:
            return None
        self.version += 1
        last = copy.deepcopy(before)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._record(Change(self.version, "DELETED", kind, last, before))
        return last

    def _record(self, change: Change) -> None:
        if len(self._history) == HISTORY:
            self._oldest = self._history[0].version
        self._history.append(change)
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken = asyncio.Event()

    def cut_watches(self) -> None:
        self.cut += 1
        self._wake()

    def forget_history(self) -> None:
        """As etcd's compaction: versions of before are too old for a watch now."""
        self._history.clear()
        self._oldest = self.version

    async def watch(self, kind: str, since: int, matches: Callable[[Mapping[str, Any]], bool]) -> AsyncIterator[Change]:
        """Changes after ``since``; an object that begins or ceases to match comes and goes.

        Ends when watches are cut. Raises :class:`ExpiredError`.
        """
        if since < self._oldest or since > self.version:
            raise ExpiredError
        cut = self.cut
        while True:
            woken = self._woken
            for change in [c for c in self._history if c.version > since]:
                since = change.version
                if change.kind != kind:
                    continue
                now = change.type != "DELETED" and matches(change.object)
                was = change.before is not None and matches(change.before)
                if now:
                    yield Change(change.version, "MODIFIED" if was else "ADDED", kind, change.object, None)
                elif was:
                    yield Change(change.version, "DELETED", kind, change.object, None)
            if self.cut != cut:
                return
            if since < self._oldest:
                raise ExpiredError
            await woken.wait()
