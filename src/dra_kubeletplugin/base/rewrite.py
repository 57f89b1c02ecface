"""Replaces the content of a file that is mounted into containers.

A container's bind mount refers to the inode, so a running container never sees a new file renamed to the same name (tested with
runc, see tests/base/test_rewrite.py). Therefore the content is replaced in the same inode. Go drivers truncate the file first, so
a reader can see an empty file. This module keeps a complete JSON stream in the file at every step:

1. Append whitespace until the file is as long as the new content. A JSON stream may end with whitespace. Only this step can fail for
   lack of space.
2. Overwrite the old content with the new content in one write, padded with whitespace to the old length. Then cut the padding off.

A reader may see a partial write, and a process killed during the write may leave one. Readers detect it: the stream contains the
content once per API version, and in a complete file all these copies are the same.
"""

from __future__ import annotations

import os

from .files import open_regular

_BLANK = b"\n"


def rewrite(path: str, data: bytes) -> None:
    """Writes ``data`` into the existing file. Raises ``OSError``; if the disk is full, the old content remains."""
    fd = open_regular(path, os.O_RDWR)
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
