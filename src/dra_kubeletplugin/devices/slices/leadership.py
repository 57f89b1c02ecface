"""Decides whether this instance may write slices: only one plugin instance on a node, or one replica of a controller, writes them.

A lock between processes ensures that a newer instance does not read slices while an older instance's write is in flight. It locks a
folder that all instances on a node share. The kernel releases the lock when the process ends. Source: flock(2).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ...base.flock import FolderLock
from ...errors import describe

log = logging.getLogger(__name__)
# Seconds to wait for the lock: an instance that was suspended while it holds the lock must not block the other instances forever.
_TIMEOUT = 15.0


class Leadership:
    """The right of this instance to write slices.

    Args:
        leads: returns whether this instance is the newest living instance on the node, or the leader of the controller's replicas.
        folder: the folder whose lock is held for each write; None if there are no other instances on this machine.
        timeout: time limit of a wait for the lock, in seconds.
    """

    def __init__(
        self, leads: Callable[[], bool] = lambda: True, folder: Path | None = None, timeout: float = _TIMEOUT
    ) -> None:
        self._leads = leads
        self._folder = folder
        self._timeout = timeout
        self._fault = ""

    def may_write(self) -> bool:
        """Whether this instance may write slices. True if ``leads`` raises ``OSError``: two writers on a node are better than none."""
        try:
            return self._leads()
        except OSError as e:
            log.warning("cannot read which instance publishes: %s; this instance publishes", describe(e))
            return True

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Holds the lock in the block. If it cannot be taken, logs that once and continues without it: the node still needs its slices."""
        if self._folder is None:
            yield
            return
        lock = FolderLock(self._folder)
        try:
            # after one failure, writes do not wait until the lock was taken once
            await lock.acquire_async(0.0 if self._fault else self._timeout)
            self._fault = ""
        except OSError as e:
            fault = describe(e)
            if isinstance(e, TimeoutError):
                fault = f"another instance of the plugin has held the lock for more than {self._timeout:g}s"
            if fault != self._fault:
                log.warning("cannot take the slice write lock %s: %s; continuing without it", self._folder, fault)
            self._fault = fault
        try:
            yield
        finally:
            lock.close()
