"""Pools of daemon threads: for a driver's plain methods, for ``asyncio.to_thread``, and for blocking work of this package.

Threads start on demand, end when idle and never delay the process's exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")
Job = Callable[[], None]  # must not raise
_IDLE_SECONDS = 10.0  # seconds that an idle thread lives on, because vendors' libraries keep state for each thread


class Threads:
    """At most ``limit`` daemon threads. Further jobs wait in a queue, from which they can be withdrawn."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self.name = name
        self._change = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._alive = 0
        self._idle = 0

    def submit(self, job: Job) -> None:
        """Runs ``job`` in a thread: at once if a thread is idle or a new one is allowed, else when one becomes idle."""
        with self._change:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._change.notify()
                return
            if self._alive >= self.limit:
                return
            self._alive += 1
        # Daemon threads, because the interpreter would wait forever at exit for a library that hangs.
        thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left; another thread of this pool runs the job later
            with self._change:
                self._alive -= 1

    def withdraw(self, job: Job) -> bool:
        """Removes a job from the queue. Returns False if it has begun."""
        with self._change:
            try:
                self._jobs.remove(job)
            except ValueError:
                return False
            return True

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._jobs:
                    self._idle += 1
                    woken = self._change.wait(_IDLE_SECONDS)
                    self._idle -= 1
                    if not woken and not self._jobs:
                        self._alive -= 1
                        return
                job = self._jobs.popleft()
            job()
            del job  # frees the objects that it refers to while the thread is idle


class LoopExecutor(ThreadPoolExecutor):
    """The default executor of an event loop. The base class never ends a thread, so each burst of work would keep its threads."""

    def __init__(self, limit: int = 32) -> None:
        super().__init__()  # starts no thread; asyncio accepts no other class
        self._daemons = Threads(limit, "blocking")

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
