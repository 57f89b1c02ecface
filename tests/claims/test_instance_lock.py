"""The lock file of an instance: which instances run, since when; and which files of dead instances are removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin.claims.instance_lock import InstanceLock, OwnedSocket
from tests.helpers.crash.file_faults import failing_calls

pytestmark = pytest.mark.usefixtures("no_leak")
SOCKET = OwnedSocket("/x.sock", 1, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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


def test_other_instances_are_reported_with_their_start_since_boot_and_exactly_one_is_the_newest(folder: Path) -> None:
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    with running_lock(folder) as first, running_lock(folder) as second:
        assert began <= first.since < second.since <= time.clock_gettime(time.CLOCK_BOOTTIME)
        assert [(o.id, o.since) for o in second.others()] == [(first.id, first.since)]
        first.write_sockets([SOCKET])
        assert [(o.id, o.since) for o in second.others()] == [(first.id, first.since)]
        assert [(o.id, o.since) for o in first.others()] == [(second.id, second.since)]
        assert (first.is_newest(), second.is_newest()) == (False, True)
        for id, is_first in (("0-x", True), ("x-x", False)):  # with the same start, the id decides
            with locked_file(folder / f"{id}.lock", b"%r\n[]\n" % second.since):
                assert second.is_newest() is is_first
            (folder / f"{id}.lock").unlink()
    assert InstanceLock(folder).others() == []
    assert not InstanceLock(folder).alive("")
    assert not InstanceLock(folder).alive("1-none")


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
    folder: Path, is_locked: bool
) -> None:
    def clean() -> None:
        assert is_locked or (InstanceLock(folder).reap_dead(), list(folder.iterdir())) == ([], [])

    with failing_calls(errno.EAGAIN * is_locked, "flock", when=lambda number: number == 1, do=clean):
        lock = InstanceLock(folder)
        lock.acquire()
    assert InstanceLock(folder).alive(lock.id)
    assert [o.since for o in InstanceLock(folder).others()] == [lock.since], "the new file has its content"
    (folder / f"{lock.id}.lock").unlink()
    lock.release()
    assert not lock.alive(lock.id), "a lock whose file was removed can be released"


def test_a_lock_that_cannot_be_acquired_is_reported(folder: Path) -> None:
    lock = InstanceLock(folder)
    with failing_calls(errno.EIO, "flock"), pytest.raises(OSError, match="Input/output"):
        lock.acquire()
    assert not lock.alive(lock.id)
