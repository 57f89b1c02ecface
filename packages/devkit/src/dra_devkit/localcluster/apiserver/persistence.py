"""Keeps the objects across restarts, in a journal file in the cluster's state directory. Only one process at a time may use it.

Each change is one line. An incomplete last line, which a killed process wrote, is ignored.
The file is compacted to the current objects when it is opened, and when its changes exceed 64 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import SettingsError

from .storage import Key, Storage

_COMPACT_AFTER = 64 * 1024 * 1024  # bytes of changes after which the file is compacted


Line: TypeAlias = tuple[int, str, str, str, JSON | None]  # version, kind, namespace, name, object


class StateError(SettingsError):
    """The file cannot be used. The text contains the reason, and what to do."""


class PersistentStorage:
    """The journal of one :class:`Storage`. Create it with :func:`open_storage`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._out: BinaryIO | None = None
        self._size = 0
        self._objects: dict[tuple[str, Key], JSON] = {}
        self._version = 1

    def write(self, version: int, kind: str, key: Key, obj: JSON | None) -> None:
        """Writes a change: the new state of the object, or None if it was removed."""
        self._remember(version, kind, key, obj)
        if self._out is None:
            return
        self._size += self._out.write(_line(version, kind, key, obj))
        self._out.flush()  # No fsync: the data must survive this process, but not a power failure.
        if self._size > _COMPACT_AFTER:
            self.rewrite()

    def _remember(self, version: int, kind: str, key: Key, obj: JSON | None) -> None:
        self._version = max(self._version, version)
        if obj is None:
            self._objects.pop((kind, key), None)
        else:
            self._objects[kind, key] = obj

    def read(self) -> tuple[int, dict[tuple[str, Key], JSON]]:
        """Reads the resource version and the objects of an earlier run. Raises :class:`StateError` for a damaged or foreign file."""
        for version, kind, namespace, name, obj in self._lines():
            self._remember(version, kind, (namespace, name), obj)
        return self._version, dict(self._objects)

    def _lines(self) -> Iterator[Line]:
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                yield msgspec.json.decode(line, type=Line)
            except (msgspec.MsgspecError, RecursionError) as e:
                if number == len(
                    lines
                ):  # The line is incomplete, because a process was killed while it wrote the line.
                    return
                what = "move the file away to start with an empty cluster"
                raise StateError(f"{self._path}, line {number}: {e}: {what}") from None

    def rewrite(self) -> None:
        """Compacts the file to the current objects. Later changes are appended to it."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        if self._out is not None:
            self._out.close()
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            for (kind, key), obj in self._objects.items():
                out.write(_line(self._version, kind, key, obj))
            out.write(_line(self._version, "", ("", ""), None))  # keeps the version if there are no objects
        temporary.replace(self._path)
        self._out = self._path.open("ab")
        self._size = 0

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None


def _line(version: int, kind: str, key: Key, obj: JSON | None) -> bytes:
    return msgspec.json.encode((version, kind, *key, obj)) + b"\n"


def open_storage(path: Path) -> tuple[Storage, PersistentStorage]:
    """Returns a storage with the objects of the earlier run, and its journal. Raises :class:`StateError`.

    The caller closes the journal after the last write.
    """
    journal = PersistentStorage(path)
    version, objects = journal.read()
    journal.rewrite()
    storage = Storage(journal)
    storage.restore(version, objects)
    return storage, journal
