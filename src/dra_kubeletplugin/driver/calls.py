"""Calls the methods of a driver. Every call goes through this module, which also converts exceptions.

An ``async def`` method runs on the event loop, each call in its own task. A plain method runs in a thread, with the caller's context
variables. The callers decide which calls may overlap.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

from ..base.signals import Interrupted
from ..base.telemetry.log_once import LogOnce
from ..base.threads import Threads
from ..errors import DraError, DriverError, DriverFailedError, describe, printable
from .diagnostics.author_errors import definition_place, explain_exception, own_traceback, with_author_place

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_THREADS = 256  # plain methods that may run at once
_THREAD_WAIT = 10.0  # seconds to wait for a free thread; shorter than CALL_TIMEOUT (40 s), the latest time of the reply to the kubelet
_CLEAN_UP = 1.0  # seconds that a cancelled method gets for its `finally`
_LOG_AGAIN_AFTER = 600.0  # seconds until the traceback of a repeated failure is logged again


class Calls:
    """Calls the methods of one driver. Call it from one event loop; :attr:`busy`, :meth:`running` and :meth:`when_idle` are thread-safe.

    A call lasts as long as the method. A caller with a time limit uses ``asyncio.timeout``, which cancels an ``async def`` method.
    A thread cannot be cancelled: a plain method continues, and counts as busy until it ends.

    Args:
        threads: plain methods that may run at once.
        thread_wait: seconds that a further call waits for a free thread.
    """

    def __init__(self, threads: int = _THREADS, thread_wait: float = _THREAD_WAIT) -> None:
        self.thread_wait = thread_wait
        self._threads = Threads(threads, "driver")
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self._when_idle: list[Callable[[], object]] = []
        self._logged = LogOnce(_LOG_AGAIN_AFTER)

    async def __call__(self, method: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls ``method``, an ``async def`` or plain function, and returns its result.

        Raises:
            DraError: the driver raised it, alone or as the only exception of a task group.
            DriverFailedError: the driver raised something else, also ``SystemExit`` or ``CancelledError``, or no thread is free.
            DriverError: the result is lazy, such as a generator or a coroutine.
            CancelledError: only if the calling task was cancelled.
        """
        run: Callable[[], Any] = functools.partial(method, *args, **kwargs)
        running = _Running(printable(getattr(method, "__name__", type(method).__name__)), time.monotonic())
        with self._lock:
            self._running[id(running)] = running
        if inspect.iscoroutinefunction(method):
            outcome = await self._on_loop(running, run)
        else:
            outcome = await self._in_thread(running, run)
        if outcome.error is not None:
            self._raise(running.name, outcome.error)
        self._logged.forget(running.name)
        value: Any = outcome.value
        if isinstance(value, Awaitable | Iterator | AsyncIterator):
            if inspect.iscoroutine(value):
                value.close()
            raise DriverError(
                f"{running.name} returned {type(value).__name__}: it must be `def` or `async def` and return a list;"
                f" a decorator of an `async def` method must be `async def` too ({definition_place(method)})"
            )
        return cast("T", value)

    @property
    def busy(self) -> int:
        """Number of calls that still run, including calls whose caller gave up."""
        with self._lock:
            return len(self._running)

    def running(self) -> list[tuple[str, float]]:
        """Returns the method and the age in seconds of each running call, the oldest first."""
        now = time.monotonic()
        with self._lock:
            return [(r.name, now - r.since) for r in self._running.values()]

    def when_idle(self, done: Callable[[], object]) -> None:
        """Calls ``done`` once when no call runs: at once, or in the thread where the last method ends."""
        with self._lock:
            if self._running:
                self._when_idle.append(done)
                return
        done()

    async def _on_loop(self, running: _Running, run: Callable[[], Awaitable[Any]]) -> _Outcome:
        """Awaits ``run`` in its own task, so that a cancellation of the caller is never mistaken for a cancellation by the driver."""

        running.task = task = asyncio.create_task(_awaited(run), name=f"driver.{running.name}")
        task.add_done_callback(lambda _: self._end(running))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(lambda t: None if t.cancelled() else _log_unused(running.name, t.result()))
            await asyncio.wait({task}, timeout=_CLEAN_UP)
            raise
        # The task may have cancelled itself, or other code may have cancelled all tasks of the loop.
        return _Outcome(error=asyncio.CancelledError()) if task.cancelled() else task.result()

    async def _in_thread(self, running: _Running, run: Callable[[], Any]) -> _Outcome:
        future: Future[_Outcome] = Future()
        future.set_running_or_notify_cancel()  # a thread cannot be cancelled
        context = contextvars.copy_context()

        def job() -> None:
            outcome = context.run(_outcome, run)
            try:
                self._end(running)
            finally:
                future.set_result(outcome)

        def give_up() -> None:
            if self._threads.withdraw(job):
                error = self._no_thread(running.name)
                self._end(running)
                future.set_result(_Outcome(error=error))

        self._threads.submit(job)
        timer = asyncio.get_running_loop().call_later(self.thread_wait, give_up)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._threads.withdraw(job):
                self._end(running)
            else:
                future.add_done_callback(lambda done: _log_unused(running.name, done.result()))
            raise
        finally:
            timer.cancel()

    def _no_thread(self, name: str) -> DriverFailedError:
        running = self.running()
        if len(running) == 1:  # only this call
            return DriverFailedError(f"the driver's {name} cannot be called: no thread can be started")
        return DriverFailedError(
            f"the driver's {name} cannot be called: all {self._threads.limit} threads run methods of the driver that have "
            f"not returned, {running[0][0]} for the longest time: restart the plugin's pod if they hang"
        )

    def _raise(self, name: str, error: BaseException) -> NoReturn:
        one = error
        while isinstance(one, BaseExceptionGroup) and len(one.exceptions) == 1:
            one = one.exceptions[0]
        if isinstance(one, DraError):
            raise with_author_place(one)
        text = f"the driver's {name} raised {explain_exception(error)}"
        if self._logged.is_new(name, text) and (traceback := own_traceback(error)):
            # Without a traceback, the text is complete, and the caller logs it.
            log.error("exception in the driver's code: %s", text, exc_info=traceback)
        raise DriverFailedError(text) from error

    def _end(self, running: _Running) -> None:
        with self._lock:
            del self._running[id(running)]
            if self._running:
                return
            waiting, self._when_idle = self._when_idle, []
        for done in waiting:
            done()


@dataclass(eq=False)
class _Running:
    name: str
    since: float
    task: asyncio.Task[_Outcome] | None = None  # kept here, because the event loop itself does not keep a task alive


class _Outcome(NamedTuple):
    value: Any = None
    error: BaseException | None = None


def _outcome(run: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(run())
    except BaseException as e:  # author's code may raise anything, and the thread must survive it
        return _Outcome(error=e)


async def _awaited(run: Callable[[], Awaitable[Any]]) -> _Outcome:
    try:
        return _Outcome(await run())
    except Interrupted:
        raise
    except BaseException as e:  # SystemExit from a task would end the loop
        return _Outcome(error=e)


def _log_unused(name: str, outcome: _Outcome) -> None:
    """Logs the end of a call whose caller gave up."""
    if outcome.error is None:
        log.warning("a method of the driver returned after the plugin had stopped waiting for it: %s", name)
    elif not isinstance(outcome.error, asyncio.CancelledError):
        log.warning("a method of the driver failed after its time limit: %s: %s", name, describe(outcome.error))
