"""Record stores of one or several plugin instances, without the rest of the plugin."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dra_kubeletplugin import Device
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims.capacity import Supply, draws_of
from dra_kubeletplugin.claims.claim_files import note_of
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.record import InFlightRecords
from dra_kubeletplugin.claims.store.journal import Journal
from dra_kubeletplugin.claims.store.lines import PUT, Change, encode
from dra_kubeletplugin.claims.store.records import Records

DRIVER = "d.example.com"
BOOT = "boot"
JOURNAL = "records.journal"


def open_store(
    folder: Path, wait: float = 5, boot: str = BOOT, in_flight: InFlightRecords | None = None
) -> RecordStore:
    """Opens the records as a separate plugin instance."""
    process = InstanceLock(folder / "processes")
    process.acquire()
    specs = ClaimSpecs(folder / "cdi", DRIVER, process.id)
    journal = Journal(folder / JOURNAL, specs, process, in_flight or InFlightRecords(), boot, wait, Metrics())
    return RecordStore(journal)


@contextlib.asynccontextmanager
async def instance(folder: Path, wait: float = 5, boot: str = BOOT) -> AsyncIterator[RecordStore]:
    """Yields the store of a new instance. At the end, closes the store and ends the instance."""
    store = open_store(folder, wait, boot)
    try:
        yield store
    finally:
        await store.close()
        store.journal.process.release()


def make_record(uid: str, device: str, state: State = State.PREPARED, owner: str = "", **doc: Any) -> Record:
    devices = [{"request": "r", "pool": "node", "device": device}]
    return Record(uid, "ns", f"name-{uid}", state, BOOT, owner, {"devices": devices, **doc})


def make_record_with_file(folder: Path, uid: str, device: str, **doc: Any) -> Record:
    """Creates the record, the CDI file and the note of a prepared claim."""
    specs = ClaimSpecs(folder / "cdi", DRIVER)
    record = make_record(uid, device, complete=True, **doc)
    record.devices[0]["cdi"] = [specs.device_id(specs.device_name(uid, device))]
    record.doc["cdi"] = specs.build([(specs.device_name(uid, device), {"env": [f"X={device}"]})])
    specs.write(uid, record.doc["cdi"])
    specs.write_note(uid, note_of(record))
    return record


async def insert(store: RecordStore, record: Record) -> None:
    await store.do(lambda records: records.insert(record))


def lose_bodies(path: Path, text: str) -> None:
    """Overwrites the bodies of all lines that contain ``text``. The heads stay readable."""
    lines = path.read_bytes().split(b"\n")
    for i, line in enumerate(lines):
        if text.encode() in line:
            head, _, body = line.partition(b"\t")
            lines[i] = head + b"\t" + b"X" * len(body)
    path.write_bytes(b"\n".join(lines))


def append_body(path: Path, record: Record, body: bytes, uid: str | None = None) -> None:
    """Appends a line with an unusual body, correct checksums, and the holds of ``record`` in its head."""
    holds = tuple((h.pool, h.device, h.share, h.takes) for h in record.holds())
    with path.open("ab") as file:
        file.write(
            encode(Change(PUT, record.uid if uid is None else uid, f"{record.namespace}/{record.name}", holds), body)
        )


def set_format(path: Path, format: int) -> None:
    """Sets another version number in the journal."""
    first, _, remainder = path.read_bytes().partition(b"\n")
    header = msgspec.json.decode(first.partition(b"\t")[0][9:], type=Change)
    path.write_bytes(encode(msgspec.structs.replace(header, format=format)) + remainder)


@contextlib.contextmanager
def records_locked(path: Path) -> Iterator[None]:
    """Holds the lock of the records at ``path``, like another instance that hangs."""
    fd = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


class PoolSupply(Supply):
    """The devices and counter sets of one pool."""

    def __init__(
        self, devices: Sequence[Device] = (), counter_sets: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.devices = {d.name: d for d in devices}
        self.counter_sets = counter_sets or {}

    def draws(self, pool: str, name: str) -> dict[str, Any] | None:
        return draws_of(self.devices[name]) if name in self.devices else None

    def capacity(self, pool: str, name: str) -> Mapping[str, str] | None:
        capacity = self.devices[name].json().get("capacity") if name in self.devices else None
        return None if capacity is None else {n: c["value"] for n, c in capacity.items()}

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        return self.counter_sets.get(counter_set)


def memory_database() -> Records:
    """Returns records without a file."""
    return Records()
