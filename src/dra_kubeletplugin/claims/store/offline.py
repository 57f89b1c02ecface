"""Reads and deletes records for commands of an operator, while the plugin may be running."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ...base.flock import FolderLock
from ...errors import RecordsError
from ..record import Row
from .journal import acquire, as_records_error
from .journal_file import JournalFile


def read_rows(path: Path) -> list[Row]:
    """Returns every record, oldest first, including unreadable ones. Needs no lock: it ignores a write that is not complete.

    Raises :class:`RecordsError`.
    """
    try:
        file = JournalFile(path, os.O_RDONLY)
    except (OSError, RecordsError) as e:
        raise as_records_error(e, path) from None
    file.close()
    return file.records.read_all()


def forget(path: Path, wait: float, uid: str) -> None:
    """Deletes a record and its holds. Waits up to ``wait`` seconds for other processes.

    Raises :class:`RecordsError`.
    """
    lock = FolderLock(path.parent)
    try:
        acquire(lock, path, time.monotonic() + wait)
        file = JournalFile(path)
        if file.fault:
            raise RecordsError(f"{path} is damaged ({file.fault}): start the plugin, which repairs it, and try again")
        file.records.forget(uid)
        file.append(file.records.changed_lines(), sync=True)
        file.close()
    except (OSError, RecordsError) as e:
        raise as_records_error(e, path) from None
    finally:
        lock.close()
