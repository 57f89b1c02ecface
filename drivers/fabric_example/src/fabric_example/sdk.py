"""Stands in for a fabric manager's API: a file. Put your fabric manager's client in its place."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS devices (
    name TEXT PRIMARY KEY, model TEXT NOT NULL, broken TEXT NOT NULL DEFAULT '', seconds REAL NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS attachments (
    device TEXT PRIMARY KEY, node TEXT NOT NULL, owner TEXT NOT NULL, slot INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Attachment:
    """Where a device is now."""

    node: str
    owner: str
    slot: int


class BrokenPortError(Exception):
    """The fabric cannot attach this device until somebody repairs it."""


class FabricManager:
    """Stands in for a fabric manager's API: blocking calls, a truth of its own, faults that somebody else makes.

    Raises ``OSError`` and ``sqlite3.Error`` where it is out of reach, as a real one's client would raise something.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.path, timeout=5.0, isolation_level=None)
        try:
            db.executescript(_SCHEMA)
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        finally:
            db.close()  # what was not committed did not happen

    def add(self, name: str, model: str, *, broken: str = "", seconds: float = 0) -> None:
        """Plugs a device in, or changes it: ``broken``: why it cannot be attached; ``seconds``: how long that takes."""
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?)", (name, model, broken, seconds))

    def plug(self, name: str, model: str) -> None:
        """Plugs a device in, unless it is there already, however it is."""
        with self._open() as db:
            db.execute("INSERT OR IGNORE INTO devices (name, model) VALUES (?, ?)", (name, model))

    def devices(self) -> list[tuple[str, str]]:
        """Name and model of all."""
        with self._open() as db:
            return list(db.execute("SELECT name, model FROM devices ORDER BY name"))

    def attached(self, device: str) -> Attachment | None:
        with self._open() as db:
            row = db.execute("SELECT node, owner, slot FROM attachments WHERE device = ?", (device,)).fetchone()
        return Attachment(*row) if row else None

    def attach(self, device: str, node: str, owner: str) -> Attachment:
        """Attaches a device for an owner; repeated, it answers what is so already.

        Raises :class:`BrokenPortError`, and ``ValueError`` where another owner has it.
        """
        with self._open() as db:
            row = db.execute("SELECT broken, seconds FROM devices WHERE name = ?", (device,)).fetchone()
        if row is None or row[0]:
            raise BrokenPortError(row[0] if row else f"{device} was unplugged")
        time.sleep(row[1])
        with self._open() as db:
            used = [s for (s,) in db.execute("SELECT slot FROM attachments WHERE node = ?", (node,))]
            slot = next(s for s in range(len(used) + 1) if s not in used)
            db.execute("INSERT OR IGNORE INTO attachments VALUES (?, ?, ?, ?)", (device, node, owner, slot))
            found = Attachment(
                *db.execute("SELECT node, owner, slot FROM attachments WHERE device = ?", (device,)).fetchone()
            )
        if (found.owner, found.node) != (owner, node):
            raise ValueError(f"{device} is attached to {found.node} for {found.owner}")
        return found

    def detach(self, device: str, owner: str) -> None:
        """Detaches what ``owner`` has; nothing where that is not so."""
        with self._open() as db:
            db.execute("DELETE FROM attachments WHERE device = ? AND owner = ?", (device, owner))
