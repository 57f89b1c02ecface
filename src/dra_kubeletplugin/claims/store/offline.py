"""Reads and deletes records for commands of an operator, while the plugin may be running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...base.files import named
from ...base.flock import FileLock
from ...cdi.directory import write_file
from ...errors import RecordsError
from ..record import Row, UnreadableRecord
from .files import LOCK, acquire, as_records_error, is_record_file, read_content, remove_claim, temporary_path
from .records import NODE_FILE, SUFFIX, Records, file_name, meta_of, stored_of, uid_of


def read_rows(path: Path) -> list[Row]:
    """Returns every record in a folder, oldest first, then unreadable ones. Needs no lock: each file is replaced as a whole.

    Raises :class:`RecordsError`.
    """
    records, damaged = _read(path)
    return [*records.read_all(), *damaged]


def _read(path: Path) -> tuple[Records, list[Row]]:
    """Returns the records, and a row for each damaged file."""
    records, damaged = Records(), list[Row]()
    try:
        for file in named(path, "", SUFFIX):
            if not is_record_file(file.name) or (data := read_content(file)) is None:
                continue  # another file, or the claim has just ended
            if file.name == NODE_FILE:
                records.load_meta(meta_of(data) or {})
            elif stored := stored_of(data, file.name):
                records.load(stored)
            else:
                damaged.append(UnreadableRecord(uid_of(file.name), "the first line of its file is damaged", {}))
    except OSError as e:
        raise as_records_error(e, path) from None
    return records, damaged


def forget(path: Path, wait: float, uid: str, remove_files: Callable[[], None] = lambda: None) -> None:
    """Deletes a record and its holds. Waits up to ``wait`` seconds for other processes.

    ``remove_files`` removes the claim's other files; from a note, the plugin would restore the record.

    Raises :class:`RecordsError`.
    """
    lock = FileLock(path / LOCK)
    try:
        acquire(lock, wait)
        remove_files()
        records, _ = _read(path)
        records.forget(uid)
        for name, data in {**records.changed_files(), file_name(uid): None}.items():
            if data is None:
                remove_claim(path, name)
            else:
                write_file(f"{path}/{name}", temporary_path(path, name), data, 0o600)
    except (OSError, RecordsError) as e:
        raise as_records_error(e, path) from None
    finally:
        lock.close()
