"""Pools of daemon threads: for a driver's plain methods, for ``asyncio.to_thread``, and for blocking work of this package.

Threads start on demand, end when idle and never delay the process's exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], None]  # must not raise
_START_AGAIN = 1.0  # seconds until a thread is started again, after the machine had none left

_reading_frames = threading.Lock()
# A child process that is forked meanwhile would have no garbage collection, and a lock that stays held.
os.register_at_fork(
    before=_reading_frames.acquire,
    after_in_parent=_reading_frames.release,
    after_in_child=_reading_frames.release,
)


def current_frames() -> dict[int, FrameType]:
    """Returns the frame in which each thread is, by the thread's id.

    In Python 3.11, a garbage collection meanwhile can block all threads for ever (https://github.com/python/cpython/issues/106883).
    """
    with _reading_frames:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


class Threads:
    """At most ``limit`` daemon threads. Further jobs wait in a queue, from which they can be withdrawn.

    The thread that became idle last gets the next job, so that the threads of a burst end although further jobs follow.

    Args:
        idle_seconds: how long a thread without a job lives on. Vendors' libraries keep state for each thread.
    """

    def __init__(self, limit: int, name: str, idle_seconds: float = 60.0) -> None:
        self.limit = limit
        self.name = name
        self.idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._alive = 0
        self._idle: list[threading.Event] = []  # wakes an idle thread; the last thread became idle last

    def submit(self, job: Job) -> None:
        """Runs ``job`` in a thread: at once if a thread is idle or a new one is allowed, else when one becomes idle."""
        with self._lock:
            self._jobs.append(job)
            if self._idle:
                self._idle.pop().set()
                return
        self._start()

    def _start(self) -> None:
        """Starts a thread if a job waits and the limit allows it."""
        with self._lock:
            if not self._jobs or self._alive >= self.limit:
                return
            self._alive += 1
        # Daemon threads, because the interpreter would wait forever at exit for a library that hangs.
        thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left
            with self._lock:
                self._alive -= 1
            # This pool may have no thread that would run the job later.
            with contextlib.suppress(RuntimeError):  # no event loop runs here: the caller withdraws the job
                asyncio.get_running_loop().call_later(_START_AGAIN, self._start)

    def withdraw(self, job: Job) -> bool:
        """Removes a job from the queue. Returns False if it has begun."""
        with self._lock:
            try:
                self._jobs.remove(job)
            except ValueError:
                return False
            return True

    def _work(self) -> None:
        wake = threading.Event()
        while True:
            with self._lock:
                job = self._jobs.popleft() if self._jobs else None
                if job is None:
                    wake.clear()
                    self._idle.append(wake)
            if job is not None:
                job()
                del job  # frees the objects that it refers to while the thread is idle
            elif not wake.wait(self.idle_seconds):
                with self._lock:
                    if wake in self._idle:  # else a job came at the last moment
                        self._idle.remove(wake)
                        self._alive -= 1
                        return


class LoopExecutor(ThreadPoolExecutor):
    """The default executor of an event loop. The base class never ends a thread, so each burst of work would keep its threads."""

    def __init__(self, limit: int = 32, idle_seconds: float = 10.0) -> None:
        super().__init__()  # starts no thread; asyncio accepts no other class
        self._daemons = Threads(limit, "blocking", idle_seconds)

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **kwargs)
            except BaseException as e:
                future.set_exception(e)
            else:
                future.set_result(result)

        self._daemons.submit(job)
        return future


# By event loop, because a process that was forked has a new loop and none of the threads.
_OWN: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopExecutor] = WeakKeyDictionary()


async def in_own_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function of this package in a thread, and returns its result.

    ``asyncio.to_thread`` would use the threads that the driver's ``async def`` methods also use. If calls of a vendor's library hang in
    all of them, planning, reconciling and reading long responses would stop.
    """
    loop = asyncio.get_running_loop()
    executor = _OWN.get(loop)
    if executor is None:
        executor = _OWN[loop] = LoopExecutor()
    call = functools.partial(contextvars.copy_context().run, work, *args, **kwargs)
    return await loop.run_in_executor(executor, call)
