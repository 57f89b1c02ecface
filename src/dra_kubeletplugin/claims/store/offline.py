"""Reads and deletes records for commands of an operator, while the plugin may be running."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...errors import RecordsError
from . import rows
from .schema import as_records_error, connect, transaction

Result = TypeVar("Result")


def read_rows(path: Path, wait: float) -> list[rows.Row]:
    """Returns every row, oldest first, including unreadable ones.

    Raises :class:`RecordsError`.
    """
    return _with(path, wait, rows.read_all)


def forget(path: Path, wait: float, uid: str) -> None:
    """Deletes a row and its holds.

    Raises :class:`RecordsError`.
    """

    def drop(db: sqlite3.Connection) -> None:
        with transaction(db):
            rows.forget(db, uid)

    _with(path, wait, drop)


def _with(path: Path, wait: float, use: Callable[[sqlite3.Connection], Result]) -> Result:
    try:
        db = connect(path, wait)
        try:
            return use(db)
        finally:
            db.close()
    except (sqlite3.Error, OSError, RecordsError) as e:
        raise as_records_error(e, path) from None
