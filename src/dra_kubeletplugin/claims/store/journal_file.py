"""One file of the record journal: reading, appending, and creating a new one. A caller that writes has the lock."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from ...base import forks
from ...errors import RecordsNewerError
from .lines import DELETE, FORMAT, KNOWN, MOVED, OPEN, Change, encode, parse
from .records import Records

_NONE = Change(OPEN)


class JournalFile:
    """An open journal and its ``records``.

    ``end`` is the number of bytes that were read or written. ``size`` is the size of the file at the last check.
    ``fault`` is the damage that was found. ``is_superseded`` shows that another instance has replaced the file since. ``live`` is the
    size of its content without outdated lines.
    """

    def __init__(self, path: Path, flags: int = os.O_RDWR) -> None:
        """Opens and reads a file. Raises ``OSError``, or :class:`RecordsNewerError`."""
        self.records = Records()
        self.header = _NONE
        self.fault = ""
        self.end = self._checksum = 0
        self.is_superseded = self._lacks_newline = False
        self.ended: set[str] = set()  # UIDs that a line of this file has deleted
        self._foreign: list[bytes] = []  # lines of a newer version
        self._checked = 0  # modification time at the last comparison
        self._fd = forks.open_file(path, flags)
        try:
            info = os.fstat(self._fd)
            self.inode = info.st_dev, info.st_ino
            self.read_on()
            if self.header is _NONE and not self.fault:
                self.fault = "it does not begin as a journal" if info.st_size else "the file is empty"
            if self.header.format > FORMAT + 1:
                raise RecordsNewerError(
                    f"{path} has format {self.header.format}, this plugin's own format is {FORMAT}, and it can read up to "
                    f"{FORMAT + 1}: use a newer plugin"
                )
        except BaseException:
            self.close()
            raise
        self.live = len(self.content())

    def read_on(self) -> bool:
        """Reads and applies the lines that were appended since the last read. Returns False if a line is damaged or the file was cut."""
        self.size = os.fstat(self._fd).st_size
        if self.size < self.end:
            self.fault = "it was cut"
            return False
        data = b""
        while more := os.pread(self._fd, self.size - self.end - len(data), self.end + len(data)):
            data += more
        found = parse(data)
        for line in found.lines:
            change = line.change
            if change and change.op == OPEN:
                self.header = change
            elif change and change.op == MOVED:
                self.is_superseded = True
            elif change and change.op not in KNOWN:
                self._foreign.append(line.raw + b"\n")
            else:
                self.records.apply(line)
                if change and change.op == DELETE:
                    self.ended.add(change.uid)
        self._advance(data[: found.end])
        if found.damaged:
            self.fault = f"{found.damaged} of its lines cannot be read"
        return not found.damaged

    def _advance(self, data: bytes) -> None:
        if data:
            self._checksum = zlib.crc32(data, self._checksum)
            self.end += len(data)
            self._lacks_newline = not data.endswith(b"\n")

    def append(self, data: bytes, *, sync: bool, keep: bool = True) -> None:
        """Appends ``data`` in one write. Without ``keep`` it is removed again.

        Raises ``OSError``. The file is then as it was before, unless ``is_intact()`` returns False.
        """
        data = b"\n" + data if self._lacks_newline else data
        if self.size > self.end:  # a write that a crash cut
            os.ftruncate(self._fd, self.end)
            self.size = self.end
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.end + written)
            if sync:
                os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.end)
            raise
        if keep:
            self._advance(data)
        else:
            os.ftruncate(self._fd, self.end)

    def is_unchanged(self, info: os.stat_result) -> bool:
        """Whether ``info`` is of this file, and no other instance has written to it."""
        return (info.st_dev, info.st_ino, info.st_size) == (*self.inode, self.end)

    def was_touched(self) -> bool:
        """Whether the file was written to since the last call."""
        touched = os.fstat(self._fd).st_mtime_ns
        before, self._checked = self._checked, touched
        return touched != before

    def is_intact(self) -> bool:
        """Whether the file still has the content that was read and written."""
        return zlib.crc32(os.pread(self._fd, self.end, 0)) == self._checksum

    def supersede(self) -> None:
        """Appends a line that says that a newer file exists, for instances that still have this file open."""
        with contextlib.suppress(OSError):
            self.append(encode(Change(MOVED)), sync=False)

    def content(self) -> bytes:
        """Returns the lines of all records, and the unknown lines that a newer version wrote."""
        return self.records.all_lines() + b"".join(self._foreign)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            forks.close(fd)


def write_new(path: Path, header: Change, content: bytes) -> Path:
    """Writes a complete and synced file beside ``path``, and returns its name. Raises ``OSError``."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb", closefd=False) as out:
            out.write(encode(header) + content)
        os.fsync(fd)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return new


def new_header(driver: str, generation: int, repaired: int, old: Change | None = None) -> Change:
    """Returns the first line of a new file, which replaces a file that began with ``old``.

    ``repaired`` is the generation of the last repair that may have lost records. Files that replace each other have the same ``id``.
    """
    format, id = (old.format, old.id) if old else (FORMAT, "")
    id = id or os.urandom(4).hex()
    return Change(OPEN, format=max(FORMAT, format), driver=driver, generation=generation, repaired=repaired, id=id)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
