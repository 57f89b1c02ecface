"""Objects and their history: one counter of versions for all, watches that start at any recent version."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

JSON = dict[str, Any]
Key = tuple[str, str]  # namespace, name
Match = Callable[[Mapping[str, Any]], bool]
Objects = list[JSON]
Places = list[tuple[str, Key]]  # kind and key of each
HISTORY = 4096  # changes of a kind that a watch can go back
LAG = 16384  # changes that a watch may be behind before it is ended


class ExpiredError(Exception):
    """The version is too old, or from another life of this server (410)."""


class Journal(Protocol):
    """Where changes are kept beyond this process."""

    def write(self, version: int, kind: str, key: Key, obj: JSON | None) -> None: ...


@dataclass(frozen=True)
class StorageChange:
    version: int
    type: str  # ADDED, MODIFIED, DELETED
    kind: str  # key of the kind
    object: JSON  # as stored after the change; for DELETED as it was last
    before: JSON | None
    lines: dict[Any, bytes] = field(default_factory=dict, compare=False)  # as watches have sent it, by form


class Watch:
    """The changes of a kind as somebody sees them who sees only what ``matches``. Made by :meth:`Storage.watch`.

    ``ended``: nothing more will come, since watches were cut or nobody has read this one for long.
    """

    def __init__(self, matches: Match, missed: Iterable[StorageChange]) -> None:
        self.ended = False
        self._matches = matches
        self._pending = deque(missed)
        self._woken = asyncio.Event()

    def push(self, change: StorageChange) -> None:
        if self.ended:
            return  # who watches again begins behind what it has seen
        self._pending.append(change)
        self.ended = len(self._pending) > LAG
        self._woken.set()

    def wake(self) -> None:
        """:meth:`next` answers, with nothing if need be."""
        self._woken.set()

    def end(self) -> None:
        self.ended = True
        self._woken.set()

    def version(self, newest: int) -> int:
        """That up to which everything has been read, ``newest`` where nothing waits: a bookmark may not be later."""
        return self._pending[0].version - 1 if self._pending else newest

    async def next(self) -> list[StorageChange]:
        """What has come since the last time, as soon as there is something: all at once, since one waits for the next.

        Nothing where :meth:`wake` was called, or where it has ended.
        """
        if not self._pending and not self.ended:
            await self._woken.wait()
        self._woken.clear()
        found, self._pending = self._pending, deque()
        return [seen for change in found if (seen := _seen(change, self._matches)) is not None]


@dataclass
class _Kind:
    """The objects of one kind, their changes, and who watches: all of them, or those of which one field has one value."""

    objects: dict[Key, JSON] = field(default_factory=dict)
    names: list[Key] | None = None  # in order; None once an object came or went
    history: deque[StorageChange] = field(default_factory=lambda: deque(maxlen=HISTORY))
    oldest: int = 0  # a watch may start here or later
    watchers: set[Watch] = field(default_factory=set)
    narrow: dict[tuple[str, ...], dict[str, set[Watch]]] = field(default_factory=dict)


class Storage:
    """In memory. Objects that come out are shared and must not be changed; those that go in are kept as they are.

    Args:
        journal: told of every change, before anybody else.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.version = 1
        self._journal = journal
        self._kinds: dict[str, _Kind] = {}
        self._owned: dict[str, set[tuple[str, Key]]] = {}  # what has an owner, by the owner's uid
        self._by_uid: dict[str, tuple[str, Key]] = {}
        self._floor = 1  # versions before this are forgotten for every kind
        self.cut = 0  # counts up whenever all watches are to end

    def restore(self, version: int, objects: Mapping[tuple[str, Key], JSON]) -> None:
        """Takes what an earlier life has kept; versions go on behind its own."""
        self.version = self._floor = version
        for (kind, key), obj in objects.items():
            self._of(kind).objects[key] = obj
            self._own(kind, key, None, obj)

    def _of(self, kind: str) -> _Kind:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Kind()
        return found

    def get(self, kind: str, namespace: str, name: str) -> JSON | None:
        found = self._kinds.get(kind)
        return found.objects.get((namespace, name)) if found else None

    def list(self, kind: str, namespace: str = "") -> Objects:
        """Objects of a kind, of one namespace or of all, by name."""
        found = self._of(kind)
        if found.names is None:
            found.names = sorted(found.objects)
        return [found.objects[k] for k in found.names if not namespace or k[0] == namespace]

    def list_at(self, kind: str, namespace: str, version: int) -> Objects:
        """As :meth:`list`, at an earlier version. Raises :class:`ExpiredError`."""
        found = self._of(kind)
        if version > self.version or version < max(found.oldest, self._floor):
            raise ExpiredError
        objects = dict(found.objects)
        for change in reversed(found.history):
            if change.version <= version:
                break
            meta = change.object["metadata"]
            key = (meta.get("namespace", ""), meta["name"])
            if change.before is None:
                objects.pop(key, None)
            else:
                objects[key] = change.before
        return [o for (ns, _), o in sorted(objects.items(), key=lambda i: i[0]) if not namespace or ns == namespace]

    def owned(self, uid: str) -> Places:
        """Kinds and names of what has the owner."""
        return sorted(self._owned.get(uid, ()))

    def with_uid(self, uid: str) -> tuple[str, Key] | None:
        """Kind and name of the object."""
        return self._by_uid.get(uid)

    def in_namespace(self, namespace: str) -> Iterator[tuple[str, JSON]]:
        """Everything of a namespace."""
        for kind, found in self._kinds.items():
            for (ns, _), obj in list(found.objects.items()):
                if ns == namespace:
                    yield kind, obj

    # --- changes --------------------------------------------------------------------------------

    def put(self, kind: str, obj: JSON, *, fresh: bool = False) -> JSON:
        """Creates or replaces; gives it the next version. ``fresh``: nobody else has the object, so it need not be copied."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        of = self._of(kind)
        before = of.objects.get(key)
        self.version += 1
        stored = {**obj, "metadata": dict(meta)} if fresh else copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(self.version)
        if before is None:
            of.names = None
        of.objects[key] = stored
        self._own(kind, key, before, stored)
        self._record(of, StorageChange(self.version, "MODIFIED" if before else "ADDED", kind, stored, before), key)
        return stored

    def remove(self, kind: str, namespace: str, name: str) -> JSON | None:
        of = self._of(kind)
        key = (namespace, name)
        before = of.objects.pop(key, None)
        if before is None:
            return None
        of.names = None
        self.version += 1
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self._own(kind, key, before, None)
        self._record(of, StorageChange(self.version, "DELETED", kind, last, before), key)
        return last

    def _own(self, kind: str, key: Key, before: JSON | None, after: JSON | None) -> None:
        if after is None and before is not None:
            self._by_uid.pop(before["metadata"].get("uid", ""), None)
        elif after is not None:
            self._by_uid[after["metadata"].get("uid", "")] = (kind, key)
        was = {o.get("uid") for o in (before or {}).get("metadata", {}).get("ownerReferences") or ()}
        now = {o.get("uid") for o in (after or {}).get("metadata", {}).get("ownerReferences") or ()}
        for uid in was - now:
            if members := self._owned.get(uid):
                members.discard((kind, key))
                if not members:
                    del self._owned[uid]
        for uid in now - was:
            self._owned.setdefault(uid, set()).add((kind, key))

    def _record(self, of: _Kind, change: StorageChange, key: Key) -> None:
        if self._journal is not None:
            self._journal.write(change.version, change.kind, key, None if change.type == "DELETED" else change.object)
        if len(of.history) == HISTORY:
            of.oldest = of.history[0].version
        of.history.append(change)
        for watcher in of.watchers:
            watcher.push(change)
        for path, by_value in of.narrow.items():
            values = {_look(change.object, path), _look(change.before, path) if change.before else None}
            for value in values:
                for watcher in by_value.get(value, ()) if value is not None else ():
                    watcher.push(change)

    # --- watches --------------------------------------------------------------------------------

    def cut_watches(self) -> None:
        self.cut += 1
        for of in self._kinds.values():
            for watcher in self._watchers(of):
                watcher.end()

    @staticmethod
    def _watchers(of: _Kind) -> Iterator[Watch]:
        yield from of.watchers
        for by_value in of.narrow.values():
            for watchers in by_value.values():
                yield from watchers

    def forget_history(self) -> None:
        """As etcd's compaction: versions of before are too old for a watch now."""
        for of in self._kinds.values():
            of.history.clear()
        self._floor = self.version

    @contextlib.contextmanager
    def watch(
        self, kind: str, since: int, matches: Match, only: tuple[tuple[str, ...], str] | None = None
    ) -> Iterator[Watch]:
        """Changes after ``since``; an object that begins or ceases to match comes and goes.

        ``only`` is a field's path and the value without which nothing can match, so that other changes wake nobody.
        Raises :class:`ExpiredError`.
        """
        of = self._of(kind)
        if since < max(of.oldest, self._floor) or since > self.version:
            raise ExpiredError
        watch = Watch(matches, (c for c in of.history if c.version > since))
        by_value = {} if only is None else of.narrow.setdefault(only[0], {})
        group = of.watchers if only is None else by_value.setdefault(only[1], set())
        group.add(watch)
        try:
            yield watch
        finally:
            group.discard(watch)
            if only is not None and not group and by_value.get(only[1]) is group:
                del by_value[only[1]]  # names come and go


def _seen(change: StorageChange, matches: Match) -> StorageChange | None:
    """A change as somebody sees it who sees only what matches."""
    now = change.type != "DELETED" and matches(change.object)
    was = change.before is not None and matches(change.before)
    if not now and not was:
        return None
    type_ = ("MODIFIED" if was else "ADDED") if now else "DELETED"
    if type_ == change.type:
        return change
    if type_ == "DELETED":  # it is still there, and has gone from sight
        version = str(change.version)
        before = change.before or change.object
        gone = {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
        return StorageChange(change.version, type_, change.kind, gone, None)
    return StorageChange(change.version, type_, change.kind, change.object, None)


def _look(obj: Mapping[str, Any] | None, path: tuple[str, ...]) -> str | None:
    value: Any = obj
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
