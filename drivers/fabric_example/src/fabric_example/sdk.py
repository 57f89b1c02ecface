"""Simulates a fabric manager with a file. Replace it with your fabric manager's client."""

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
    """The node to which a device is attached, and the owner of the attachment."""

    node: str
    owner: str
    slot: int


class BrokenPortError(Exception):
    """The fabric cannot attach this device until its port is repaired."""


class FabricManager:
    """Simulates a fabric manager: its calls block, it keeps its own state, and its devices can fail.

    All methods raise ``OSError`` or ``sqlite3.Error`` if the file cannot be used. A real client raises errors, too,
    if it cannot reach the fabric manager.
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
            db.close()  # rolls back an open transaction

    def add(self, name: str, model: str, *, broken: str = "", seconds: float = 0) -> None:
        """Adds or replaces a device.

        Args:
            name: the device's name.
            model: the device's model.
            broken: why the device cannot be attached; empty if it can.
            seconds: duration of an attachment.
        """
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?)", (name, model, broken, seconds))

    def plug(self, name: str, model: str) -> None:
        """Adds a device if it does not exist; does not change an existing one."""
        with self._open() as db:
            db.execute("INSERT OR IGNORE INTO devices (name, model) VALUES (?, ?)", (name, model))

    def devices(self) -> list[tuple[str, str]]:
        """Returns name and model of all devices."""
        with self._open() as db:
            return list(db.execute("SELECT name, model FROM devices ORDER BY name"))

    def attached(self, device: str) -> Attachment | None:
        with self._open() as db:
            row = db.execute("SELECT node, owner, slot FROM attachments WHERE device = ?", (device,)).fetchone()
        return Attachment(*row) if row else None

    def attach(self, device: str, node: str, owner: str) -> Attachment:
        """Attaches a device to a node for an owner. A repeated call returns the existing attachment.

        Raises:
            BrokenPortError: the device cannot be attached.
            ValueError: the device is attached to another node or for another owner.
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
        """Detaches a device if it is attached for this owner."""
        with self._open() as db:
            db.execute("DELETE FROM attachments WHERE device = ? AND owner = ?", (device, owner))
