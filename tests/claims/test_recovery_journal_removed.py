"""The records are removed or replaced once more while they are written again, before any line of the repair: nothing is lost.

One who has them open repairs, and is stopped before each line in turn; what happens there is what a person, another program or
another instance may do. All of it runs in this thread, so that each run is the same.
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
Harm = Callable[[Path], object]


def removed(path: Path) -> None:
    path.unlink(missing_ok=True)


def replaced(path: Path) -> None:
    other = path.with_name("garbage")
    other.write_bytes(os.urandom(8192))
    other.rename(path)


def overwritten(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        file.write(bytes(100))


HARMS: dict[str, Harm] = {"removed": removed, "replaced": replaced, "overwritten": overwritten}


class Two:
    """Two instances on one database. ``told`` is who was told that it has a device."""

    def __init__(self, where: Path) -> None:
        where.mkdir()
        self.path = where / "records.journal"
        self.stores = {name: open_store(where, wait=0.01) for name in ("a", "b")}
        self.told: dict[str, str] = {}
        self._uids = itertools.count()

    def add(self, name: str, device: str) -> None:
        """An instance tries to get a device; it may be told that the records are busy, or whose the device is."""
        store = self.stores[name]
        record = make_record(f"{name}-{next(self._uids)}", device)
        answer = do(store, lambda records: records.insert(record))
        if answer is None:
            assert device not in self.told, f"{device} was given to {self.told[device]} and to {name}"
            self.told[device] = name
        else:
            assert isinstance(answer, (RecordsError, DeviceHeldError)), answer

    def check(self) -> None:
        """Each finds all that anybody was told, and works."""
        for name, device in itertools.product("ba", [*self.told, "d-last"]):
            self.add(name, device)
        for store in self.stores.values():
            everything(store)
            assert store.journal.file
            held = store.journal.file.records._claims.values()  # also of claims whose record cannot be read
            known = {hold.device: hold.uid[0] for stored in held for hold in stored.holds}
            assert {d: n for d, n in known.items() if d in self.told} == self.told
        for name in "ab":
            self.add(name, f"d-{name}")
        assert {"d-a", "d-b", "d-last"} <= self.told.keys()

    def end(self) -> None:
        for store in self.stores.values():
            store.journal.drop()
            store.journal.process.release()


@contextlib.contextmanager
def two(where: Path) -> Iterator[Two]:
    both = Two(where)
    try:
        yield both
    finally:
        both.end()


def do(store: RecordStore, operation: Callable[[Records], object]) -> object:
    (answer,) = store._work([RecordJob(operation)])
    return answer


def everything(store: RecordStore) -> list[Row]:
    """As soon as nobody has to be waited for: each try of one lets the other go on."""
    answer: Any = None
    for _ in range(5):
        (answer,) = store._work([RecordJob(Records.read_all, Mode.READ)])
        if not isinstance(answer, RecordsError):
            break
    assert isinstance(answer, list), answer
    return answer


@contextlib.contextmanager
def before_line(
    number: int, then: Callable[[], object], counted: Callable[[], bool] = lambda: True
) -> Iterator[list[str]]:
    """``then`` is done when that many lines of a repair are reached for the first time; what is given names the last then."""
    reached: list[str] = []
    seen: set[tuple[str, int]] = set()

    def count(frame: FrameType, event: str, _: object) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line not in seen and counted():
            seen.add(line)
            if len(seen) == number:
                sys.settrace(None)
                reached.append(f"{Path(line[0]).name}:{line[1]}")
                then()
        return count

    def enter(frame: FrameType, *_: object) -> Any:
        # What is stopped is the repair. Looking at the names alone changes nothing: what comes before is what comes after.
        name = frame.f_code.co_name
        return count if frame.f_code.co_filename in REPAIR and name not in {"is_current", "is_unchanged"} else None

    outer = sys.gettrace()
    sys.settrace(enter)
    try:
        yield reached
    finally:
        sys.settrace(outer)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is only slow is left out: waiting for a person's hand, and for the disk."""
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
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("first", "then"), PAIRS, ids=[", then ".join(pair) for pair in PAIRS])
def test_what_happens_before_any_line_of_a_repair_loses_nothing_and_gives_no_device_twice(
    tmp_path: Path, first: str, then: str
) -> None:
    for number in itertools.count(1):
        with two(tmp_path / str(number)) as both:
            both.add("a", "d-0")
            both.add("b", "d-1")
            acts: dict[str, Callable[[], object]] = {
                "the other writes": functools.partial(both.add, "b", "d-2"),
                "the other ends": both.stores["b"].journal.close,
            }
            HARMS[first](both.path)
            with before_line(number, acts.get(then) or functools.partial(HARMS[then], both.path)) as reached:
                both.add("a", "d-3")
            if not reached:
                assert number > 50
                return
            with told_at(reached[0]):
                both.check()


@pytest.mark.full
@pytest.mark.crash
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("then", ["removed", "replaced"])
def test_what_was_read_from_a_damaged_file_is_read_again_where_the_new_one_is_lost_before_anybody_has_it(
    tmp_path: Path, then: str
) -> None:
    for number in itertools.count(1):
        with two(tmp_path / str(number)) as both:
            for device in ("d-0", "d-1"):
                both.add("a", device)
            for store in both.stores.values():
                store.journal.close()
            lose_bodies(both.path, "doc")
            damaged = both.path.stat().st_ino

            def is_aside(path: Path = both.path, damaged: int = damaged) -> bool:
                """Before, it is all there is."""
                return not path.exists() or path.stat().st_ino != damaged

            with before_line(number, functools.partial(HARMS[then], both.path), is_aside) as reached:
                both.add("b", "d-2")
            if not reached:
                assert number > 5
                return
            with told_at(reached[0]):
                both.check()


@contextlib.contextmanager
def told_at(line: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as e:
        e.add_note(f"after what happened before {line}")
        raise
