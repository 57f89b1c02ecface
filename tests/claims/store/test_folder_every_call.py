"""A process is killed before each system call of its work on the records, or one call fails: no device gets a second
holder.

The next start also removes all remains. All instances run in this thread. A kill is an exception that each later call
raises too. The tests know no format: they find files by a walk of the plugin's folder.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.errors import RecordsError
from tests.helpers.crash.file_faults import replaced
from tests.helpers.crash.record_node import RecordNode
from tests.helpers.crash.record_stores import data_files, end_recovery, memory_folder

CALLS = [
    "open", "read", "write", "pread", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "replace", "unlink", "link",
    "mkdir", "listdir", "scandir", "stat", "fstat", "lstat",
]  # fmt: skip
STEP = 3  # `make test` checks each third call
Work = Callable[["RecordNode"], Iterator[None]]


class Killed(BaseException):
    """The process of an instance is killed."""


class Calls:
    """Makes the system call with this number raise; with ``permanent``, each later call too. ``reached`` is its name.

    Calls are counted only in :meth:`counted`, so that other instances and the test itself are not killed.
    """

    def __init__(self, number: int, fails: Callable[[str], BaseException], *, permanent: bool) -> None:
        self.number, self.fails, self.permanent = number, fails, permanent
        self.count = itertools.count(1)
        self.reached = ""
        self.thread = threading.current_thread()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with replaced(CALLS, self._wrap):
            yield

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if (self.reached and self.permanent) or next(self.count) == self.number:
                self.reached = self.reached or name
                failure = self.fails(name)
                if isinstance(failure, OSError) or threading.current_thread() is self.thread:
                    raise failure
                # The main thread waits for this one, and is killed at its next call.
                raise OSError(errno.EIO, "killed", name)
            return real(*args, **options)

        return call


# --- the work: the other instance works at each yield -----------------------------------------------


def prepare(node: RecordNode) -> Iterator[None]:
    yield from node.prepare("u-new", "d-new")


def unprepare(node: RecordNode) -> Iterator[None]:
    yield from node.unprepare("u-0", "d-0")


def roll_back_failed_prepare(node: RecordNode) -> Iterator[None]:
    """The prepare fails after its undo step was saved."""
    yield from itertools.islice(node.prepare("u-new", "d-new"), 2)
    yield from node.unprepare("u-new", "d-new")


def lose_unprepared(node: RecordNode) -> None:
    """Only the engine, which these tests do not have, can write the record of a claim without files again."""
    del node.holders["d-2"], node.steps["u-2"]


def damage(node: RecordNode) -> Iterator[None]:
    """The record of a claim is damaged, each part of it."""
    for path in data_files(node.folder):
        if path.parent.name != "cdi" and b"u-0" in (data := path.read_bytes()):
            path.write_bytes(data.replace(b"u-0", b"u-X"))
    yield
    node.stores[0].folder.check()
    end_recovery(node.stores[0])
    yield from prepare(node)


def overwrite(node: RecordNode) -> Iterator[None]:
    lose_unprepared(node)
    for path in data_files(node.folder):
        if path.parent.name != "cdi" and b"u-0" in path.read_bytes():
            path.write_bytes(b"garbage" * 1000)
    yield
    node.stores[0].folder.check()


def remove(node: RecordNode) -> Iterator[None]:
    """All records are removed, with their folder if they have one."""
    lose_unprepared(node)
    for path in set(node.folder.iterdir()) - {node.folder / "cdi", node.folder / "processes"}:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    yield
    end_recovery(node.stores[0])
    yield from prepare(node)


WORK: dict[str, Work] = {
    w.__name__: w for w in (prepare, unprepare, roll_back_failed_prepare, damage, overwrite, remove)
}
FAULTS = frozenset({"damage", "overwrite", "remove"})  # the first step of this work is the fault: it is not counted


def do_work(node: RecordNode, work: str, calls: Calls) -> None:
    """Runs all steps with counted calls. The second instance prepares a claim after each step."""
    steps = WORK[work](node)
    if work in FAULTS:
        next(steps)
    # A RecordsError: the store waits for the other instance, which does not read again.
    with contextlib.suppress(Killed, RecordsError, OSError):
        for number in itertools.count():
            with calls.counted():
                if next(steps, steps) is steps:
                    return
            if len(node.stores) == 2:
                with contextlib.suppress(RecordsError):
                    for _ in node.prepare(f"other-{number}", f"d-other-{number}", node.stores[1]):
                        pass


def check_killed(work: str, instances: int, folder: Path, number: int) -> bool:
    node = RecordNode(folder, instances)
    calls = Calls(number, Killed, permanent=True)
    do_work(node, work, calls)
    try:
        node.stores[0].kill_now()
        for store in node.stores[1:]:
            store.folder.check()
            node.check(store)
        restarted = node.start()
        node.check_end(restarted, node.stores[1:])
        for store in [restarted, *node.stores[1:]]:
            store.kill_now()
    except BaseException as e:
        e.add_note(f"killed before call {number}, {calls.reached}")
        raise
    return bool(calls.reached)


def check_failed(work: str, instances: int, error: int, folder: Path, number: int, *, permanent: bool) -> bool:
    node = RecordNode(folder, instances)
    calls = Calls(number, lambda name: OSError(error, os.strerror(error), name), permanent=permanent)
    do_work(node, work, calls)
    try:
        for store in node.stores * 2:  # each instance lets the other continue
            with contextlib.suppress(RecordsError):
                store.folder.check()
        for store in node.stores:
            node.check(store)
            assert node.state(store) == node.state(node.stores[0])
        for store in node.stores:
            store.kill_now()
        restarted = node.start()
        node.check_end(restarted, [])
        restarted.kill_now()
    except BaseException as e:
        e.add_note(f"call {number} failed, {calls.reached}")
        raise
    return bool(calls.reached)


def count_calls(step: int, run: Callable[[Path, int], bool]) -> int:
    """Calls ``run`` with the number of each call until one is not reached. Prints and returns the number of calls."""
    with memory_folder() as folder:
        for number in itertools.count(1, step):
            reached = run(folder / "node", number)
            shutil.rmtree(folder / "node")
            if not reached:
                print(f"{number - 1} calls")
                return number - 1
    raise AssertionError


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_kill_before_a_call_loses_no_record(work: str, instances: int, step: int) -> None:
    assert count_calls(step, lambda folder, n: check_killed(work, instances, folder, n)) > 5


ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)


# A permanent fault ends with the restart.
@pytest.mark.parametrize(
    ("step", "error", "permanent"),
    [
        (STEP, errno.ENOSPC, False),
        *(pytest.param(1, *fault, marks=pytest.mark.full) for fault in itertools.product(ERRORS, [False, True])),
    ],
)
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_a_failed_call_loses_no_record(work: str, instances: int, step: int, error: int, permanent: bool) -> None:
    def run(folder: Path, number: int) -> bool:
        return check_failed(work, instances, error, folder, number, permanent=permanent)

    assert count_calls(step, run) > 5
