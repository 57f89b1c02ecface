"""A place beside what is made, so that it is whole when it gets its name; and the end of what a run left that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".dra-unfinished-"
_MARK = "made-by-dra"  # a folder of this name that somebody else made has none
_INNER = "files"


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """An empty folder within ``folder``, which is gone at the end. One at a time has one there, so any other is of a run that was
    killed, and is taken away.

    Raises ``OSError``.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        alone = False
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(opened, fcntl.LOCK_EX)
            alone = True
        for left in folder.glob(f"{_PREFIX}*") if alone else ():
            _clear(left)
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
    """The mark goes last but one, so that this can be cut anywhere, and be done again."""
    with contextlib.suppress(OSError):
        if not made.is_symlink() and (made / _MARK).is_file():
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(made / _INNER)
            (made / _MARK).unlink()
        made.rmdir()  # an empty one is of a run that had just begun
