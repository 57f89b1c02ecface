"""Locks on files and folders between processes. The kernel releases them when the process ends."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest

from dra_kubeletplugin.base.flock import FileLock, FolderLock, remove_unlocked


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


async def test_a_task_that_waits_for_a_lock_does_not_block_the_event_loop_and_takes_nothing_if_it_is_cancelled(
    tmp_path: Path,
) -> None:
    holder, cancelled, waiter = (FolderLock(tmp_path) for _ in range(3))
    holder.acquire(0)
    tasks = [asyncio.create_task(lock.acquire_async(60)) for lock in (cancelled, waiter)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    holder.close()
    await tasks[1]
    assert not can_lock(tmp_path)
    with pytest.raises(TimeoutError):
        await cancelled.acquire_async(0)
    waiter.close()
    assert can_lock(tmp_path), "the cancelled task holds no lock"


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
def test_a_file_that_its_holder_removes_is_not_the_lock_of_the_process_that_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    holder, waiter = FileLock(path), FileLock(path)
    holder.acquire(0)
    thread = threading.Thread(target=waiter.acquire, args=(60,))
    thread.start()
    thread.join(0.05)  # usually it has opened the file then
    holder.remove()
    thread.join()
    assert not can_lock_file(path), "the locked file is the file with the name"
    waiter.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_only_a_file_without_a_holder_is_removed(tmp_path: Path) -> None:
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
