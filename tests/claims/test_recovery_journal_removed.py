"""The journal is removed or replaced again during its repair, before any line of the repair code: no record is lost.

An instance with the open file repairs it and is stopped before each line in turn. At this line the test does the work
of a person, another program or another instance. All of this runs in one thread, so that each run is the same.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dra_kubeletplugin.claims import RecordStore
from dra_kubeletplugin.claims.record import Row
from dra_kubeletplugin.claims.store import journal, journal_file
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.store import Mode, RecordJob
from dra_kubeletplugin.errors import DeviceHeldError, RecordsError
from tests.helpers.crash.record_stores import lose_bodies, make_record, open_store

REPAIR = {module.__file__ for module in (journal, journal_file)}
Damage = Callable[[Path], object]


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def replace(path: Path) -> None:
    other = path.with_name("garbage")
    other.write_bytes(os.urandom(8192))
    other.rename(path)


def overwrite(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        file.write(bytes(100))


DAMAGES: dict[str, Damage] = {"removed": remove, "replaced": replace, "overwritten": overwrite}


class TwoInstances:
    """Two instances on one journal. ``instance_of_device`` contains the instance whose prepare of a device
    succeeded.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "records.journal"
        self.stores = {name: open_store(folder, wait=0.01) for name in ("a", "b")}
        self.instance_of_device: dict[str, str] = {}
        self._uids = itertools.count()

    def add(self, name: str, device: str) -> None:
        """Makes an instance request a device. The result may be that the records are busy, or that the device is
        held.
        """
        store = self.stores[name]
        record = make_record(f"{name}-{next(self._uids)}", device)
        result = do(store, lambda records: records.insert(record))
        if result is None:
            assert device not in self.instance_of_device, (
                f"{device} is allocated to {self.instance_of_device[device]} and to {name}"
            )
            self.instance_of_device[device] = name
        else:
            assert isinstance(result, (RecordsError, DeviceHeldError)), result

    def check(self) -> None:
        """Asserts that each instance has the records of both, and can add more."""
        for name, device in itertools.product("ba", [*self.instance_of_device, "d-last"]):
            self.add(name, device)
        for store in self.stores.values():
            everything(store)
            assert store.journal.file
            held = store.journal.file.records._claims.values()  # also of claims whose record cannot be read
            instances = {hold.device: hold.uid[0] for stored in held for hold in stored.holds}
            assert {d: n for d, n in instances.items() if d in self.instance_of_device} == self.instance_of_device
        for name in "ab":
            self.add(name, f"d-{name}")
        assert {"d-a", "d-b", "d-last"} <= self.instance_of_device.keys()

    def end(self) -> None:
        for store in self.stores.values():
            store.journal.drop()
            store.journal.process.release()


@contextlib.contextmanager
def two_instances(folder: Path) -> Iterator[TwoInstances]:
    instances = TwoInstances(folder)
    try:
        yield instances
    finally:
        instances.end()


def do(store: RecordStore, operation: Callable[[Records], object]) -> object:
    (result,) = store._work([RecordJob(operation)])
    return result


def everything(store: RecordStore) -> list[Row]:
    """Returns all records. Repeats the read if it has to wait for the other instance, because each read lets the other
    continue.
    """
    result: Any = None
    for _ in range(5):
        (result,) = store._work([RecordJob(Records.read_all, Mode.READ)])
        if not isinstance(result, RecordsError):
            break
    assert isinstance(result, list), result
    return result


@contextlib.contextmanager
def before_line(
    number: int, action: Callable[[], object], is_counted: Callable[[], bool] = lambda: True
) -> Iterator[list[str]]:
    """Calls ``action`` before the ``number``-th new line of a repair is executed. Yields a list with the name of that
    line.
    """
    reached: list[str] = []
    executed: set[tuple[str, int]] = set()

    def count(frame: FrameType, event: str, _: object) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line not in executed and is_counted():
            executed.add(line)
            if len(executed) == number:
                sys.settrace(None)
                reached.append(f"{Path(line[0]).name}:{line[1]}")
                action()
        return count

    def enter(frame: FrameType, *_: object) -> Any:
        # Only the repair is stopped. The functions that only compare files change nothing, so their lines need no
        # check.
        name = frame.f_code.co_name
        return count if frame.f_code.co_filename in REPAIR and name not in {"is_current", "is_unchanged"} else None

    outer = sys.gettrace()
    sys.settrace(enter)
    try:
        yield reached
    finally:
        sys.settrace(outer)


@pytest.fixture
def no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the waits for a disk sync."""
    monkeypatch.setattr(journal, "sync_folder", lambda path: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


PAIRS = [
    ("removed", "replaced"),
    ("removed", "removed"),
    ("replaced", "removed"),
    ("overwritten", "removed"),
    ("removed", "the other writes"),
    ("removed", "the other ends"),
]


@pytest.mark.crash
@pytest.mark.usefixtures("no_disk_sync")
@pytest.mark.parametrize(("first", "then"), PAIRS, ids=[", then ".join(pair) for pair in PAIRS])
def test_damage_before_any_line_of_a_repair_loses_no_record_and_allocates_no_device_twice(
    tmp_path: Path, first: str, then: str
) -> None:
    for number in itertools.count(1):
        with two_instances(tmp_path / str(number)) as instances:
            instances.add("a", "d-0")
            instances.add("b", "d-1")
            acts: dict[str, Callable[[], object]] = {
                "the other writes": functools.partial(instances.add, "b", "d-2"),
                "the other ends": instances.stores["b"].journal.close,
            }
            DAMAGES[first](instances.path)
            with before_line(number, acts.get(then) or functools.partial(DAMAGES[then], instances.path)) as reached:
                instances.add("a", "d-3")
            if not reached:
                assert number > 50
                return
            with note_line(reached[0]):
                instances.check()


@pytest.mark.full
@pytest.mark.crash
@pytest.mark.usefixtures("no_disk_sync")
@pytest.mark.parametrize("then", ["removed", "replaced"])
def test_records_from_a_damaged_file_are_read_again_if_the_new_file_is_lost_before_its_first_use(
    tmp_path: Path, then: str
) -> None:
    for number in itertools.count(1):
        with two_instances(tmp_path / str(number)) as instances:
            for device in ("d-0", "d-1"):
                instances.add("a", device)
            for store in instances.stores.values():
                store.journal.close()
            lose_bodies(instances.path, "doc")
            damaged = instances.path.stat().st_ino

            def is_set_aside(path: Path = instances.path, damaged: int = damaged) -> bool:
                """Returns whether the damaged file is set aside. Before that, it is the only file."""
                return not path.exists() or path.stat().st_ino != damaged

            with before_line(number, functools.partial(DAMAGES[then], instances.path), is_set_aside) as reached:
                instances.add("b", "d-2")
            if not reached:
                assert number > 5
                return
            with note_line(reached[0]):
                instances.check()


@contextlib.contextmanager
def note_line(line: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as e:
        e.add_note(f"after the damage before {line}")
        raise
