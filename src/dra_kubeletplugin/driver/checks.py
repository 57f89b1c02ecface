"""Runs an author's parameter checks in a few threads, each with a time limit.

``__post_init__``, ``check`` and ``convert_from`` are plain code that may be slow or never return. A thread cannot be stopped, so a
check that hangs occupies its thread. When such checks occupy all threads, only a restart of the process helps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..base.threads import current_frames
from ..errors import DriverFailedError
from .calls import Calls
from .diagnostics.author_errors import running_line

T = TypeVar("T")
THREADS = 8
_LONGEST = 60.0  # seconds; the longest wait for a check


class ParameterChecks:
    """Validates parameters in threads; used from one event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self.threads = threads
        self._calls = Calls(threads, _LONGEST)
        self._until: dict[int, float] = {}  # thread → the time limit of the check that it runs, by time.monotonic()

    async def __call__(self, function: Callable[[], T], seconds: float) -> T:
        """Runs ``function`` in a thread and returns its result.

        Args:
            function: a plain function that raises only :class:`DraError`.
            seconds: time limit, at most 60.

        Raises:
            DriverFailedError: ``function`` did not end in time (the message names the author's line that it runs), or no thread is free.
        """
        if stuck := self.stuck():
            raise DriverFailedError(stuck)
        seconds = min(seconds, _LONGEST)
        until, thread = time.monotonic() + seconds, 0

        def check_of_parameters() -> T:
            nonlocal thread
            thread = threading.get_ident()
            self._until[thread] = until
            try:
                return function()
            finally:
                del self._until[thread]

        try:
            async with asyncio.timeout(seconds):
                return await self._calls(check_of_parameters)
        except TimeoutError:
            where = _line(thread)
            raise DriverFailedError(
                f"the check of these parameters has not returned within {seconds:g} s{where and f': it is at {where}'}"
            ) from None

    def stuck(self) -> str:
        """Returns why no parameters can be validated, with the author's line that blocks a thread; empty while a thread is free."""
        now = time.monotonic()
        late = [thread for thread, until in list(self._until.items()) if until < now]
        if len(late) < self.threads:
            return ""
        where = next(filter(None, map(_line, late)), "unknown code")
        return f"parameters cannot be validated: all {self.threads} threads run checks that have not returned, one of them {where}"


def _line(thread: int) -> str:
    """Returns ``folder/file.py:14 in GpuConfig.check`` for the code that a thread runs now; empty if it is not an author's code."""
    return running_line(current_frames().get(thread))
