"""Instances of a plugin on one node that do the steps of the engine on the records, in this thread.

The steps know no format of the records: they use operations, and a walk of the plugin's folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.record import Row
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import DeviceHeldError
from tests.helpers.crash.record_stores import (
    DRIVER,
    Store,
    data_files,
    end_recovery,
    make_record,
    make_record_with_file,
    memory_folder,
    open_store,
)

UNDO = [{"step": "s", "data": {"i": 1}}]  # undo steps of each claim


class RecordNode:
    """Instances of a plugin on one node: the first one works and is killed, the second one, if there is one, lives.

    ``holders`` contains the claim of each device that a prepare has returned, ``steps`` the saved undo steps of each claim.
    """

    def __init__(self, folder: Path, instances: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.holders: dict[str, str] = {}
        self.steps: dict[str, list[Any]] = {}
        self.stores = [self.start() for _ in range(instances)]
        end_recovery(self.stores[0])
        # The last claim is not prepared completely, so only its record shows its devices.
        for i, steps in enumerate((3, 3, 2)):
            for _ in itertools.islice(self.prepare(f"u-{i}", f"d-{i}", self.stores[-1]), steps):
                pass  # the first instance may not have read these records yet

    def start(self) -> Store:
        store = open_store(self.folder, wait=0.01)
        self.read(store)
        return store

    def read(self, store: Store) -> list[Row]:
        rows: list[Row] = store.run_now(Records.read_all, Mode.READ)
        return rows

    def state(self, store: Store) -> tuple[list[Row], bool]:
        return self.read(store), store.run_now(lambda records: records.has_meta(RECOVER), Mode.READ)

    def specs(self, store: Store) -> ClaimSpecs:
        return ClaimSpecs(self.folder / "cdi", DRIVER, store.folder.process.id)

    def prepare(self, uid: str, device: str, store: Store | None = None) -> Iterator[None]:
        """Does the steps of an engine: a synced record, a synced undo step, and the files together with the last change."""
        used = store or self.stores[0]
        record = make_record(uid, device, State.PREPARING, used.folder.process.id)

        def hold(records: Records) -> None:
            if not has_state(records, uid, State.PREPARING):  # an operation runs again after an error of the disk
                records.insert(record)

        used.run_now(hold, Mode.SYNC)
        self.holders[device] = uid
        yield
        record.undo = UNDO
        assert used.run_now(lambda records: records.update(record, record.fence), Mode.SYNC)
        self.steps[uid] = UNDO
        yield

        def commit(records: Records) -> bool:
            options: dict[str, Any] = {"created": record.created, "token": used.folder.process.id, "undo": UNDO}
            prepared = make_record_with_file(self.folder, uid, device, **options)
            return records.update(prepared, record.fence) or has_state(records, uid, State.PREPARED)

        assert used.run_now(commit)
        yield

    def unprepare(self, uid: str, device: str, store: Store | None = None) -> Iterator[None]:
        """Marks a claim for rollback, removes its files, and deletes its record."""
        used = store or self.stores[0]

        def mark_unpreparing(records: Records) -> Record:
            row = records.read(uid)
            assert isinstance(row, Record)
            fence, row.state, row.owner = row.fence, State.UNPREPARING, used.folder.process.id
            assert records.update(row, fence)
            return row

        row: Record = used.run_now(mark_unpreparing)
        yield
        self.specs(used).remove(uid)

        def delete_record(records: Records) -> None:
            self.holders.pop(device, None)  # after this line, the record may or may not exist
            self.steps.pop(uid, None)
            self.specs(used).remove_note(uid)
            assert records.delete(row.fence) or records.read(uid) is None

        used.run_now(delete_record)
        yield

    def roll_back(self, store: Store) -> None:
        """Does the work of a start: rolls back the work of dead processes, and removes files without a record."""
        specs, process = self.specs(store), store.folder.process
        for row in self.read(store):
            if isinstance(row, Record) and row.state is not State.PREPARED and not process.alive(row.owner):
                self.holders.pop(row.devices[0]["device"], None)
                self.steps.pop(row.uid, None)
                specs.remove(row.uid)
                specs.remove_note(row.uid)
                assert store.run_now(lambda records, row=row: records.delete(row.fence))
        for uid in set(specs.uids()) - {row.uid for row in self.read(store)}:
            specs.remove(uid)
            specs.remove_note(uid)
        specs.clean(process.alive)
        process.reap_dead()

    def check(self, store: Store) -> None:
        """Asserts that each device has one holder, no other claim can get it, and that no undo step is lost."""
        rows = {row.uid: row for row in self.read(store)}
        for device, uid in self.holders.items():
            with pytest.raises(DeviceHeldError) as raised:
                store.run_now(lambda records, device=device: records.insert(make_record("thief", device)))
            assert [row.uid for row in vars(raised.value)["holders"]] == [uid]
        held = [hold[:3] for row in rows.values() if isinstance(row, Record) for hold in row.holds()]
        assert len(held) == len(set(held))
        for uid, steps in self.steps.items():
            row = rows[uid]
            assert isinstance(row, Record)
            assert row.undo == steps

    def check_end(self, store: Store, others: Sequence[Store]) -> None:
        """Asserts that a start removes all remains, that all operations succeed, and that all instances agree."""
        self.check(store)
        self.roll_back(store)
        self.check(store)
        uids = {row.uid for row in self.read(store)}
        assert set(self.specs(store).uids()) <= uids
        assert set(self.holders.values()) <= uids
        end_recovery(store)
        for user in [store, *others]:
            for _ in itertools.chain(self.prepare("last", "d-last", user), self.unprepare("last", "d-last", user)):
                for reader in [store, *others]:
                    self.check(reader)
                    assert self.state(reader) == self.state(store)
        names = {str(p.relative_to(self.folder)) for p in data_files(self.folder)}
        assert names <= names_after(frozenset(uids), frozenset(self.specs(store).uids()))
        assert {p.stem for p in (self.folder / "processes").iterdir()} == {
            s.folder.process.id for s in [store, *others]
        }


def has_state(records: Records, uid: str, state: State) -> bool:
    row = records.read(uid)
    return isinstance(row, Record) and row.state is state


EXPECTED: dict[object, set[str]] = {}


def names_after(uids: frozenset[str], with_files: frozenset[str]) -> set[str]:
    """Returns the names of all files of a node with these claims on which nothing has failed."""
    if (uids, with_files) not in EXPECTED:
        with memory_folder() as folder:
            store = open_store(folder)
            store.run_now(lambda records: records.set_meta("key", "value"))
            for uid in uids:
                record = make_record_with_file(folder, uid, uid) if uid in with_files else make_record(uid, uid)
                store.run_now(lambda records, record=record: records.insert(record), Mode.SYNC)
            store.stop()
            EXPECTED[uids, with_files] = {str(path.relative_to(folder)) for path in data_files(folder)}
    return EXPECTED[uids, with_files]
