"""Record stores of one or several plugin instances, without the rest of the plugin."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
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
from dra_kubeletplugin.claims.record import checked_line, checked_text, encode_record
from dra_kubeletplugin.claims.store.files import LOCK
from dra_kubeletplugin.claims.store.folder import ClaimFolder
from dra_kubeletplugin.claims.store.records import RECOVER, Records, file_name
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import RecordsError
from tests.helpers.waiting import wait_until

DRIVER = "d.example.com"
BOOT = "boot"
RECORDS = "claims"


class KillableLock(InstanceLock):
    def kill(self) -> None:
        """Releases the lock as the kernel does when the process dies; its file stays. Makes no other call."""
        lock, self._lock = self._lock, None
        if lock:
            lock.close()


class Store(RecordStore):
    """The records of a separate plugin instance."""

    def run_now(self, operation: Callable[..., Any], mode: Mode = Mode.WRITE) -> Any:
        """Runs an operation in this thread, as the record thread does. Returns its result, or raises its exception."""
        (response,) = self._work([(operation, mode)])
        if isinstance(response, BaseException):
            raise response
        return response

    def kill_now(self) -> None:
        """Closes all files of the process, as the kernel does when it dies; the file of the instance stays. Makes no other call."""
        self.folder.close()
        assert isinstance(self.folder.process, KillableLock)
        self.folder.process.kill()

    def stop(self) -> None:
        """Closes the files of a store that was only used in this thread, and ends the instance."""
        self.folder.close()
        self.folder.process.release()


def open_store(folder: Path, wait: float = 5, boot: str = BOOT) -> Store:
    """Opens the records as a separate plugin instance."""
    process = KillableLock(folder / "processes")
    process.acquire()
    specs = ClaimSpecs(folder / "cdi", DRIVER, process.id)
    return Store(ClaimFolder(folder / RECORDS, specs, process, boot, wait, Metrics()))


@contextlib.asynccontextmanager
async def instance(folder: Path, wait: float = 5, boot: str = BOOT) -> AsyncIterator[Store]:
    """Yields the store of a new instance. At the end, closes the store and ends the instance."""
    store = open_store(folder, wait, boot)
    try:
        yield store
    finally:
        await store.close()
        store.folder.process.release()


def make_record(uid: str, device: str, state: State = State.PREPARED, owner: str = "", **fields: Any) -> Record:
    devices = fields.pop("devices", None) or [{"request": "r", "pool": "node", "device": device}]
    return Record(uid, "ns", f"name-{uid}", state, BOOT, owner, devices, **fields)


def make_record_with_file(
    folder: Path, uid: str, device: str, *, created: float | None = None, token: str = "", **fields: Any
) -> Record:
    """Creates the record, the CDI file and the note of a prepared claim."""
    specs = ClaimSpecs(folder / "cdi", DRIVER, token)
    record = make_record(uid, device, complete=True, **fields)
    record.created = record.created if created is None else created
    record.devices[0]["cdi"] = [specs.device_id(specs.device_name(uid, device))]
    record.cdi = specs.build([(specs.device_name(uid, device), {"env": [f"X={device}"]})])
    specs.write(uid, record.cdi)
    specs.write_note(uid, note_of(record))
    return record


async def insert(store: RecordStore, record: Record) -> None:
    await store.do(lambda records: records.insert(record))


async def kill(store: RecordStore) -> None:
    """Ends the store and its instance as SIGKILL does: nothing is written or checked any more."""

    async def refuse(*_: object, **__: object) -> Any:
        raise RecordsError("the plugin was killed")

    await asyncio.sleep(0)
    await wait_until(lambda: not store.busy_for)
    store.do = refuse  # type: ignore[method-assign]
    store.folder.close()
    assert isinstance(store.folder.process, KillableLock)
    store.folder.process.kill()


def end_recovery(store: Store) -> None:
    """Notes that the driver's ``recover()`` has returned. A store without any file begins with a pending recovery."""
    store.run_now(lambda records: records.clear_meta(RECOVER), Mode.SYNC)


def data_files(folder: Path) -> list[Path]:
    """Returns all files of the store below the folder of an instance: all regular files except the files of processes."""
    processes = str(folder / "processes")
    return sorted(Path(root, name) for root, _, names in os.walk(folder) if root != processes for name in names)


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Yields a new folder for a test that starts thousands of stores: in memory, if this machine has a file system for that.

    Disables the log in the block: the starts report damage, and a handler of log lines makes system calls.
    """
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    path = Path(tempfile.mkdtemp(prefix="t-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))  # noqa: S108
    try:
        yield path
    finally:
        shutil.rmtree(path)
        logging.disable(level)


def remove_records(path: Path) -> None:
    """Removes the folder of the records in one step: a plugin may write it again while a command removes file after file."""
    path.rename(former := path.with_name(f"former-{os.urandom(4).hex()}"))
    shutil.rmtree(former)


def damage_file(path: Path, uid: str) -> None:
    """Overwrites a claim's file completely."""
    (path / file_name(uid)).write_bytes(b"garbage" * 100)


def damage_body(path: Path, uid: str) -> None:
    """Overwrites the second line of a claim's file. The first line stays readable."""
    file = path / file_name(uid)
    head, _, body = file.read_bytes().partition(b"\n")
    file.write_bytes(head + b"\n" + b"X" * len(body))


def write_body(path: Path, record: Record, body: bytes) -> None:
    """Writes a claim's file with an unusual second line, and the holds of ``record`` in the first line."""
    path.mkdir(exist_ok=True)
    head, _, _ = encode_record(record, record.holds()).partition(b"\n")
    (path / file_name(record.uid)).write_bytes(head + b"\n" + body + b"\n")


def set_version(path: Path, uid: str, version: int) -> None:
    """Sets another version number in a claim's file."""
    file = path / file_name(uid)
    head, _, body = file.read_bytes().partition(b"\n")
    file.write_bytes(checked_line(msgspec.json.decode(checked_text(head) or b"") | {"version": version}) + body)


@contextlib.contextmanager
def records_locked(path: Path) -> Iterator[None]:
    """Holds the lock of the records at ``path``, like another instance that hangs."""
    fd = os.open(path / LOCK, os.O_RDONLY | os.O_CREAT)
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
