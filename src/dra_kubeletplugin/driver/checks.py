"""Runs an author's parameter checks in a few threads, each with a time limit.

``__post_init__``, ``check`` and ``convert_from`` are plain code that may be slow or never return. A thread cannot be stopped, so a
check that hangs occupies its thread. When such checks occupy all threads, only a restart of the process helps.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import DriverFailedError
from .calls import Calls
from .diagnostics.author_errors import at_work

T = TypeVar("T")
THREADS = 8
_LONGEST = 60.0  # seconds; the longest wait for a check


@dataclass(eq=False)
class _Check:
    thread: int = 0  # the thread that runs it
    given_up: bool = False


class ParameterChecks:
    """Validates parameters in threads; used from one event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self.threads = threads
        self._calls = Calls(threads, _LONGEST)
        self._lock = threading.Lock()
        self._abandoned: set[_Check] = set()  # checks that still run after their caller gave up

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
        check = _Check()

        def check_of_parameters() -> T:
            with self._lock:
                if check.given_up:
                    raise DriverFailedError("the caller no longer waits for this check")
                check.thread = threading.get_ident()
            try:
                return function()
            finally:
                with self._lock:
                    check.thread = 0
                    self._abandoned.discard(check)

        try:
            async with asyncio.timeout(min(seconds, _LONGEST)):
                return await self._calls(check_of_parameters)
        except TimeoutError:
            self._abandon(check)
            raise DriverFailedError(self._timeout_message(check, seconds)) from None
        except asyncio.CancelledError:
            self._abandon(check)
            raise

    def _abandon(self, check: _Check) -> None:
        """Counts the thread of a check for which no caller waits any more."""
        with self._lock:
            check.given_up = True
            if check.thread:
                self._abandoned.add(check)

    def _timeout_message(self, check: _Check, seconds: float) -> str:
        where = _line(check.thread)
        return f"the check of these parameters has not returned within {seconds:g} s{where and f': it is at {where}'}"

    def stuck(self) -> str:
        """Returns why no parameters can be validated, with the author's line that blocks a thread; empty while a thread is free."""
        with self._lock:
            abandoned = [abandoned_check.thread for abandoned_check in self._abandoned]
        if len(abandoned) < self.threads:
            return ""
        where = next(filter(None, map(_line, abandoned)), "unknown code")
        return f"parameters cannot be validated: all {self.threads} threads run checks that have not returned, one of them {where}"


def _line(thread: int) -> str:
    """Returns ``folder/file.py:14 in GpuConfig.check`` for the code that a thread runs now; empty if it is not an author's code."""
    return at_work(sys._current_frames().get(thread))
