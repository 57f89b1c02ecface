"""Reads and deletes records for commands of an operator, while the plugin may be running."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ...base.files import named
from ...base.flock import FileLock
from ...errors import RecordsError
from ..record import Row
from .files import LOCK, acquire, as_records_error, is_record_file, read_content, remove_claim
from .records import NODE_FILE, SUFFIX, Records, file_name, stored_of


def read_rows(path: Path) -> list[Row]:
    """Returns every record in a folder, unreadable ones first, then the oldest first.

    Needs no lock: each file is replaced as a whole. Raises :class:`RecordsError`.
    """
    records = Records()
    try:
        for file in named(path, "", SUFFIX):
            if file.name != NODE_FILE and is_record_file(file.name) and (data := read_content(file)) is not None:
                records.load(stored_of(data, file.name))
    except OSError as e:
        raise as_records_error(e, path) from None
    return records.read_all()


def forget(path: Path, wait: float, uid: str, remove_files: Callable[[], None] = lambda: None) -> None:
    """Deletes a record and its holds. Waits up to ``wait`` seconds for other processes.

    ``remove_files`` removes the claim's other files; from a note, the plugin would restore the record.

    Raises :class:`RecordsError`.
    """
    try:
        with contextlib.closing(FileLock(path / LOCK)) as lock:
            acquire(lock, wait)
            remove_files()
            remove_claim(path, file_name(uid))
    except (OSError, RecordsError) as e:
        raise as_records_error(e, path) from None
