"""Limits of this process: the files that it may open, and their size. The kernel enforces them, so faults are real."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def limit(kind: int, value: int) -> Iterator[None]:
    """Sets the soft limit of a resource in the block, such as ``resource.RLIMIT_FSIZE``."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def no_free_descriptor() -> contextlib.AbstractContextManager[None]:
    """No file can be opened in the block."""
    return limit(resource.RLIMIT_NOFILE, 3)


def largest_file(size: int) -> contextlib.AbstractContextManager[None]:
    """A write beyond ``size`` bytes of a file writes a part, and the next write fails, as on a full disk."""
    return limit(resource.RLIMIT_FSIZE, size)
