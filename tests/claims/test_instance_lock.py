"""The lock file of an instance: which instances run, since when; and which files of dead instances are removed."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra_kubeletplugin.base import flock as locks
from dra_kubeletplugin.claims import instance_lock as module
from dra_kubeletplugin.claims.instance_lock import InstanceLock, OwnedSocket
from dra_kubeletplugin.plugin.instances import is_newest

pytestmark = pytest.mark.usefixtures("no_leak")
SOCKET = OwnedSocket("/x.sock", 1, 2)


def fake_clock(seconds: Iterator[float]) -> SimpleNamespace:
    """Returns a clock whose readings are ``seconds``, one after the other. The host has no other clock."""

    def clock_gettime(clock: int) -> float:
        assert clock == time.CLOCK_BOOTTIME
        return next(seconds)

    return SimpleNamespace(CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, clock_gettime=clock_gettime, sleep=lambda s: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "time", fake_clock(float(s) for s in itertools.count(100)))
    return tmp_path / "a" / "processes"


@contextlib.contextmanager
def running_lock(folder: Path) -> Iterator[InstanceLock]:
    lock = InstanceLock(folder)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


@contextlib.contextmanager
def locked_file(path: Path, data: bytes) -> Iterator[None]:
    """A lock file of a running process with any content."""
    path.write_bytes(data)
    with path.open("rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def test_a_process_is_alive_from_the_acquisition_of_its_lock_to_the_release(folder: Path) -> None:
    lock, other_lock = InstanceLock(folder), InstanceLock(folder)
    assert lock.id.startswith(f"{os.getpid()}-")
    assert InstanceLock.pid(lock.id) == str(os.getpid())
    assert (lock.alive(lock.id), other_lock.alive(lock.id)) == (False, False)
    for _ in range(2):
        lock.acquire()
        assert (lock.alive(lock.id), other_lock.alive(lock.id), other_lock.alive(other_lock.id)) == (True, True, False)
        assert [(p.name, p.stat().st_mode & 0o777) for p in folder.iterdir()] == [(f"{lock.id}.lock", 0o600)]
        assert other_lock.alive(lock.id), "a check does not remove the lock"
        lock.release()
        lock.release()
        assert (lock.alive(lock.id), other_lock.alive(lock.id)) == (False, False)
        assert list(folder.iterdir()) == []


def test_a_lock_whose_file_was_removed_can_be_released(folder: Path) -> None:
    with running_lock(folder) as lock:
        (folder / f"{lock.id}.lock").unlink()
    assert not lock.alive(lock.id)


def test_an_unknown_id_is_not_alive(folder: Path) -> None:
    assert not InstanceLock(folder).alive("")
    assert not InstanceLock(folder).alive("1-none")


def test_other_instances_are_reported_with_their_start(folder: Path) -> None:
    with running_lock(folder) as first, running_lock(folder) as second:
        assert [(o.id, o.since) for o in second.others()] == [(first.id, 100.0)]
        first.write_sockets([SOCKET])
        assert [(o.id, o.since) for o in second.others()] == [(first.id, 100.0)]
        assert [(o.id, o.since) for o in first.others()] == [(second.id, 101.0)]
        assert (is_newest(first), is_newest(second)) == (False, True)
    assert InstanceLock(folder).others() == []


def test_exactly_one_of_two_instances_with_equal_start_times_is_the_newest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", fake_clock(itertools.repeat(5.0)))
    with running_lock(folder) as first, running_lock(folder) as second:
        newest = max(first, second, key=lambda p: p.id)
        assert [is_newest(p) for p in (first, second)] == [p is newest for p in (first, second)]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_change_of_the_clock_between_two_starts_does_not_make_the_older_instance_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    now = time.time()
    with running_lock(tmp_path) as first:
        monkeypatch.setattr(time, "time", lambda: now + step)
        real_boottime = time.clock_gettime(time.CLOCK_BOOTTIME)
        with running_lock(tmp_path) as second:
            (other_instance,) = first.others()
            assert real_boottime <= other_instance.since <= time.clock_gettime(time.CLOCK_BOOTTIME)
            assert [is_newest(p) for p in (first, second)] == [False, True]
        assert is_newest(first)


def test_sockets_of_dead_instances_are_reported_and_their_files_are_removed(folder: Path) -> None:
    with running_lock(folder) as lock, running_lock(folder) as other_lock:
        for sockets in ([SOCKET] * 10, [SOCKET, OwnedSocket("/y.sock")]):  # the file never shrinks
            other_lock.write_sockets(sockets)
        copy = (folder / f"{other_lock.id}.lock").read_bytes()
        (folder / "1-dead.lock").write_bytes(copy)
        for name in ("0-dead.lock", "z-dead.lock"):  # before and after those of the running instances
            (folder / name).write_bytes(b"")
        (folder / "precious").write_bytes(b"")
        (folder / "folder.lock").mkdir()
        assert lock.reap_dead() == [SOCKET, OwnedSocket("/y.sock")]
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            [f"{lock.id}.lock", f"{other_lock.id}.lock", "precious", "folder.lock"]
        )
        assert lock.reap_dead() == []
    assert InstanceLock(folder / "nowhere").reap_dead() == []


def test_a_dead_instance_is_removed_also_if_another_process_checks_it_at_that_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that checks the instance holds its lock for a moment."""
    folder.mkdir(parents=True)
    path = folder / "1-dead.lock"
    path.write_bytes(b'1.0\n[{"path": "/x"}]\n')
    with path.open("rb") as checked_file:
        fcntl.flock(checked_file, fcntl.LOCK_SH)
        unlock = lambda _: fcntl.flock(checked_file, fcntl.LOCK_UN)  # noqa: E731
        monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=unlock, monotonic=lambda: 0.0))
        assert InstanceLock(folder).reap_dead() == [OwnedSocket("/x")]
    assert not path.exists()


NO_FILE_LEFT = """
import errno, os, resource, sys
from pathlib import Path
from dra_kubeletplugin.claims.instance_lock import InstanceLock

running, checking = (InstanceLock(Path(sys.argv[1])) for _ in range(2))
running.acquire()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.dup(0)
except OSError:
    print(checking.alive(running.id))
for check in (checking.others, checking.reap_dead):
    try:
        print(check())
    except OSError as e:
        print(errno.errorcode[e.errno])
"""


def test_without_free_file_descriptors_no_instance_is_considered_dead_or_missing(tmp_path: Path) -> None:
    """A library of the driver has opened as many files as the process may have."""
    command = [sys.executable, "-c", NO_FILE_LEFT, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split() == ["True", *["EMFILE"] * 2]


@pytest.mark.parametrize(
    ("data", "since"),
    [
        (b"7.5\n[]\n   \nmore", 7.5),
        (b'"x"\n[]\n', 0.0),
        (b"[" * 100_000, 0.0),
        (b"", 0.0),
    ],
    ids=["longer", "type", "nested", "empty"],
)
def test_a_running_instance_is_alive_whatever_its_file_contains(folder: Path, data: bytes, since: float) -> None:
    folder.mkdir(parents=True)
    with locked_file(folder / "1-x.lock", data):
        (other_lock,) = InstanceLock(folder).others()
        assert (other_lock.id, other_lock.since) == ("1-x", since)


@pytest.mark.parametrize("is_locked", [True, False], ids=["checked", "removed"])
def test_a_file_that_a_cleanup_checks_or_removes_before_it_is_locked_is_acquired_again(
    folder: Path, is_locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def flock(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            if is_locked:
                raise BlockingIOError
            assert InstanceLock(folder).reap_dead() == []
            assert list(folder.iterdir()) == []
        fcntl.flock(fd, operation)

    names: dict[str, Any] = {n: getattr(fcntl, n) for n in ("LOCK_EX", "LOCK_SH", "LOCK_NB", "LOCK_UN")}
    monkeypatch.setattr(locks, "fcntl", SimpleNamespace(flock=flock, **names))
    with running_lock(folder) as lock:
        assert InstanceLock(folder).alive(lock.id)
        assert [o.since for o in InstanceLock(folder).others()] == [100.0], "the new file has its content"


def test_a_lock_that_cannot_be_acquired_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(locks, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=1, LOCK_NB=2))
    lock = InstanceLock(folder)
    with pytest.raises(OSError, match="Input/output"):
        lock.acquire()
    assert not lock.alive(lock.id)
