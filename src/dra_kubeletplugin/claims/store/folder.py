"""Names the files of the record database. A process may die between any two lines here: the names alone show the remaining steps.

``records.db`` and its log; ``.records.db.new-<instance>``, which is renamed to it when complete; ``.repair-lock``, which protects
the renames. An unusable file is set aside in two steps. ``records.db.unmerged-<time>`` has not been read yet: the next instance that
opens the database reads it first. ``records.db.damaged-<time>`` has been read and is kept for people.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ...base import forks
from ...base.files import named
from ...errors import RecordsBusyError
from ..instances import InstanceLock
from .schema import PARTS, Inode, lenient, sync_file, transaction

log = logging.getLogger(__name__)
POLL = 0.02  # seconds
_UNMERGED, _DAMAGED = "unmerged-", "damaged-"
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_A_MOMENT = timedelta(microseconds=1)
_REMOVING = 0.25  # seconds; on a busy node a program that removes several names may pause between two


class RecordFolder:
    """The files around the database at ``path``, as instance ``process`` reads and renames them. ``wait`` is in seconds."""

    def __init__(self, path: Path, process: InstanceLock, wait: float) -> None:
        self.path = path
        self.process = process
        self.wait = wait

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Takes the repair lock: one instance creates or repairs the database, and the next one finds the new file.

        Raises :class:`RecordsBusyError` after ``wait`` seconds.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name = self.path.with_name(".repair-lock")
        fd = forks.open_file(name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + self.wait
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise RecordsBusyError(
                            f"{self.path} is being repaired by another instance of the plugin for more than {self.wait:g}s: "
                            "delete its pod if it hangs"
                        ) from None
                    time.sleep(POLL)
            yield
        finally:
            forks.close(fd)

    def clean(self) -> None:
        """Removes unfinished files of instances that died."""
        for path in self._unfinished():
            try:
                path.unlink(missing_ok=True)
            except OSError as e:
                log.warning("%s is left behind: %s", path, e.strerror)

    def _unfinished(self) -> list[Path]:
        names = [
            *named(self.path.parent, f".{self.path.name}.new-"),
            *named(self.path.parent, f".{self.path.name}.again-"),
        ]
        return [p for p in names if not self.process.alive(p.name.rpartition(".new-")[2])]

    def set_aside(self) -> Path:
        """Renames the database and its log so that it is no longer used. Returns the final name of the file."""
        aside = self._aside_name()
        # The database file first: without its log it would look complete, but be outdated.
        for part in PARTS:
            with contextlib.suppress(FileNotFoundError):
                _with(self.path, part).rename(_with(aside, part))
        sync_file(self.path.parent)
        return _final(aside)

    def set_aside_alone(self) -> Path:
        """Renames the database file, but not the log beside it, which belongs to another file. Returns the final name."""
        aside = _final(self._aside_name())
        self.path.rename(aside)
        return aside

    def finish_setting_aside(self) -> None:
        """Renames a log that stayed when a process died between two renames: it belongs to the newest file that was set aside."""
        left = [part for part in PARTS[1:] if _with(self.path, part).exists()]
        aside = max(self.unmerged(), default=None)
        if not left:
            return
        aside = aside or _final(self._aside_name())
        for part in left:
            if not _with(aside, part).exists():
                _with(self.path, part).rename(_with(aside, part))

    def publish(self, make: Callable[[sqlite3.Connection], None]) -> None:
        """Creates a database that ``make`` fills in one transaction, and renames it when it is synced."""
        new = self.path.with_name(f".{self.path.name}.new-{self.process.id}")
        new.unlink(missing_ok=True)
        try:
            db = sqlite3.connect(new, isolation_level=None)
            try:
                db.text_factory = lenient
                db.execute("PRAGMA journal_mode = MEMORY")
                with transaction(db):
                    make(db)
            finally:
                db.close()
            new.chmod(0o600)
            sync_file(new)
            # The log of an earlier database file does not belong to the new one.
            rest = [_with(self.path, part) for part in PARTS[1:]]
            if any(map(Path.exists, rest)):
                # A program that removes `records.db*` removes one name after the other. It must not remove the new file.
                time.sleep(_REMOVING)
            for part in rest:
                part.unlink(missing_ok=True)
            new.rename(self.path)
            sync_file(self.path.parent)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def retire(self, aside: list[Path]) -> None:
        """Gives files that have been read their final names."""
        for path in aside:
            for part in reversed(PARTS):  # the database file last: its name shows that a step is left
                with contextlib.suppress(FileNotFoundError):
                    _with(path, part).rename(_with(_final(path), part))

    def unmerged(self) -> list[Path]:
        """Returns the files that were set aside and not read, oldest first."""
        found = named(self.path.parent, f"{self.path.name}.{_UNMERGED}")
        return [p for p in found if not p.name.endswith(PARTS[1:])]

    def unread(self) -> set[Inode]:
        """Returns the inodes of the files of :meth:`unmerged`."""
        return self._inodes(_UNMERGED)

    def damaged(self) -> set[Inode]:
        """Returns the inodes of the files that were set aside and read."""
        return self._inodes(_DAMAGED)

    def _inodes(self, what: str) -> set[Inode]:
        found: set[Inode] = set()
        for path in named(self.path.parent, f"{self.path.name}.{what}"):
            with contextlib.suppress(OSError):
                info = path.lstat()
                found.add((info.st_dev, info.st_ino))
        return found

    def _aside_name(self) -> Path:
        """Returns a name later than all earlier ones, also if the clock was set back: the name shows which file is newest."""
        stamps = (_stamp_of(p) for p in self.unmerged())
        newest = max((s for s in stamps if s is not None), default=datetime.min)
        stamp = max(datetime.now(UTC).replace(tzinfo=None), newest + _A_MOMENT)
        return self.path.with_name(f"{self.path.name}.{_UNMERGED}{stamp.strftime(_STAMP)}")


def _final(aside: Path) -> Path:
    return aside.with_name(aside.name.replace(_UNMERGED, _DAMAGED))


def _stamp_of(aside: Path) -> datetime | None:
    try:
        return datetime.strptime(aside.name.rpartition(_UNMERGED)[2], _STAMP)
    except ValueError:
        return None  # a file with a foreign name


def _with(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)
