"""Opens and reads files whose names another process may have made: never waits for a pipe, and never reads without a limit.
Also paths from users' input, and listings of folders.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE = 16 << 20
"""Bytes of the largest file that is read, unless a caller has another limit."""

_CHUNK = 1 << 20
NOT_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Values of ``errno`` when ``open`` fails because the process or the machine lacks resources, and not because of the file."""


def at_home(path: str) -> Path:
    """Expands ``~`` in ``path``. Returns it unchanged for an account without a home folder, as in a container with an arbitrary user id."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for such an account


def named(folder: Path, start: str, end: str = "") -> list[Path]:
    """Returns the sorted paths in ``folder`` whose names begin with ``start`` and end with ``end``; no paths if the folder does not exist.

    Raises ``OSError`` if the folder cannot be read now, for example because no file descriptor is free. ``Path.glob`` of
    Python 3.13 would then return no paths.
    """
    try:
        return sorted(p for p in folder.iterdir() if p.name.startswith(start) and p.name.endswith(end))
    except FileNotFoundError:
        return []


class UnsuitableFileError(OSError, ValueError):
    """The path has a file that is too large, or that is no regular file. ``strerror`` says which."""


def open_regular(path: Path | str, flags: int, mode: int = 0o600, *, links: bool = False) -> int:
    """Opens a regular file, and returns its descriptor. It waits neither for a pipe nor for a device.

    Args:
        links: whether ``path`` may be a symbolic link.

    Raises ``OSError``; :class:`UnsuitableFileError` if the path is something else, such as a pipe.
    """
    # O_NONBLOCK has no effect on regular files, see open(2).
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW), mode)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UnsuitableFileError(errno.EINVAL, "it is not a regular file: remove it", str(path))


def read_file(path: Path | str, limit: int = MAX_FILE, *, links: bool = True) -> bytes:
    """Reads a whole regular file of at most ``limit`` bytes. ``links`` is as for :func:`open_regular`.

    Raises ``OSError`` as :func:`open_regular`; :class:`UnsuitableFileError` with size and limit if the file is larger.
    """
    return _read(open_regular(path, os.O_RDONLY, links=links), path, limit)


def read_input(path: Path | str, limit: int = MAX_FILE) -> bytes:
    """Reads a file that a user names in a command. It may be a pipe, as of a shell's ``<(...)``. Raises as :func:`read_file`."""
    return _read(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, limit)


def _read(fd: int, path: Path | str, limit: int) -> bytes:
    """Reads an open file and closes it."""
    chunks: list[bytes] = []
    try:
        size = os.fstat(fd).st_size  # 0 in /proc
        left = limit + 1 if size <= limit else 0
        while left and (chunk := os.read(fd, min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
    except OSError as e:
        e.filename = str(path)  # an error of a descriptor names no file
        raise
    finally:
        os.close(fd)
    if not left:
        found = f"{size:,}" if size > limit else f"more than {limit:,}"
        raise UnsuitableFileError(
            errno.EFBIG, f"it is a regular file of {found} bytes; the limit is {limit:,} bytes", str(path)
        )
    return b"".join(chunks)


def read_text_file(path: Path | str, limit: int = MAX_FILE, *, errors: str = "strict") -> str:
    """Returns the text of a regular file in UTF-8. Raises as :func:`read_file`, and ``UnicodeDecodeError``."""
    return read_file(path, limit).decode(errors=errors)


def create_file(path: Path | str, mode: int) -> int:
    """Creates an empty file for writing, in place of a file, pipe or link with the same name, and returns its descriptor.

    It never opens a file that exists: opening a pipe waits for a reader, and a link leads to another file. Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108 - half of the callers have texts, because a Path takes longer than the system call
        return os.open(path, flags, mode)
