"""New content for a file that containers have mounted.

A container's bind mount of a file is a mount of its inode: what is renamed over the name later is never seen by a container that
runs (tried with runc, see tests/local/test_metadata_in_containers.py). So the content changes within the inode. Go drivers empty
the file first and then write; here no moment has less than a whole stream of JSON: the file grows by whitespace, which a stream
may end with, until there is room, and what can fail for want of space has failed then; one write puts the new content over the
old; what is left over is whitespace again, and is cut off. A reader may still catch the one write half done, and a process that
is killed within it may leave that: both versions in the stream say the same once it is whole, by which readers know.
"""

from __future__ import annotations

import os

_BLANK = b"\n"


def rewrite(path: str, data: bytes) -> None:
    """Puts ``data`` into the file, which exists. Raises ``OSError``; where there is no room it has its old content, and blanks."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(fd).st_size
        try:
            _write_at(fd, _BLANK * (len(data) - before), before)
        except OSError:
            os.ftruncate(fd, before)
            raise
        _write_at(fd, data.ljust(before, _BLANK), 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _write_at(fd: int, data: bytes, at: int) -> None:
    """A disk that fills up takes a part of what it is given, and says so only in the count."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written
