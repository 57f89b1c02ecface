"""Stores objects in memory, with one version counter for all kinds, and with history for watches from recent versions."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dra_kubeletplugin.base.json_types import JSON

from .selectors import field_value

Key = tuple[str, str]  # namespace, name
Match = Callable[[Mapping[str, Any]], bool]
Objects = list[JSON]
Places = list[tuple[str, Key]]  # kind and key of each object
HISTORY = 4096  # changes per kind that are kept for watches that start at an earlier version
LAG = 16384  # pending changes at which the server ends a watch, because its client reads too slowly


class ExpiredError(Exception):
    """The version is too old, or from another run of this server (410)."""


class Journal(Protocol):
    """Keeps changes in a file; see :mod:`.persistence`."""

    def write(self, version: int, kind: str, key: Key, obj: JSON | None) -> None: ...


@dataclass(frozen=True)
class StorageChange:
    version: int
    type: str  # ADDED, MODIFIED, DELETED
    kind: str  # key of the kind
    object: JSON  # the object after the change; for DELETED, its last state
    before: JSON | None
    # Encoded watch events, which all watches share, by kind, version and form of the object
    lines: dict[Any, bytes] = field(default_factory=dict, compare=False)


class Watch:
    """The pending changes of one kind for one client, for the objects that it selects. Create it with :meth:`Storage.watch`.

    If ``ended`` is true, no more changes will come: all watches were ended, or the client read too slowly.
    """

    def __init__(self, matches: Match, missed: Iterable[StorageChange]) -> None:
        self.ended = False
        self._matches = matches
        self._pending = deque(missed)
        self._woken = asyncio.Event()

    def push(self, change: StorageChange) -> None:
        if self.ended:
            return  # the client can watch again, from the last change that it received
        self._pending.append(change)
        self.ended = len(self._pending) > LAG
        self._woken.set()

    def wake(self) -> None:
        """Makes a waiting :meth:`next` return, with an empty list if there are no changes."""
        self._woken.set()

    def end(self) -> None:
        self.ended = True
        self._woken.set()

    def version(self, newest: int) -> int:
        """Returns the version up to which the client has read all changes, for a bookmark; ``newest`` if no changes are pending."""
        return self._pending[0].version - 1 if self._pending else newest

    async def next(self) -> list[StorageChange]:
        """Waits for changes, and returns the pending changes that the client selects.

        The list may be empty: no pending change matches, :meth:`wake` was called, or the watch has ended.
        """
        if not self._pending and not self.ended:
            await self._woken.wait()
        self._woken.clear()
        found, self._pending = self._pending, deque()
        return [seen for change in found if (seen := _seen(change, self._matches)) is not None]


@dataclass
class _StoredKind:
    """The objects of one kind, their history, and their watches.

    Attributes:
        names: the sorted keys of the objects; None after an object was added or removed.
        oldest: the oldest version from which a watch may start.
        watchers: the watches that may get changes of every object.
        narrow: the watches that select one value of one field, by the path of the field, then by the value.
    """

    objects: dict[Key, JSON] = field(default_factory=dict)
    names: list[Key] | None = None
    history: deque[StorageChange] = field(default_factory=lambda: deque(maxlen=HISTORY))
    oldest: int = 0
    watchers: set[Watch] = field(default_factory=set)
    narrow: dict[tuple[str, ...], dict[str, set[Watch]]] = field(default_factory=dict)


class Storage:
    """The stored objects of one server.

    Callers must not change the returned objects, because they are shared. Objects are stored as they are, with a new resource version.

    Args:
        journal: gets each change before the watches get it.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.version = 1
        self._journal = journal
        self._kinds: dict[str, _StoredKind] = {}
        self._owned: dict[str, set[tuple[str, Key]]] = {}  # the objects of each owner, by the UID of the owner
        self._by_uid: dict[str, tuple[str, Key]] = {}
        self._floor = 1  # there is no history of earlier versions, for all kinds
        self.cut = 0  # the server increments it to end all watches

    def restore(self, version: int, objects: Mapping[tuple[str, Key], JSON]) -> None:
        """Loads the objects of an earlier run. New versions follow ``version``."""
        self.version = self._floor = version
        for (kind, key), obj in objects.items():
            self._stored_kind(kind).objects[key] = obj
            self._own(kind, key, None, obj)

    def _stored_kind(self, kind: str) -> _StoredKind:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _StoredKind()
        return found

    def get(self, kind: str, namespace: str, name: str) -> JSON | None:
        found = self._kinds.get(kind)
        return found.objects.get((namespace, name)) if found else None

    def list(self, kind: str, namespace: str = "") -> Objects:
        """Returns the objects of a kind, sorted by namespace and name. An empty ``namespace`` means all namespaces."""
        found = self._stored_kind(kind)
        if found.names is None:
            found.names = sorted(found.objects)
        return [found.objects[k] for k in found.names if not namespace or k[0] == namespace]

    def list_at(self, kind: str, namespace: str, version: int) -> Objects:
        """Returns as :meth:`list`, but the objects at an earlier version. Raises :class:`ExpiredError` if there is no history of it."""
        found = self._stored_kind(kind)
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
        """Returns kind and key of the objects that have this owner."""
        return sorted(self._owned.get(uid, ()))

    def with_uid(self, uid: str) -> tuple[str, Key] | None:
        """Returns kind and key of the object with a UID."""
        return self._by_uid.get(uid)

    def in_namespace(self, namespace: str) -> Iterator[tuple[str, JSON]]:
        """Yields all objects in a namespace."""
        for kind, found in self._kinds.items():
            for (ns, _), obj in list(found.objects.items()):
                if ns == namespace:
                    yield kind, obj

    # --- changes --------------------------------------------------------------------------------

    def put(self, kind: str, obj: JSON, *, fresh: bool = False) -> JSON:
        """Creates or replaces an object and sets its new resource version.

        Args:
            fresh: whether only the caller refers to the object, so that it need not be copied.
        """
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        stored_kind = self._stored_kind(kind)
        before = stored_kind.objects.get(key)
        self.version += 1
        stored = {**obj, "metadata": dict(meta)} if fresh else copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(self.version)
        if before is None:
            stored_kind.names = None
        stored_kind.objects[key] = stored
        self._own(kind, key, before, stored)
        self._record(
            stored_kind, StorageChange(self.version, "MODIFIED" if before else "ADDED", kind, stored, before), key
        )
        return stored

    def remove(self, kind: str, namespace: str, name: str) -> JSON | None:
        stored_kind = self._stored_kind(kind)
        key = (namespace, name)
        before = stored_kind.objects.pop(key, None)
        if before is None:
            return None
        stored_kind.names = None
        self.version += 1
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self._own(kind, key, before, None)
        self._record(stored_kind, StorageChange(self.version, "DELETED", kind, last, before), key)
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

    def _record(self, stored_kind: _StoredKind, change: StorageChange, key: Key) -> None:
        if self._journal is not None:
            self._journal.write(change.version, change.kind, key, None if change.type == "DELETED" else change.object)
        if len(stored_kind.history) == HISTORY:
            stored_kind.oldest = stored_kind.history[0].version
        stored_kind.history.append(change)
        for watcher in stored_kind.watchers:
            watcher.push(change)
        for path, by_value in stored_kind.narrow.items():
            for value in {field_value(obj, path) for obj in (change.object, change.before) if obj is not None}:
                for watcher in by_value.get(value, ()):
                    watcher.push(change)

    # --- watches --------------------------------------------------------------------------------

    def cut_watches(self) -> None:
        self.cut += 1
        for stored_kind in self._kinds.values():
            narrow = (group for by_value in stored_kind.narrow.values() for group in by_value.values())
            for watcher in itertools.chain(stored_kind.watchers, *narrow):
                watcher.end()

    @contextlib.contextmanager
    def watch(
        self, kind: str, since: int, matches: Match, only: tuple[tuple[str, ...], str] | None = None
    ) -> Iterator[Watch]:
        """Watches the changes after ``since``.

        A change that makes an object match is ADDED; a change that makes it no longer match is DELETED.

        Args:
            only: path and value of a field that every matching object has. Changes of other objects do not wake the watch.

        Raises:
            ExpiredError: ``since`` is too old or in the future.
        """
        stored_kind = self._stored_kind(kind)
        if since < max(stored_kind.oldest, self._floor) or since > self.version:
            raise ExpiredError
        watch = Watch(matches, (c for c in stored_kind.history if c.version > since))
        by_value = {} if only is None else stored_kind.narrow.setdefault(only[0], {})
        group = stored_kind.watchers if only is None else by_value.setdefault(only[1], set())
        group.add(watch)
        try:
            yield watch
        finally:
            group.discard(watch)
            if only is not None and not group and by_value.get(only[1]) is group:
                del by_value[only[1]]  # there may be any number of values, so empty sets are removed


def _seen(change: StorageChange, matches: Match) -> StorageChange | None:
    """Returns the change that a watch with a selector reports; None if the object matched neither before nor after the change."""
    now = change.type != "DELETED" and matches(change.object)
    was = change.before is not None and matches(change.before)
    if not now and not was:
        return None
    type_ = ("MODIFIED" if was else "ADDED") if now else "DELETED"
    if type_ == change.type:
        return change
    if type_ == "DELETED":  # The object still exists but no longer matches.
        version = str(change.version)
        before = change.before or change.object
        last_visible = {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
        return StorageChange(change.version, type_, change.kind, last_visible, None)
    return StorageChange(change.version, type_, change.kind, change.object, None)
