"""Locks on files and folders between processes. The kernel releases them when the process ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_kubeletplugin.base import flock as module
from dra_kubeletplugin.base.flock import FileLock, FolderLock, remove_unlocked
from tests.helpers.crash.harness import ROOT


def can_take(other: FileLock | FolderLock) -> bool:
    """Returns whether another open file, as in another process, can take the lock now."""
    try:
        other.acquire(0)
    except TimeoutError:
        return False
    finally:
        other.close()
    return True


def can_lock(folder: Path) -> bool:
    return can_take(FolderLock(folder))


def test_a_folder_has_one_lock_and_the_lock_creates_no_file(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire(0)
    assert not can_lock(tmp_path)
    lock.release()
    assert can_lock(tmp_path)
    lock.acquire(0)
    assert not can_lock(tmp_path)
    lock.close()
    assert can_lock(tmp_path)
    lock.release()  # no effect
    lock.close()
    assert list(tmp_path.iterdir()) == []


def test_acquire_waits_until_its_timeout(tmp_path: Path) -> None:
    holder, waiter = FolderLock(tmp_path), FolderLock(tmp_path)
    holder.acquire(0)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="is locked"):
        waiter.acquire(0.05)
    assert time.monotonic() > began + 0.05
    holder.close()
    waiter.acquire(0)
    waiter.close()


@pytest.mark.usefixtures("no_leak")
def test_a_lock_applies_to_the_new_folder_after_a_replacement(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lock = FolderLock(folder)
    lock.acquire(0)
    lock.release()
    folder.rename(tmp_path / "away")
    folder.mkdir()
    lock.acquire(0)
    assert not can_lock(folder)
    assert can_lock(tmp_path / "away")
    lock.close()


@pytest.mark.usefixtures("no_leak")
def test_acquire_raises_for_a_removed_folder_until_it_exists_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lock = FolderLock(folder)
    lock.acquire(0)
    lock.release()
    shutil.rmtree(folder)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            lock.acquire(0)
    folder.mkdir()
    lock.acquire(0)
    assert not can_lock(folder)
    lock.close()


def test_a_folder_behind_a_symbolic_link_has_the_lock_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    lock = FolderLock(tmp_path / "link")
    lock.acquire(0)
    assert not can_lock(tmp_path / "target")
    lock.close()


async def test_a_task_that_waits_for_a_lock_does_not_block_the_event_loop_and_takes_nothing_if_it_is_cancelled(
    tmp_path: Path,
) -> None:
    holder, cancelled, waiter = (FolderLock(tmp_path) for _ in range(3))
    holder.acquire(0)
    tasks = [asyncio.create_task(lock.acquire_async(60)) for lock in (cancelled, waiter)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert cancelled._fd < 0
    holder.close()
    await tasks[1]
    assert not can_lock(tmp_path)
    with pytest.raises(TimeoutError):
        await cancelled.acquire_async(0)
    waiter.close()


# --- files -----------------------------------------------------------------------------------------


def can_lock_file(path: Path) -> bool:
    return can_take(FileLock(path))


@pytest.mark.usefixtures("no_leak")
def test_a_lock_file_is_created_and_removed_and_its_content_is_replaced_in_place(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock = FileLock(path, b"first")
    lock.remove()  # no effect
    for _ in range(2):
        lock.acquire(0)
        assert [(p.name, p.stat().st_mode & 0o777, p.read_bytes()) for p in tmp_path.iterdir()] == [
            ("x.lock", 0o600, b"first")
        ]
        lock.write(b"a longer text")
        lock.write(b"short")
        assert lock.read() == path.read_bytes() == b"short        "
        assert not can_lock_file(path)
        lock.remove()
        lock.remove()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_a_lock_is_removed_with_its_own_file_and_never_with_another_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    path.unlink()
    second.acquire(0)
    first.remove()
    assert path.exists()
    second.remove()
    first.acquire(0)
    path.unlink()
    first.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("is_replaced", [True, False], ids=["file of another process", "no file"])
def test_a_file_that_is_removed_during_the_acquisition_is_not_the_lock(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, times = tmp_path / "x.lock", 0

    def flock(fd: int, operation: int) -> None:
        nonlocal times
        times += 1
        fcntl.flock(fd, operation)
        if times == 1:
            path.unlink()
            if is_replaced:
                path.touch()

    monkeypatch.setattr(module, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    lock = FileLock(path)
    lock.acquire(0)
    monkeypatch.undo()
    assert not can_lock_file(path), "the locked file is the file with the name"
    lock.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_a_file_that_another_process_is_removing_does_not_prevent_an_acquisition_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    with path.open("w") as locked_file:
        fcntl.flock(locked_file, fcntl.LOCK_EX)

        def remove_and_unlock(seconds: float) -> None:
            path.unlink(missing_ok=True)
            fcntl.flock(locked_file, fcntl.LOCK_UN)

        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=remove_and_unlock, monotonic=lambda: 0.0))
        lock = FileLock(path)
        lock.acquire_at_once()
        monkeypatch.undo()
        assert not can_lock_file(path)
        lock.remove()


@pytest.mark.usefixtures("no_leak")
def test_only_a_file_without_a_holder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.lock"
    assert remove_unlocked(path) == b""
    path.write_bytes(b"content")
    assert remove_unlocked(path) == b"content"
    assert not path.exists()
    lock = FileLock(path)
    lock.acquire(0)
    assert remove_unlocked(path) == b""
    assert path.exists()
    lock.remove()
    path.write_bytes(b"dead")

    def flock(fd: int, operation: int) -> None:  # a new process creates and locks the file during the removal
        if lock._fd < 0:
            path.unlink()
            monkeypatch.undo()
            lock.acquire(0)
        fcntl.flock(fd, operation)

    monkeypatch.setattr(module, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    assert remove_unlocked(path) == b""
    assert path.exists()
    lock.remove()


LOCKING = """
import sys, time
from pathlib import Path
from dra_kubeletplugin.base.flock import FileLock
lock = FileLock(Path(sys.argv[1]))
while time.time() < float(sys.argv[2]):
    pass
try:
    lock.acquire_at_once()
except TimeoutError:
    print(0, flush=True)
else:
    print(1, flush=True)
sys.stdin.read()
"""


@pytest.mark.full
def test_exactly_one_real_process_gets_a_lock_and_the_lock_of_a_killed_process_is_acquired(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    for _ in range(3):
        start_time = str(time.time() + 1.5)
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        processes = [
            subprocess.Popen([sys.executable, "-c", LOCKING, str(path), start_time], env=env, stdin=-1, stdout=-1, text=True)
            for _ in range(3)
        ]  # fmt: skip
        got = [p.stdout.readline().strip() for p in processes if p.stdout]
        for p in processes:
            p.send_signal(signal.SIGKILL)
            p.communicate()
        assert sorted(got) == ["0", "0", "1"]
        assert [p.name for p in tmp_path.iterdir()] == ["x.lock"], (
            "the next process uses the file of the killed process"
        )
