"""A process is killed before each system call of its work on the records, or one call fails: no device gets a second
holder.

The next start also removes all remains. All instances run in this thread. A kill is an exception that each later call
raises too.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.base import forks
from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims.store import journal
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.store import Mode, RecordJob
from dra_kubeletplugin.errors import DeviceHeldError, RecordsError
from tests.helpers.crash.record_stores import JOURNAL, make_record, make_record_with_file, open_store

CALLS = [
    "open", "pread", "pwrite", "write", "ftruncate", "fsync", "fdatasync", "rename", "replace", "unlink", "link", "mkdir",
    "listdir", "scandir", "fstat", "lstat",
]  # fmt: skip
STEP = 3  # `make test` checks each third call
Work = Callable[["Node"], object]


class Killed(BaseException):
    """The process of an instance is killed."""


@contextlib.contextmanager
def before_call(number: int, fails: Callable[[str], BaseException], *, permanent: bool) -> Iterator[list[str]]:
    """Makes the call with this number raise; with ``permanent``, each later call too. Yields the name of the call, if
    it was reached.
    """
    reached: list[str] = []
    count = itertools.count(1)

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if (reached and permanent) or next(count) == number:
                reached.append(name)
                raise fails(name)
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield reached


class Node:
    """Instances of a plugin on one node. ``holders`` contains the claim of each device that a prepare has returned."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.stores = [self.start(), self.start()]
        self.holders: dict[str, str] = {}

    def start(self) -> RecordStore:
        store = open_store(self.folder, wait=0.01)
        self.read(store)
        return store

    def do(
        self, operation: Callable[[Records], object], store: RecordStore | None = None, *, sync: bool = False
    ) -> object:
        (response,) = (store or self.stores[0])._work([RecordJob(operation, Mode.SYNC if sync else Mode.WRITE)])
        if isinstance(response, BaseException):
            raise response
        return response

    def read(self, store: RecordStore) -> list[Any]:
        (response,) = store._work([RecordJob(Records.read_all, Mode.READ)])
        if isinstance(response, BaseException):
            raise response
        assert isinstance(response, list)
        return response

    def prepare(self, uid: str, device: str, store: RecordStore | None = None) -> None:
        """Does the steps of an engine: a synced record, the hardware, the CDI file, and the note with the last
        change.
        """
        process_id = (store or self.stores[0]).journal.process.id
        record = make_record(uid, device, State.PREPARING, process_id)
        self.do(lambda records: records.insert(record), store, sync=True)
        self.holders[device] = uid

        def commit(records: Records) -> None:
            fence = record.fence
            prepared_record = make_record_with_file(self.folder, uid, device)
            prepared_record.created = record.created
            assert records.update(prepared_record, fence)

        self.do(commit, store)

    def unprepare(self, uid: str, device: str) -> None:
        process_id = self.stores[0].journal.process.id

        def mark_unpreparing(records: Records) -> Record:
            row = records.read(uid)
            assert isinstance(row, Record)
            fence, row.state, row.owner = row.fence, State.UNPREPARING, process_id
            assert records.update(row, fence)
            return row

        row = self.do(mark_unpreparing)
        assert isinstance(row, Record)
        self.stores[0].journal.specs.remove(uid)

        def delete_record(records: Records) -> None:
            self.holders.pop(device, None)  # after this line, the record may or may not exist
            self.stores[0].journal.specs.remove_note(uid)
            assert records.delete(row.fence)

        self.do(delete_record)

    def kill(self, store: RecordStore) -> None:
        """Closes all files of the process, as the kernel does; the instance file stays."""
        store.journal.drop()
        store.journal._lock.close()
        if (fd := store.journal.process._fd) is not None:
            store.journal.process._fd = None
            forks.close(fd)

    def roll_back(self, store: RecordStore) -> None:
        """Does the work of a start: rolls back the work of dead processes, and removes files without a record."""
        specs, process = store.journal.specs, store.journal.process
        for row in self.read(store):
            if row.state is not State.PREPARED and not process.alive(row.owner):
                self.holders.pop(row.devices[0]["device"], None)
                specs.remove(row.uid)
                specs.remove_note(row.uid)
                self.do(lambda records, uid=row.uid: records.forget(uid), store)  # type: ignore[misc]
        for uid in set(specs.uids()) - {row.uid for row in self.read(store)}:
            specs.remove(uid)
            specs.remove_note(uid)
        specs.clean(process.alive)
        process.reap_dead()

    def check(self, store: RecordStore) -> None:
        """Asserts that no other claim can get the device of a holder."""
        for device in self.holders:
            with pytest.raises(DeviceHeldError):
                self.do(lambda records, device=device: records.insert(make_record("thief", device)), store)  # type: ignore[misc]

    def check_end(self, store: RecordStore) -> None:
        """Asserts that a start has removed all remains, and that all operations succeed."""
        self.roll_back(store)
        self.check(store)
        uids = {row.uid for row in self.read(store)}
        assert set(store.journal.specs.uids()) <= uids
        assert set(self.holders.values()) <= uids
        self.prepare("last", "d-last", store)
        store.journal._replace(store.journal.file, store.journal.file.records, complete=True)  # type: ignore[union-attr]
        names = {p.name for p in self.folder.iterdir() if ".damaged-" not in p.name}
        assert names == {JOURNAL, "processes", "cdi"}
        assert {path.name for path in (self.folder / "cdi").iterdir() if ".tmp" in path.name} == set()
        running_ids = {s.journal.process.id for s in [*self.stores, store] if s.journal.process._fd is not None}
        assert {path.stem for path in (self.folder / "processes").iterdir()} == running_ids


def prepare(node: Node) -> None:
    node.prepare("u-new", "d-new")


def unprepare(node: Node) -> None:
    node.unprepare("u-0", "d-0")


def compact(node: Node) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_SMALL", 0)
        patch.setattr(journal, "_MAX_GROWTH", 0)
        node.stores[0].journal.compact()


def damage(node: Node) -> None:
    path = node.folder / JOURNAL
    path.write_bytes(path.read_bytes().replace(b'"uid":"u-0"', b'"uid":"u-X"'))
    node.stores[0].journal.check()
    compact(node)


def remove(node: Node) -> None:
    (node.folder / JOURNAL).unlink()
    prepare(node)


def append_garbage(node: Node) -> None:
    (node.folder / JOURNAL).write_bytes(b"garbage" * 1000)
    node.stores[0].journal.check()


WORK: dict[str, Work] = {w.__name__: w for w in (prepare, unprepare, compact, damage, remove, append_garbage)}


def prepared_node(folder: Path, *, instances: int) -> Node:
    node = Node(folder)
    if instances == 1:
        node.kill(node.stores.pop())
        node.stores[0].journal.process.reap_dead()
    for store in node.stores:
        node.read(store)
    for i in range(2):
        node.prepare(f"u-{i}", f"d-{i}", node.stores[-1])  # the other instance may not have read it yet
    return node


def positions(tmp_path: Path, step: int, run: Callable[[Path, int], bool]) -> int:
    """Calls ``run`` with each position until one is not reached. Returns the number of positions."""
    for number in itertools.count(1, step):
        if not run(tmp_path / str(number), number):
            return number - 1
    raise AssertionError


def check_killed(work: Work, instances: int, folder: Path, number: int) -> bool:
    node = prepared_node(folder, instances=instances)
    # A RecordsError: the store waits for the other instance, which does not read again.
    with before_call(number, Killed, permanent=True) as reached, contextlib.suppress(Killed, RecordsError):
        work(node)
    try:
        node.kill(node.stores[0])
        if instances == 2:
            node.stores[1].journal.check()
            node.check(node.stores[1])
        restarted = node.start()
        node.check_end(restarted)
        node.kill(restarted)
    except BaseException as e:
        e.add_note(f"killed before call {number}, {reached[:1]}")
        raise
    finally:
        for store in node.stores[1:]:
            node.kill(store)
    return bool(reached)


def check_failed(work: Work, instances: int, error: int, folder: Path, number: int, *, permanent: bool = False) -> bool:
    node = prepared_node(folder, instances=instances)
    fault = lambda name: OSError(error, os.strerror(error), name)  # noqa: E731
    with before_call(number, fault, permanent=permanent) as reached, contextlib.suppress(RecordsError, OSError):
        work(node)
    try:
        for store in node.stores * 2:  # each instance lets the other continue
            with contextlib.suppress(RecordsError):
                store.journal.check()
        for store in node.stores:
            node.check(store)
        for store in node.stores:
            node.kill(store)
        restarted = node.start()
        node.check_end(restarted)
        node.kill(restarted)
    except BaseException as e:
        e.add_note(f"call {number} failed, {reached[:1]}")
        raise
    return bool(reached)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_kill_before_some_calls_loses_no_record(tmp_path: Path, work: str, instances: int) -> None:
    assert positions(tmp_path, STEP, lambda folder, n: check_killed(WORK[work], instances, folder, n)) > 5


@pytest.mark.full
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_kill_before_each_call_loses_no_record(tmp_path: Path, work: str, instances: int) -> None:
    assert positions(tmp_path, 1, lambda folder, n: check_killed(WORK[work], instances, folder, n)) > 5


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_failure_of_some_calls_loses_no_record(tmp_path: Path, work: str, instances: int) -> None:
    assert positions(tmp_path, STEP, lambda folder, n: check_failed(WORK[work], instances, errno.ENOSPC, folder, n)) > 5


@pytest.mark.full
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_failure_of_each_call_and_all_later_ones_loses_no_record(tmp_path: Path, work: str, instances: int) -> None:
    """The disk fails permanently, and works again after the restart."""

    def run(folder: Path, number: int) -> bool:
        return check_failed(WORK[work], instances, errno.EIO, folder, number, permanent=True)

    assert positions(tmp_path, 1, run) > 5


@pytest.mark.full
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_failure_of_each_call_loses_no_record(tmp_path: Path, work: str, instances: int, error: int) -> None:
    assert positions(tmp_path, 1, lambda folder, n: check_failed(WORK[work], instances, error, folder, n)) > 5
