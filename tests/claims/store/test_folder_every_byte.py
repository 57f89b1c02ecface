"""One byte of a file of the store is changed, removed or doubled, or the file is cut, emptied or removed: no device that
had a holder becomes free, and each claim is intact, rebuilt, or reported.

The tests know no format: each file below the plugin's folder is a file of the store. 50 claims are on ten nodes, because a
start on a node with five claims is fast. `make test` changes every 97th byte in all ways, `make test-all` every seventh one
in a third of the ways, so that three of them are changed in all ways. With EVERY_POSITION=1 it changes every byte (ten
minutes on two cores).
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.record import Row, UnreadableRecord
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import DeviceHeldError
from tests.helpers.crash.record_stores import (
    data_files,
    end_recovery,
    make_record,
    make_record_with_file,
    memory_folder,
    open_store,
)

CLAIMS, NODES = 50, 10
STEP = 97  # a prime, so that the changed bytes are in all parts of a record
FULL_STEP = 1 if os.environ.get("EVERY_POSITION") else 7
UIDS = [f"u-{i:02}" for i in range(CLAIMS)]
TEXT = 'tab \t, newline \n and a text that looks like a part: 00000000 {"op":"delete","uid":"UID"}'


def write_claims(folder: Path, numbers: Sequence[int]) -> None:
    """Writes groups of five claims: prepared, preparing, deleted, prepared on the device of the deleted claim, unpreparing."""
    store = open_store(folder)
    end_recovery(store)
    for i in numbers:
        uid, device = UIDS[i], f"d-{i - (i % 5 == 3)}"
        undo = [{"step": "s", "data": {"i": i, "text": TEXT.replace("UID", uid)}}]
        devices: list[dict[str, Any]] = [{"request": "r", "pool": "node", "device": device}]
        if i % 10 in {0, 1}:
            devices[0] |= {"device": "shared", "shareID": f"share-{i}", "takes": {"capacity": {"lanes": "2"}}}
        if i % 3 == 0:
            devices.append({"request": "r", "pool": "other", "device": f"admin-{i}", "adminAccess": True})
        record = make_record(uid, device, State.PREPARING, "1-owner", devices=devices, undo=undo)
        store.run_now(lambda records, record=record: records.insert(record), Mode.SYNC)
        fence = record.fence
        record.undo = undo * 2
        assert store.run_now(lambda records, record=record, fence=fence: records.update(record, fence), Mode.SYNC)
        if i % 5 != 1:
            doc: dict[str, Any] = {"devices": devices, "undo": undo * 2}
            record = make_record_with_file(folder, uid, device, created=record.created, **doc)
            assert store.run_now(lambda records, record=record, fence=fence: records.update(record, fence))
        if i % 5 in {2, 4}:
            fence, record.state, record.owner = record.fence, State.UNPREPARING, "1-owner"
            assert store.run_now(lambda records, record=record, fence=fence: records.update(record, fence))
        if i % 5 == 2 or i % 10 == 9:  # the files are deleted before the record
            for path in files_of_claim(folder, uid):
                path.unlink()
        if i % 5 == 2:
            assert store.run_now(lambda records, record=record: records.delete(record.fence))
        if i % 10 == 0:
            store.run_now(lambda records, i=i: records.set_meta("key", str(i)))
    store.stop()


def files_of_claim(folder: Path, uid: str) -> list[Path]:
    return [path for path in data_files(folder / "cdi") if uid in path.name]


class Start(NamedTuple):
    """The result of a start: all records, whether a recovery is pending, and the UIDs of the claims that hold each device."""

    rows: Mapping[str, Row]
    recovering: bool
    holders: Mapping[tuple[str, str], frozenset[str]]


def start(folder: Path, devices: Sequence[tuple[str, str]]) -> Start:
    """Starts an instance and stops it. Tries to give each device to another claim."""

    def read(records: Records) -> Start:
        holders = {}
        for pool, device in devices:
            thief = make_record("thief", device)
            thief.devices[0]["pool"] = pool
            try:
                records.check_free(thief)
            except DeviceHeldError as e:
                holders[pool, device] = frozenset(row.uid for row in vars(e)["holders"])
        return Start({row.uid: row for row in records.read_all()}, records.has_meta(RECOVER), holders)

    store = open_store(folder)
    try:
        found: Start = store.run_now(read, Mode.READ)
        return found
    finally:
        store.stop()


class Change(NamedTuple):
    """A change of a file. ``data`` is None if the file is removed. Only claims whose UID is in ``part`` may be affected."""

    name: str
    data: bytes | None
    part: bytes


def changes(data: bytes, position: int) -> Iterator[Change]:
    """Yields the changes of one byte, which affect the line with the byte and the next line; and a truncation."""
    original, before, after = data[position], data[:position], data[position + 1 :]
    begin = data.rfind(b"\n", 0, position) + 1
    lines = b"\n".join(data[begin:].split(b"\n", 2)[:2])
    for bit in (0, 3, 7):
        yield Change(f"bit {bit} flipped", before + bytes([original ^ 1 << bit]) + after, lines)
    for byte in {0, ord("\n"), ord("\t")} - {original, original ^ 1, original ^ 8, original ^ 128}:
        yield Change(f"{byte} in its place", before + bytes([byte]) + after, lines)
    yield Change("removed", before + after, lines)
    yield Change("doubled", before + data[position:position] + bytes([original, original]) + after, lines)
    yield Change("truncated", before, data[begin:])


class Node:
    """The files of one node with five claims. :meth:`restore` writes only files again that differ."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        count = CLAIMS // NODES
        write_claims(folder, range(number * count, number * count + count))
        self.files = {path: path.read_bytes() for path in data_files(folder)}
        self.stats = {path: stat_of(path) for path in self.files}
        self.rows = {uid: row for uid, row in start(folder, []).rows.items() if isinstance(row, Record)}
        self.devices = sorted({(hold.pool, hold.device) for row in self.rows.values() for hold in row.holds()})
        self.notes = {uid: files_of_claim(folder, uid) for uid in self.rows}
        self.restore()
        self.outcomes: Counter[str] = Counter()

    def restore(self) -> None:
        found = set(data_files(self.folder))
        for path in found - self.files.keys():
            path.unlink()
        for path, data in self.files.items():
            if path not in found or stat_of(path) != self.stats[path]:
                path.unlink(missing_ok=True)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
                self.stats[path] = stat_of(path)

    def check(self, path: Path, change: Change, *, again: bool) -> None:
        """Changes a file and starts; with ``again`` twice: the second start finds the repaired files."""
        path.unlink()
        if change.data is not None:
            path.write_bytes(change.data)
        self.stats[path] = ()
        try:
            for _ in range(1 + again):
                self.check_start(path, change, start(self.folder, self.devices))
        except BaseException as e:
            e.add_note(f"{path.relative_to(self.folder)}: {change}")
            raise
        self.outcomes["changes"] += 1
        self.restore()

    def check_start(self, path: Path, change: Change, found: Start) -> None:
        affected = set(re.findall(r"u-\d\d", path.name + change.part.decode()))
        # Nothing shows that records are missing at the end of a file of several claims, or that the file of a claim is missing.
        is_cut = change.name == "truncated" and len(set(re.findall(rb"u-\d\d", self.files[path]))) > 1
        for uid, row in self.rows.items():
            actual = found.rows.get(uid)
            if uid not in affected:
                assert actual == row, "a claim of another part of the file"
            has_note = bool(set(self.notes[uid]) - {path})
            if actual is None:
                self.outcomes[f"{'missing' if found.recovering else 'lost'} after {change.name}"] += 1
                assert found.recovering or (not has_note and (is_cut or change.data is None)), uid
                continue
            if isinstance(actual, UnreadableRecord):
                self.outcomes["unreadable"] += 1
            elif actual != row:
                self.outcomes["rebuilt or older"] += 1
                assert found.recovering or has_note or is_cut, uid
                assert actual.holds() == row.holds(), uid
                assert actual.undo == row.undo or is_cut, uid
            is_held = all(uid in found.holders.get((hold.pool, hold.device), ()) for hold in row.holds())
            # A recovery finds the devices of a claim whose devices cannot be read.
            assert is_held or (isinstance(actual, UnreadableRecord) and found.recovering), uid
        for uid in found.rows.keys() - self.rows:  # a claim that has ended
            self.outcomes["returned"] += 1
            assert uid in UIDS and (found.recovering or is_cut), uid


def stat_of(path: Path) -> tuple[int, ...]:
    info = path.stat()
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def check_node(number: int, kind: str, step: int) -> Counter[str]:
    """Changes every ``step``-th byte of the records, or of the files beside them. Prints and returns the outcomes."""
    with memory_folder() as folder:
        node = Node(folder, number)
        for path in [p for p in node.files if (folder / "cdi" in p.parents) is (kind == "notes")]:
            data = node.files[path]
            for position in range(0, len(data), step):
                node.outcomes["positions"] += 1
                ways = changes(data, position)
                for change in ways if step == STEP else itertools.islice(ways, position % 3, None, 3):
                    node.check(path, change, again=position % (5 * STEP) == 0)
            for change in (
                Change("deleted", None, data),
                Change("emptied", b"", data),
                Change("byte added", data + b"x", data),
            ):
                node.check(path, change, again=True)
        print(f"node {number}, {kind}: {dict(node.outcomes)}")
        return node.outcomes


def test_the_nodes_have_claims_in_all_states() -> None:
    with memory_folder() as folder:
        nodes = [Node(folder / str(number), number) for number in range(NODES)]
        rows = [row for node in nodes for row in node.rows.values()]
        assert {row.state for row in rows} == set(State)
        assert len(rows) == CLAIMS * 4 // 5
        assert not any(start(node.folder, []).recovering for node in nodes)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [STEP, pytest.param(FULL_STEP, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["records", "notes"])
@pytest.mark.parametrize("number", range(NODES))
def test_a_change_of_one_byte_frees_no_device(number: int, kind: str, step: int) -> None:
    outcomes = check_node(number, kind, step)
    ways = 7 if step == STEP else 2
    assert outcomes["changes"] > ways * outcomes["positions"] > ways * 1000 / step
