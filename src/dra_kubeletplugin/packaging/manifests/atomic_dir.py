"""Temporary folders beside the result, so that a result gets its final name only when it is complete.

Temporary folders of killed runs are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".dra-unfinished-"
# A file of this name proves that this package made the folder, so a user's folder with such a name is never deleted.
_MARK = "made-by-dra"
_INNER = "files"


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty temporary folder within ``folder``, and deletes it at the end.

    A file lock admits one process at a time, so any other temporary folder belongs to a killed run and is deleted.

    Raises ``OSError``.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        alone = False
        with contextlib.suppress(OSError):  # not every file system supports locks
            fcntl.flock(opened, fcntl.LOCK_EX)
            alone = True
        for leftover in folder.glob(f"{_PREFIX}*") if alone else ():
            _clear(leftover)
        made = Path(tempfile.mkdtemp(dir=folder, prefix=_PREFIX))
        try:
            (made / _MARK).touch()
            (made / _INNER).mkdir()
            yield made / _INNER
        finally:
            _clear(made)
    finally:
        os.close(opened)


def _clear(made: Path) -> None:
    """Deletes a temporary folder: its content, then the mark, then the folder. A later run can thus finish an interrupted deletion."""
    with contextlib.suppress(OSError):
        if not made.is_symlink() and (made / _MARK).is_file():
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(made / _INNER)
            (made / _MARK).unlink()
        made.rmdir()  # an empty folder belongs to a run that was killed at its start
