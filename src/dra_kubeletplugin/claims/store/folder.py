"""What lies beside the record database, and under which name. A process may die between any two lines here: the names alone say
what is left to do.

``records.db`` and its log; ``.records.db.new-<instance>``, which gets that name when it is whole; ``.repair-lock``, under which names
change. What cannot be used is set aside in two steps: ``records.db.unmerged-<time>`` has not been read yet, so whoever opens the
database next does that first; ``records.db.damaged-<time>`` has, and is kept for people.
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
_REMOVING = 0.25  # seconds; a busy node may stop who removes between two names


class RecordFolder:
    """The names around the database at ``path``, as instance ``process`` sees and changes them. ``wait`` is in seconds."""

    def __init__(self, path: Path, process: InstanceLock, wait: float) -> None:
        self.path = path
        self.process = process
        self.wait = wait

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One instance makes or repairs; another that saw the same finds the new file.

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
        """Takes away what an instance was making when it died."""
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
        """The database loses its name; answers the one that it has at the end."""
        aside = self._aside_name()
        # The file first: without its log it would look whole and be old.
        for part in PARTS:
            with contextlib.suppress(FileNotFoundError):
                _with(self.path, part).rename(_with(aside, part))
        sync_file(self.path.parent)
        return _final(aside)

    def set_aside_alone(self) -> Path:
        """What has the name, and not the log beside it, which belongs to another; nobody reads it. Answers its new name."""
        aside = _final(self._aside_name())
        self.path.rename(aside)
        return aside

    def finish_setting_aside(self) -> None:
        """A process died between the renames: the log that is left belongs to the newest file that was set aside."""
        left = [part for part in PARTS[1:] if _with(self.path, part).exists()]
        aside = max(self.unmerged(), default=None)
        if not left:
            return
        aside = aside or _final(self._aside_name())
        for part in left:
            if not _with(aside, part).exists():
                _with(self.path, part).rename(_with(aside, part))

    def publish(self, make: Callable[[sqlite3.Connection], None]) -> None:
        """A database that ``make`` fills, in one transaction and synced, before it has its name."""
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
            # What is left of the file that was there before: its log is not ours.
            rest = [_with(self.path, part) for part in PARTS[1:]]
            if any(map(Path.exists, rest)):
                # Who removes `records.db*` removes one name after the other, and must not find ours among them.
                time.sleep(_REMOVING)
            for part in rest:
                part.unlink(missing_ok=True)
            new.rename(self.path)
            sync_file(self.path.parent)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def retire(self, aside: list[Path]) -> None:
        """What was set aside has been read."""
        for path in aside:
            for part in reversed(PARTS):  # the file last: it is what says that something is left to do
                with contextlib.suppress(FileNotFoundError):
                    _with(path, part).rename(_with(_final(path), part))

    def unmerged(self) -> list[Path]:
        """What was set aside and not read, oldest first."""
        found = named(self.path.parent, f"{self.path.name}.{_UNMERGED}")
        return [p for p in found if not p.name.endswith(PARTS[1:])]

    def unread(self) -> set[Inode]:
        """The files of :meth:`unmerged`: they live on under another name."""
        return self._inodes(_UNMERGED)

    def damaged(self) -> set[Inode]:
        """The files that were set aside and read."""
        return self._inodes(_DAMAGED)

    def _inodes(self, what: str) -> set[Inode]:
        found: set[Inode] = set()
        for path in named(self.path.parent, f"{self.path.name}.{what}"):
            with contextlib.suppress(OSError):
                info = path.lstat()
                found.add((info.st_dev, info.st_ino))
        return found

    def _aside_name(self) -> Path:
        """Later than all that were set aside before, also where the clock was set back: the newest is told by its name."""
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
        return None  # somebody else's name


def _with(path: Path, part: str) -> Path:
    return path.with_name(path.name + part)
