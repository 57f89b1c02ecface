"""One instance writes at a time: what an older one has sent has landed before the newest looks, so that it never mixes into its work.

A lock on a folder that all instances on a node share; the kernel drops it with the process. Source: flock(2).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from ...base import forks

log = logging.getLogger(__name__)
_LONGEST = (
    15.0  # seconds that an instance is waited for: one that was stopped in the middle must not silence the others
)
_LOOK = 0.005  # seconds between two tries


class WriteLock:
    """``folder`` is the one that is locked; None where there are no other instances."""

    def __init__(self, folder: Path | None = None, longest: float = _LONGEST) -> None:
        self._folder = folder
        self._longest = longest
        self._told = ""

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Within, no other instance writes. Without a lock, which is told once, work goes on: a node needs its slices."""
        with contextlib.ExitStack() as stack:
            if self._folder is not None:
                try:
                    fd = forks.open_file(self._folder, os.O_RDONLY | os.O_DIRECTORY)
                    stack.callback(forks.close, fd)
                    await self._lock(fd)
                    self._told = ""
                except OSError as e:
                    if (fault := str(e)) != self._told:
                        log.warning("instances that publish cannot wait for each other at %s: %s", self._folder, fault)
                    self._told = fault
            yield

    async def _lock(self, fd: int) -> None:
        """Raises ``OSError`` where there is no lock in time."""
        until = time.monotonic() + (0.0 if self._told else self._longest)  # waited for once, not before each write
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"another instance has not ended its write for {self._longest:g}s") from None
            await asyncio.sleep(_LOOK)
