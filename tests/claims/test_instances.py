"""The mark of life of an instance, file by file: who lives, since when, with what; and what is taken away of the dead."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra_kubeletplugin.base import flock as locks
from dra_kubeletplugin.claims import instances as module
from dra_kubeletplugin.claims.instances import InstanceLock, OwnedSocket
from dra_kubeletplugin.plugin.instances import is_newest

pytestmark = pytest.mark.usefixtures("no_leak")
SOCKET = OwnedSocket("/x.sock", 1, 2)
OPENED = 3


def a_clock(seconds: Iterator[float]) -> SimpleNamespace:
    """Of a host that is up for so long at each look; there is no other."""

    def clock_gettime(clock: int) -> float:
        assert clock == time.CLOCK_BOOTTIME
        return next(seconds)

    return SimpleNamespace(CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, clock_gettime=clock_gettime, sleep=lambda s: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "time", a_clock(float(s) for s in itertools.count(100)))
    return tmp_path / "a" / "processes"


@contextlib.contextmanager
def living(folder: Path) -> Iterator[InstanceLock]:
    lock = InstanceLock(folder)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


def written(content: bytes, crc: int | None = None) -> bytes:
    return b"%s\n%08x\n" % (content, zlib.crc32(content) if crc is None else crc)


@contextlib.contextmanager
def locked(path: Path, data: bytes) -> Iterator[None]:
    """A file that somebody alive has, whatever it holds."""
    path.write_bytes(data)
    with path.open("rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def test_a_process_lives_from_its_mark_to_its_release(folder: Path) -> None:
    mine, other = InstanceLock(folder), InstanceLock(folder)
    assert mine.id.startswith(f"{os.getpid()}-")
    assert InstanceLock.pid(mine.id) == str(os.getpid())
    assert (mine.alive(mine.id), other.alive(mine.id)) == (False, False)
    for _ in range(2):
        mine.acquire()
        mine.acquire()
        assert (mine.alive(mine.id), other.alive(mine.id), other.alive(other.id)) == (True, True, False)
        assert [(p.name, p.stat().st_mode & 0o777) for p in folder.iterdir()] == [(f"{mine.id}.lock", 0o600)]
        assert other.alive(mine.id), "asking takes nothing"
        mine.release()
        mine.release()
        assert (mine.alive(mine.id), other.alive(mine.id)) == (False, False)
        assert list(folder.iterdir()) == []


def test_a_mark_that_somebody_removed_is_given_up_all_the_same(folder: Path) -> None:
    with living(folder) as mine:
        (folder / f"{mine.id}.lock").unlink()
    assert not mine.alive(mine.id)
    assert OwnedSocket("/x") == OwnedSocket("/x", 0, 0)


def test_what_is_no_id_lives_not(folder: Path) -> None:
    with living(folder) as mine:
        other = InstanceLock(folder)
        assert not other.alive("")
        assert not other.alive(f"../{folder.name}/{mine.id}")
        assert not other.alive("1-none")


def test_others_are_reported_with_what_they_have(folder: Path) -> None:
    with living(folder) as first, living(folder) as second:
        assert [(o.id, o.since, o.generation) for o in second.others()] == [(first.id, 100.0, 0)]
        first.note_records(OPENED)
        assert [(o.id, o.since, o.generation) for o in second.others()] == [(first.id, 100.0, OPENED)]
        assert [(o.id, o.since, o.generation) for o in first.others()] == [(second.id, 101.0, 0)]
        assert (is_newest(first), is_newest(second)) == (False, True)
        first.note_records(0)
        assert [o.generation for o in second.others()] == [0]
    assert InstanceLock(folder).others() == []


def test_of_two_that_start_in_one_moment_one_is_the_newest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", a_clock(itertools.repeat(5.0)))
    with living(folder) as first, living(folder) as second:
        newest = max(first, second, key=lambda p: p.id)
        assert [is_newest(p) for p in (first, second)] == [p is newest for p in (first, second)]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_between_two_starts_makes_no_older_one_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    now = time.time()
    with living(tmp_path) as first:
        monkeypatch.setattr(time, "time", lambda: now + step)
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        with living(tmp_path) as second:
            (seen,) = first.others()
            assert before <= seen.since <= time.clock_gettime(time.CLOCK_BOOTTIME)
            assert [is_newest(p) for p in (first, second)] == [False, True]
        assert is_newest(first)


def test_notes_before_the_mark_write_nothing(folder: Path) -> None:
    mine = InstanceLock(folder)
    mine.claim_sockets([SOCKET])
    mine.note_records(OPENED)
    assert not folder.exists()
    mine.acquire()
    assert [o.generation for o in InstanceLock(folder).others()] == [OPENED]
    mine.release()


def test_the_file_never_shrinks_and_is_reported_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with living(folder) as mine:
        path = folder / f"{mine.id}.lock"
        mine.claim_sockets([SOCKET] * 10)
        large = path.stat().st_size
        mine.claim_sockets([])
        mine.note_records(OPENED)
        assert path.stat().st_size == large
        assert [o.generation for o in InstanceLock(folder).others()] == [OPENED]
        before = path.stat().st_mtime_ns
        writes: list[int] = []
        monkeypatch.setattr(mine, "_write", lambda: writes.append(1))
        mine.note_records(OPENED)
        assert (writes, path.stat().st_mtime_ns) == ([], before)


def test_of_the_dead_their_sockets_are_reported_and_their_files_go(folder: Path) -> None:
    with living(folder) as mine, living(folder) as other:
        other.claim_sockets([SOCKET, OwnedSocket("/y.sock")])
        copy = (folder / f"{other.id}.lock").read_bytes()
        (folder / "1-dead.lock").write_bytes(copy)
        for name in (
            "0-dead.lock",
            "z-dead.lock",
            ".2-dead.new",
            ".z-dead.new",
        ):  # before and after those of the living
            (folder / name).write_bytes(b"")
        (folder / "precious").write_bytes(b"")
        (folder / "folder.lock").mkdir()
        with locked(folder / ".3-alive.new", b""):
            assert mine.reap_dead() == [SOCKET, OwnedSocket("/y.sock")]
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            [f"{mine.id}.lock", f"{other.id}.lock", ".3-alive.new", "precious", "folder.lock"]
        )
        assert mine.reap_dead() == []
    assert InstanceLock(folder / "nowhere").reap_dead() == []


def test_a_file_that_is_replaced_while_it_is_buried_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    path = folder / "1-dead.lock"
    path.write_bytes(b"")

    def flock(fd: int, how: int) -> None:
        (folder / "new").write_bytes(b"")
        (folder / "new").rename(path)

    fake = SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
    monkeypatch.setattr(locks, "fcntl", fake)
    assert InstanceLock(folder).reap_dead() == []
    assert path.exists()


def test_a_dead_one_is_buried_though_somebody_looks_at_it_just_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks whether it lives has its lock for a moment."""
    folder.mkdir(parents=True)
    path = folder / "1-dead.lock"
    path.write_bytes(written(b'{"sockets": [{"path": "/x"}]}'))
    with path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=lambda _: fcntl.flock(looking, fcntl.LOCK_UN)))
        assert InstanceLock(folder).reap_dead() == [OwnedSocket("/x")]
    assert not path.exists()


NO_FILE_LEFT = """
import errno, os, resource, sys
from pathlib import Path
from dra_kubeletplugin.claims.instances import InstanceLock

living, looking = (InstanceLock(Path(sys.argv[1])) for _ in range(2))
living.acquire()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.dup(0)
except OSError:
    print(looking.alive(living.id))
for look in (looking.others, looking.reap_dead):
    try:
        print(look())
    except OSError as e:
        print(errno.errorcode[e.errno])
"""


def test_where_no_file_is_left_to_open_nobody_is_taken_for_dead_and_nothing_for_gone(tmp_path: Path) -> None:
    """A driver's library has every file open that the process may have."""
    command = [sys.executable, "-c", NO_FILE_LEFT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", *["EMFILE"] * 2]


def test_what_a_living_one_has_open_is_not_taken_for_nothing_where_its_file_cannot_be_read_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with living(folder) as mine:
        mine.note_records(OPENED)
        monkeypatch.setattr(module, "_read_checked", full)
        with pytest.raises(OSError, match="Too many open files"):
            InstanceLock(folder).others()


@pytest.mark.parametrize(
    ("data", "since", "generation"),
    [
        (
            written(b'{"since": 7.5, "generation": 3, "later": 1}'),
            7.5,
            OPENED,
        ),
        (written(b'{"since": 7.5}') + b"   \nmore", 7.5, 0),
        (written(b'{"since": 7.5}', 1), 0.0, None),
        (written(b'{"since": "x"}'), 0.0, None),
        (written(b"[" * 100_000), 0.0, None),
        (b'{"since": 7.5}', 0.0, None),
        (b"", 0.0, None),
    ],
)
def test_a_living_one_lives_whatever_its_file_holds(
    folder: Path, data: bytes, since: float, generation: int | None
) -> None:
    folder.mkdir(parents=True)
    with locked(folder / "1-x.lock", data):
        (other,) = InstanceLock(folder).others()
        assert (other.id, other.since, other.generation) == ("1-x", since, generation)


def test_paths_that_are_none_are_no_sockets(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "1-x.lock").write_bytes(written(b'{"sockets": [{"path": "/a\\u0000b"}, {"path": "/c", "inode": 3}]}'))
    assert InstanceLock(folder).reap_dead() == [OwnedSocket("/c", 0, 3)]


@pytest.mark.parametrize("good", [1, 10, 11])
def test_a_file_within_a_write_is_read_ten_times(folder: Path, good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    path = folder / "1-x.lock"
    reads = 1
    torn, whole = written(b'{"since": 7.5}', 1), written(b'{"since": 7.5}')

    def sleep(seconds: float) -> None:
        nonlocal reads
        reads += 1
        assert seconds < 0.01
        if reads == good:
            path.write_bytes(whole)

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    with locked(path, whole if good == 1 else torn):
        (other,) = InstanceLock(folder).others()
    assert other.since == (7.5 if good <= 10 else 0.0)
    assert reads == (good if good <= 10 else 11)


@pytest.mark.parametrize("fault", [BlockingIOError(), FileNotFoundError()])
def test_a_mark_that_a_cleaner_took_is_made_again(
    folder: Path, fault: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def flock(fd: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise fault
        fcntl.flock(fd, how)

    names: dict[str, Any] = {n: getattr(fcntl, n) for n in ("LOCK_EX", "LOCK_SH", "LOCK_NB")}
    monkeypatch.setattr(module, "fcntl", SimpleNamespace(flock=flock, **names))
    with living(folder) as mine:
        assert InstanceLock(folder).alive(mine.id)


def test_a_mark_that_cannot_be_made_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=1, LOCK_NB=2))
    mine = InstanceLock(folder)
    with pytest.raises(OSError, match="Input/output"):
        mine.acquire()
    assert not mine.alive(mine.id)
