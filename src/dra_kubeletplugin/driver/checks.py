"""An author's checks of parameters beside an event loop: in few threads, and each waited for only so long.

``__post_init__``, ``check`` and ``convert_from`` are plain code that may take long or never return, and a thread cannot be ended: what
hangs keeps its thread, and when all are kept only another process helps.
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
_LONGEST = 60.0  # seconds that anybody waits for a check


@dataclass(eq=False)
class _Check:
    thread: int = 0  # in which it runs
    given_up: bool = False


class ParameterChecks:
    """Judgements of parameters; used from one event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self.threads = threads
        self._calls = Calls(threads, _LONGEST)
        self._lock = threading.Lock()
        self._kept: set[_Check] = set()  # that run, and nobody waits for them any more

    async def __call__(self, judge: Callable[[], T], seconds: float) -> T:
        """What ``judge`` answers. It must be plain, and raise nothing but :class:`DraError`.

        Raises :class:`DriverFailedError` where it has not ended after ``seconds``, with the author's line at which it is; at once where no
        thread is left.
        """
        if stuck := self.stuck():
            raise DriverFailedError(stuck)
        mine = _Check()

        def check_of_parameters() -> T:
            with self._lock:
                if mine.given_up:
                    raise DriverFailedError("nobody waits for this check any more")
                mine.thread = threading.get_ident()
            try:
                return judge()
            finally:
                with self._lock:
                    mine.thread = 0
                    self._kept.discard(mine)

        try:
            async with asyncio.timeout(min(seconds, _LONGEST)):
                return await self._calls(check_of_parameters)
        except TimeoutError:
            self._give_up(mine)
            raise DriverFailedError(self._told(mine, seconds)) from None
        except asyncio.CancelledError:
            self._give_up(mine)
            raise

    def _give_up(self, check: _Check) -> None:
        """Counts the thread of a check for which no caller waits any more."""
        with self._lock:
            check.given_up = True
            if check.thread:
                self._kept.add(check)

    def _told(self, mine: _Check, seconds: float) -> str:
        where = _line(mine.thread)
        return f"the check of these parameters has not returned within {seconds:g} s{where and f': it is at {where}'}"

    def stuck(self) -> str:
        """A sentence where no parameters can be judged any more, with the author's line that keeps a thread; else nothing."""
        with self._lock:
            kept = [judgement.thread for judgement in self._kept]
        if len(kept) < self.threads:
            return ""
        where = next(filter(None, map(_line, kept)), "a place that is not known")
        return f"parameters cannot be judged: all {self.threads} threads are in checks of the driver that do not return, one at {where}"


def _line(thread: int) -> str:
    """``folder/file.py:14 in GpuConfig.check``, of what a thread runs now; empty where that is no author's code."""
    return at_work(sys._current_frames().get(thread))
