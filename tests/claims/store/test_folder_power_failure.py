"""The power fails at any moment, and the disk loses any subset of the unsynced writes and names: each claim that may have
hardware still holds its devices, with its undo steps, or a recovery is pending.

A simulated disk records each change below the plugin's folder. ``fsync`` and ``fdatasync`` of a file keep its content, ``fsync``
of a folder keeps the names in it. Any other write may be lost, partial, or zeros; any other change of a name may be lost.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dra_kubeletplugin.claims import State
from dra_kubeletplugin.claims.record import Row, UnreadableRecord
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import DeviceHeldError
from tests.helpers.crash.record_node import RecordNode
from tests.helpers.crash.record_stores import (
    end_recovery,
    make_record,
    memory_folder,
    open_store,
)

CALLS = [
    "open",
    "write",
    "pwrite",
    "ftruncate",
    "truncate",
    "rename",
    "replace",
    "unlink",
    "link",
    "mkdir",
    "fchmod",
    "close",
]
ALL_SUBSETS = 256  # a moment with more subsets of unsynced changes is tested with random ones
STEP = 7  # `make test` checks each seventh moment, and of these each eighth subset
FULL_SUBSETS = (
    1 if os.environ.get("EVERY_POSITION") else 5
)  # `make test-all` checks every moment, and of these each fifth subset
KEPT, LOST, ZEROS, HALF = range(4)


class Write(NamedTuple):
    file: int
    offset: int
    data: bytes
    size: int | None  # the new size of a file that became shorter

    def apply(self, tree: Tree, fate: int) -> None:
        data = {ZEROS: bytes(len(self.data)), HALF: self.data[: len(self.data) // 2]}.get(fate, self.data)
        old = tree.files.get(self.file, b"").ljust(self.offset, b"\0")
        tree.files[self.file] = (old[: self.offset] + data + old[self.offset + len(data) :])[: self.size]


class Naming(NamedTuple):
    """Changes of names, which one call makes together. The keys are a folder and a name, the values a file or folder."""

    names: Mapping[tuple[int, str], int | None]

    def apply(self, tree: Tree, fate: int) -> None:
        tree.names.update(self.names)


FATES = {Write: (KEPT, LOST, ZEROS, HALF), Naming: (KEPT, LOST)}


class Tree:
    """Files and folders by number; the plugin's folder has number 0."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, str], int | None] = {}
        self.files: dict[int, bytes] = {}
        self.folders = {0}

    def write(self, path: Path, folder: int = 0) -> None:
        """Writes the tree to a real folder."""
        path.mkdir(parents=True)
        for (parent, name), number in self.names.items():
            if parent == folder and number in self.folders:
                self.write(path / name, number)
            elif parent == folder and number is not None:
                (path / name).write_bytes(self.files.get(number, b""))


class Moment(NamedTuple):
    """A moment of a power failure: the changes so far, those that may be lost, and the acknowledged state of the claims."""

    length: int  # of the changes
    unsynced: Sequence[int]
    holders: Mapping[str, str]
    steps: Mapping[str, list[Any]]


class Disk:
    """Records the changes below a folder: it compares all files after each system call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes: list[Write | Naming] = []
        self.pending: dict[int, set[int]] = {}  # the files or folders that an unsynced change needs synced
        self.moments: list[Moment] = []
        self.node: RecordNode | None = None
        self.tree = Tree()
        self.numbers: dict[int, int] = {}  # by inode
        self.lock = threading.Lock()
        self.next = itertools.count(1)
        self.patch = pytest.MonkeyPatch()
        self.real = {name: getattr(os, name) for name in [*CALLS, "fsync", "fdatasync"]}

    def __enter__(self) -> Disk:
        for name in self.real:
            self.patch.setattr(os, name, lambda *args, name=name, **options: self.call(name, *args, **options))
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        inode = os.fstat(args[0]).st_ino if name in {"fsync", "fdatasync"} else None
        with self.lock:  # a store may sync several files in threads
            result = self.real[name](*args, **options)
            self.compare()
            if inode is not None:
                number = 0 if inode == self.folder.stat().st_ino else self.numbers.get(inode, -1)
                for needed in self.pending.values():
                    needed.discard(number)
                self.pending = {change: needed for change, needed in self.pending.items() if needed}
            self.mark()
        return result

    def mark(self) -> None:
        holders, steps = (dict(self.node.holders), dict(self.node.steps)) if self.node else ({}, {})
        moment = Moment(len(self.changes), tuple(self.pending), holders, steps)
        if not self.moments or self.moments[-1] != moment:
            self.moments.append(moment)

    def compare(self) -> None:
        """Adds the changes since the last call."""
        names: dict[tuple[int, str], int | None] = {}
        files: dict[int, bytes] = {}
        if self.folder.exists():
            self.read(self.folder, 0, names, files)
        before = self.tree
        gone = {key: number for key, number in before.names.items() if key not in names}
        for key, number in names.items():
            if before.names.get(key) != number:
                moved = [old for old, same in gone.items() if same == number]
                for old in moved:
                    del gone[old]
                self.add(Naming({key: number} | dict.fromkeys(moved)), {key[0], *(folder for folder, _ in moved)})
        for key in gone:
            self.add(Naming({key: None}), {key[0]})
        for number, data in files.items():
            if (old_data := before.files.get(number, b"")) != data:
                offset = next(
                    (i for i, (a, b) in enumerate(zip(old_data, data, strict=False)) if a != b),
                    min(len(old_data), len(data)),
                )
                size = len(data) if len(data) < len(old_data) else None
                self.add(Write(number, offset, data[offset:], size), {number})
        before.names, before.files = names, files
        self.numbers = {inode: number for inode, number in self.numbers.items() if number in names.values()}

    def read(self, path: Path, folder: int, names: dict[tuple[int, str], int | None], files: dict[int, bytes]) -> None:
        for entry in os.scandir(path):
            if entry.name != "processes":
                inode = entry.inode()
                number = self.numbers[inode] if inode in self.numbers else next(self.next)
                self.numbers[inode] = names[folder, entry.name] = number
                if entry.is_dir():
                    self.tree.folders.add(number)
                    self.read(path / entry.name, number, names, files)
                else:
                    files[number] = Path(entry.path).read_bytes()

    def add(self, change: Write | Naming, needed: set[int]) -> None:
        self.pending[len(self.changes)] = needed
        self.changes.append(change)

    def tree_after(self, moment: Moment, fates: Mapping[int, int]) -> Tree:
        tree = Tree()
        tree.folders = self.tree.folders
        for number, change in enumerate(self.changes[: moment.length]):
            if (fate := fates.get(number, KEPT)) != LOST:
                change.apply(tree, fate)
        return tree

    def subsets(self, moment: Moment) -> Iterator[Mapping[int, int]]:
        """Yields the fates of the unsynced changes: all combinations, or one lost change each and random combinations."""
        fates = {number: FATES[type(self.changes[number])] for number in moment.unsynced}
        if math.prod(map(len, fates.values())) <= ALL_SUBSETS:
            yield from (dict(zip(fates, chosen, strict=True)) for chosen in itertools.product(*fates.values()))
            return
        chance = random.Random(moment.length)
        yield dict.fromkeys(fates, LOST)
        yield from ({number: LOST} for number in list(fates)[-60:])
        for _ in range(140):
            share = chance.choice([0.1, 0.5, 0.9])
            yield {n: chance.choice(f[1:]) if chance.random() < share else KEPT for n, f in fates.items()}


def run_claims(node: RecordNode) -> Iterator[None]:
    """Prepares and unprepares claims on both instances. The device of a deleted claim gets a new holder."""
    other = node.stores[-1]
    yield from node.prepare("a", "d-a")
    yield from node.prepare("b", "d-b", other)
    for _ in itertools.zip_longest(node.unprepare("a", "d-a"), node.prepare("c", "d-c", other)):
        yield
    for _ in itertools.zip_longest(node.prepare("new-a", "d-a", other), node.unprepare("b", "d-b")):
        yield
    yield from node.unprepare("c", "d-c", other)


def record_changes(folder: Path, instances: int) -> Disk:
    with Disk(folder) as disk:
        disk.node = node = RecordNode(folder, instances)
        for _ in run_claims(node):
            disk.mark()
    for store in node.stores:
        store.kill_now()
    return disk


def check_start(folder: Path, moment: Moment) -> bool:
    """Starts in the next boot. Returns whether a recovery is pending."""

    def read(records: Records) -> tuple[dict[str, Row], bool, dict[str, set[str]]]:
        holders = {}
        for device in moment.holders:
            try:
                records.check_free(make_record("thief", device))
            except DeviceHeldError as e:
                holders[device] = {row.uid for row in vars(e)["holders"]}
        return {row.uid: row for row in records.read_all()}, records.has_meta(RECOVER), holders

    store = open_store(folder, boot="next")
    first = store.run_now(read, Mode.READ)
    store.stop()
    store = open_store(folder, boot="next")
    rows, recovering, holders = store.run_now(read, Mode.READ)
    assert (rows, recovering, holders) == first, "the second start finds other claims than the first one"
    if not recovering:
        for device, uid in moment.holders.items():
            assert uid in holders.get(device, ()), uid
        for uid, steps in moment.steps.items():
            assert isinstance(rows[uid], UnreadableRecord) or rows[uid].undo == steps, uid
    else:
        end_recovery(store)
    record = make_record("further", "d-further", State.PREPARING, "1-owner")
    store.run_now(lambda records: records.insert(record), Mode.SYNC)
    fence, record.state = record.fence, State.PREPARED
    assert store.run_now(lambda records: records.update(record, fence))
    assert store.run_now(lambda records: records.delete(record.fence))
    assert {row.uid for row in store.run_now(Records.read_all, Mode.READ)} == rows.keys()
    store.stop()
    return bool(recovering)


def check_moments(instances: int, moments: slice, subsets: int) -> Counter[str]:
    """Prints and returns the numbers of moments, starts, and starts with a pending recovery."""
    count: Counter[str] = Counter()
    with memory_folder() as folder:
        disk = record_changes(folder / "node", instances)
        for moment in disk.moments[moments]:
            count["moments"] += 1
            for fates in itertools.islice(disk.subsets(moment), 0, None, subsets):
                disk.tree_after(moment, fates).write(folder / "disk")
                try:
                    count["with recovery"] += check_start(folder / "disk", moment)
                except BaseException as e:
                    lost = [(disk.changes[n], fate) for n, fate in fates.items() if fate != KEPT]
                    e.add_note(f"after {disk.changes[moment.length - 1]}, lost: {lost}, {moment.holders}")
                    raise
                shutil.rmtree(folder / "disk")
                count["starts"] += 1
    print(f"{instances} instances: {dict(count)}")
    assert count["with recovery"] * 10 < count["starts"], "a record that is synced needs no recovery"
    return count


@pytest.mark.parametrize("instances", [1, 2])
def test_some_subsets_of_unsynced_changes_may_be_lost(instances: int) -> None:
    assert check_moments(instances, slice(0, None, STEP), 8)["starts"] > 100


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("instances", [1, 2])
def test_any_subset_of_unsynced_changes_may_be_lost(instances: int, part: int) -> None:
    assert check_moments(instances, slice(part, None, 6), FULL_SUBSETS)["starts"] > 1000 / FULL_SUBSETS
