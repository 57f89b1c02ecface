"""The files of the records: how they are written, and how they are read.

A file is never changed in place: its successor is written under a temporary name, synced if it must survive a power failure, and renamed.
A synced file has a second name, ``.<uid>.synced``, which stays when a write that is not synced replaces the file. After a power failure
it is used in place of a file whose data was lost.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from ...base.files import UnsuitableFileError, create_file, named, read_file
from ...base.flock import FileLock
from ...base.threads import Threads
from ...cdi.directory import is_uid, naming_path_in_errors, remove_file, write_all
from ...errors import RecordsBusyError, RecordsError, describe, printable
from ..record import Row
from .records import NODE_FILE, SUFFIX, Records, file_name, stored_of, uid_of

LOCK = "lock"
_SYNCS = 8  # files that are synced at the same time
_SYNCED_ALONE = 2  # files of a batch that need no further thread
TEMPORARY, SYNCED = ".new", ".synced"

Seen = tuple[int, int, int]
"""How a file was when it was last read or written: inode, time and size. A file that is replaced gets another inode."""


class RecordFiles:
    """Writes files in the folder at ``path``. All methods block; one thread uses them, which has the lock of the records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = Threads(_SYNCS, "records sync")

    def replace(self, files: Mapping[str, bytes | None], order: Iterable[str], *, sync: bool) -> dict[str, Seen]:
        """Writes the files that are not None, and removes the others, in this order. Returns how the written ones are.

        Raises ``OSError``. Some of the files may be replaced then.
        """
        written = self.write_temporary(files, sync=sync)
        try:
            for name in order:
                if files[name] is None:
                    remove_claim(self.path, name)
                    continue
                os.rename(temporary_path(self.path, name), f"{self.path}/{name}")
                if sync and name != NODE_FILE:
                    # Later writes that are not synced do not replace the second name.
                    link = temporary_path(self.path, f"{name}{TEMPORARY}")
                    remove_file(link)
                    os.link(f"{self.path}/{name}", link)
                    os.rename(link, synced_path(self.path, name))
            if sync:
                sync_folder(self.path)
        except BaseException:
            self.remove_temporary(written)
            raise
        return written

    def write_temporary(self, files: Mapping[str, bytes | None], *, sync: bool) -> dict[str, Seen]:
        """Writes the files that are not None under temporary names. Returns how they are. Raises ``OSError``; then it has removed them."""
        fds: dict[str, int] = {}
        try:
            for name, data in files.items():
                if data is not None:
                    with naming_path_in_errors(f"{self.path}/{name}"):
                        fds[name] = create_file(temporary_path(self.path, name), 0o600)
                        write_all(fds[name], data)
            if sync:
                self._sync_all(list(fds.values()))
            return {name: seen_of(os.fstat(fd)) for name, fd in fds.items()}
        except BaseException:
            self.remove_temporary(fds)
            raise
        finally:
            for fd in fds.values():
                os.close(fd)

    def remove_temporary(self, names: Iterable[str]) -> None:
        for name in names:
            for file in (name, f"{name}{TEMPORARY}"):
                with contextlib.suppress(OSError):
                    os.unlink(temporary_path(self.path, file))

    def _sync_all(self, fds: Sequence[int]) -> None:
        """Syncs files, several at a time: a disk syncs them together. Raises ``OSError``."""
        results = SimpleQueue[OSError | None]()

        def sync(fd: int) -> None:
            try:
                os.fdatasync(fd)
                results.put(None)
            except OSError as e:
                results.put(e)

        jobs = [functools.partial(sync, fd) for fd in fds]
        for job in jobs[_SYNCED_ALONE:]:
            self._threads.submit(job)
        for number, job in enumerate(jobs):  # this thread too, so that nothing waits if the machine has no thread left
            if number < _SYNCED_ALONE or self._threads.withdraw(job):
                job()
        for error in [results.get() for _ in jobs]:
            if error:
                raise error


def is_record_file(name: str) -> bool:
    """Whether the name is that of a claim's file or of the node file. Other files in the folder are ignored."""
    return name == NODE_FILE or (name.endswith(SUFFIX) and is_uid(uid_of(name)))


def read_content(path: Path) -> bytes | None:
    """Returns the content of a file; None if it is missing; no bytes if something else has its name, such as a pipe. Raises ``OSError``."""
    try:
        return read_file(path, links=False)
    except FileNotFoundError:
        return None
    except OSError as e:
        if isinstance(e, UnsuitableFileError) or e.errno in {errno.EISDIR, errno.ELOOP, errno.ENXIO}:
            return b""
        raise


def temporary_path(folder: Path, name: str) -> str:
    """Returns the name under which a file is written. The next start removes what a dead process left there."""
    return f"{folder}/.{name}{TEMPORARY}"


def synced_path(folder: Path, name: str) -> str:
    return f"{folder}/.{uid_of(name)}{SYNCED}"


def remove_claim(folder: Path, name: str) -> None:
    """Removes the file of a claim. Raises ``OSError``."""
    remove_file(synced_path(folder, name))
    remove_file(f"{folder}/{name}")


def seen_of(info: os.stat_result) -> Seen:
    return info.st_ino, info.st_mtime_ns, info.st_size


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def acquire(lock: FileLock, timeout: float) -> None:
    """Takes the lock of the records. Raises ``OSError``, or :class:`RecordsBusyError` after ``timeout`` seconds."""
    try:
        lock.acquire(timeout)
    except TimeoutError:
        raise RecordsBusyError(
            f"{lock.path} is locked by another instance of the plugin for too long: delete its pod if it hangs"
        ) from None


# --- for commands of an operator, while the plugin may be running --------------------------------


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


def as_records_error(e: Exception, path: Path) -> RecordsError:
    """Converts an error of the file system to an error for operators."""
    if isinstance(e, RecordsError):
        return e
    if isinstance(e, OSError) and e.errno in {errno.ENOSPC, errno.EDQUOT}:
        return RecordsError(f"{path} cannot be written, the disk is full: free space below the kubelet's root")
    if isinstance(e, OSError) and e.errno == errno.EROFS:
        return RecordsError(f"{path} is read-only: mount the kubelet's root read-write")
    if isinstance(e, PermissionError):
        error = RecordsError(
            f"{path} may not be read or written ({e.strerror}): see its owner and mode, and the node's security policy, such as SELinux"
        )
        error.denied = True
        return error
    if isinstance(e, NotADirectoryError | FileExistsError):
        return RecordsError(
            f"{path} is not a folder: put the folder in its place; if it is lost, remove this path, and the plugin writes its records again"
        )
    return RecordsError(f"{path} cannot be used: {describe(e) if not isinstance(e, OSError) else printable(e)}")
