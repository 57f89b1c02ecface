"""Replaces the content of a file that is mounted into containers.

A container's bind mount refers to the inode, so a running container never sees a file renamed over the name (tested with runc,
see tests/base/test_rewrite.py). Therefore the content is replaced within the inode. Go drivers truncate the
file first; here the file contains a whole stream of JSON at every step:

1. Whitespace, which may end a JSON stream, is appended until the new content fits. Only this step can fail for lack of space.
2. One write puts the new content over the old. Whitespace replaces the rest of the old content, and is then cut off.

A reader may see a half-done write, and a process killed during the write may leave one. Readers detect it: in a complete
file, both versions in the stream have the same content.
"""

from __future__ import annotations

import os

_BLANK = b"\n"


def rewrite(path: str, data: bytes) -> None:
    """Writes ``data`` into the existing file. Raises ``OSError``; if space is missing, the old content remains, followed by blanks."""
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
    """Writes all data in a loop, because a write to a disk that fills up may write only a part."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written
