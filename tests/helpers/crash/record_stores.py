"""Records as one or several instances have them, without the rest of a plugin."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_kubeletplugin import Device
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims.capacity import Supply, draws_of
from dra_kubeletplugin.claims.claim_files import note_of
from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.claims.record import InFlightRecords
from dra_kubeletplugin.claims.store import rows
from dra_kubeletplugin.claims.store.database import RecordDatabase
from dra_kubeletplugin.claims.store.schema import make_tables

DRIVER = "d.example.com"
BOOT = "boot"


def open_store(
    folder: Path, wait: float = 5, boot: str = BOOT, in_flight: InFlightRecords | None = None
) -> RecordStore:
    """The records as an instance of its own has them."""
    process = InstanceLock(folder / "processes")
    process.acquire()
    specs = ClaimSpecs(folder / "cdi", DRIVER, process.id)
    database = RecordDatabase(
        folder / "records.db", specs, process, in_flight or InFlightRecords(), boot, wait, Metrics()
    )
    return RecordStore(database)


@contextlib.asynccontextmanager
async def instance(folder: Path, wait: float = 5, boot: str = BOOT) -> AsyncIterator[RecordStore]:
    """A store that is closed, and an instance that is dead, at the end."""
    store = open_store(folder, wait, boot)
    try:
        yield store
    finally:
        await store.close()
        store.database.process.release()


def a_record(uid: str, device: str, state: State = State.PREPARED, owner: str = "", **doc: Any) -> Record:
    devices = [{"request": "r", "pool": "node", "device": device}]
    return Record(uid, "ns", f"name-{uid}", state, BOOT, owner, {"devices": devices, **doc})


def with_file(folder: Path, uid: str, device: str, **doc: Any) -> Record:
    """A prepared claim's record, its CDI file and its note."""
    specs = ClaimSpecs(folder / "cdi", DRIVER)
    record = a_record(uid, device, complete=True, **doc)
    record.devices[0]["cdi"] = [specs.device_id(specs.device_name(uid, device))]
    record.doc["cdi"] = specs.build([(specs.device_name(uid, device), {"env": [f"X={device}"]})])
    specs.write(uid, record.doc["cdi"])
    specs.write_note(uid, note_of(record))
    return record


async def add(store: RecordStore, record: Record) -> None:
    await store.do(lambda db: rows.insert(db, store.driver, record))


def write_back(path: Path) -> None:
    """What is in the log moves into the file, so that damaging the file is damaging all. Nobody else may have it open."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def damage_holds(path: Path) -> None:
    """The table of claims can be read, that of what they hold cannot."""
    write_back(path)
    db = sqlite3.connect(path)
    root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'holds'").fetchone()[0]
    size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    with path.open("r+b") as f:
        f.seek((root - 1) * size)
        f.write(os.urandom(size))


class Stocked(Supply):
    """What there is to be had: devices and counter sets of one pool."""

    def __init__(
        self, devices: Sequence[Device] = (), counter_sets: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.devices = {d.name: d for d in devices}
        self.counter_sets = counter_sets or {}

    def draws(self, pool: str, name: str) -> dict[str, Any] | None:
        return draws_of(self.devices[name]) if name in self.devices else None

    def capacity(self, pool: str, name: str) -> Mapping[str, str] | None:
        found = self.devices[name].json().get("capacity") if name in self.devices else None
        return None if found is None else {n: c["value"] for n, c in found.items()}

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        return self.counter_sets.get(counter_set)


def in_memory() -> sqlite3.Connection:
    """A database without a file."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("PRAGMA foreign_keys = ON")
    make_tables(db)
    return db
