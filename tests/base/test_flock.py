"""Locks on folders between processes. The kernel releases them when the process ends."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.base.flock import FolderLock


def can_lock(folder: Path) -> bool:
    """Returns whether another open file of the folder, as in another process, can lock the folder now."""
    other = FolderLock(folder)
    try:
        other.acquire(0)
    except TimeoutError:
        return False
    finally:
        other.close()
    return True


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


def test_acquire_waits_until_the_deadline(tmp_path: Path) -> None:
    holder, waiter = FolderLock(tmp_path), FolderLock(tmp_path)
    holder.acquire(0)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="is locked"):
        waiter.acquire(began + 0.05)
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


def test_acquire_raises_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        FolderLock(tmp_path / "file").acquire(0)


@pytest.mark.usefixtures("no_leak")
def test_a_failed_check_of_the_folder_name_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FolderLock(tmp_path)

    def fails(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "samestat", fails)
        with pytest.raises(OSError, match="No space left"):
            lock.acquire(0)
    assert can_lock(tmp_path)
