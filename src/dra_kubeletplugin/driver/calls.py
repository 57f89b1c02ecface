"""Calls the methods of a driver. Every call goes through this module, which also reads lazy results and converts exceptions.

An ``async def`` method runs on the event loop, each call in its own task. A plain method runs in a thread, with the caller's context
variables. Lazy results (generators, ``map``, asynchronous generators) are read within the call, in the same task or thread.
The callers decide which calls may overlap.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import logging
import sys
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from ..base.signals import Interrupted
from ..base.telemetry.log_once import LogOnce
from ..base.threads import Threads
from ..errors import DraError, DriverError, DriverFailedError, describe, printable
from .diagnostics.author_errors import explain_exception, own_traceback, with_author_place

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
_THREADS = 256  # plain methods that may run at once
_THREAD_WAIT = 10.0  # seconds to wait for a free thread; shorter than CALL_TIMEOUT (40 s), the latest time of the reply to the kubelet
_CLEAN_UP = 1.0  # seconds that a cancelled method gets for its `finally`
_MAX_ITEMS = 100_000  # items in one result; a generator that yields more probably never ends
_PLAIN = (list, tuple, dict, str, bytes, type(None))
_NESTED = 4  # levels of awaitables that return awaitables
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
        self._numbers = itertools.count()
        self._when_idle: list[Callable[[], object]] = []
        self._tasks: set[asyncio.Task[_Outcome]] = set()
        self._logged = LogOnce(_LOG_AGAIN_AFTER)

    @overload  # a Mapping is an Iterable too; the first overload that matches applies
    async def __call__(  # type: ignore[overload-overlap]
        self, method: Callable[P, Mapping[K, V] | Awaitable[Mapping[K, V]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Mapping[K, V]: ...

    @overload
    async def __call__(
        self,
        method: Callable[P, Iterable[T] | AsyncIterable[T] | Awaitable[Iterable[T]]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Sequence[T]: ...

    @overload
    async def __call__(self, method: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def __call__(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls ``method`` and returns its result.

        Args:
            method: a function, ``async def`` or plain, a generator of either kind, a partial, or any callable object.

        Returns:
            The result. Lists, tuples, dicts and texts are returned as they are. Another mapping is returned as a dict. Another iterable,
            such as a generator, is read to its end and returned as a list.

        Raises:
            DraError: the driver raised it, alone or as the only exception of a task group.
            DriverFailedError: the driver raised something else, also ``SystemExit`` or ``CancelledError``, or no thread is free.
            CancelledError: only if the calling task was cancelled.
        """
        name = _name(method)
        run = functools.partial(method, *args, **kwargs)
        running = _Running(next(self._numbers), name, time.monotonic())
        self._enter(running)
        try:
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                outcome = await self._on_loop(running, lambda: _resolve(run()))
            else:
                outcome = await self._in_thread(running, run)
                value = outcome.value
                if _is_async(value):
                    outcome = await self._on_loop(running, lambda: _resolve(value), value)
        finally:
            self._leave(running)
        return self._result_of(name, outcome)

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

    # --- where methods run ----------------------------------------------------------------------

    async def _on_loop(self, running: _Running, work: Callable[[], Awaitable[Any]], value: Any = None) -> _Outcome:
        """Runs ``work`` in its own task, so that a cancellation of the caller is never mistaken for a cancellation by the driver."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._enter(running)
        task = _begin(loop, _guarded(work), f"driver.{running.name}")
        self._tasks.add(task)

        def ended(task: asyncio.Task[_Outcome]) -> None:
            self._tasks.discard(task)
            if inspect.iscoroutine(value):
                value.close()  # a task that was cancelled before its first step has not awaited it
            self._leave(running)
            if not waiter.done():
                waiter.set_result(None)

        if task.done():
            ended(task)
        else:
            task.add_done_callback(ended)
            try:
                await waiter
            except asyncio.CancelledError:
                task.cancel()
                task.add_done_callback(lambda t: None if t.cancelled() else self._drop(running.name, t.result()))
                await asyncio.wait({task}, timeout=_CLEAN_UP)
                raise
        if task.cancelled():  # the task cancelled itself, or other code cancelled all tasks of the loop
            return _Outcome(error=asyncio.CancelledError())
        return task.result()

    async def _in_thread(self, running: _Running, run: Callable[[], Any]) -> _Outcome:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(outcome: _Outcome) -> None:
            if future.done():
                self._drop(running.name, outcome)
            else:
                future.set_result(outcome)

        def job() -> None:
            outcome = context.run(_outcome, run)
            self._leave(running)
            try:
                # An exception is passed on as a value, because a Future does not accept StopIteration.
                loop.call_soon_threadsafe(deliver, outcome)
            except RuntimeError:  # the loop is closed: no caller waits any more
                self._drop(running.name, outcome)

        def give_up() -> None:
            if not future.done() and self._threads.withdraw(job):
                self._leave(running)
                future.set_result(_Outcome(error=self._no_thread(running.name)))

        self._enter(running)
        self._threads.submit(job)
        timer = loop.call_later(self.thread_wait, give_up)
        try:
            return await future
        except asyncio.CancelledError:
            if self._threads.withdraw(job):
                self._leave(running)
            raise
        finally:
            timer.cancel()

    def _no_thread(self, name: str) -> DriverFailedError:
        oldest, seconds = self.running()[0]
        log.error(
            "no thread is free for a method of the driver: %s; %d calls run, the longest %s for %.0f s",
            name,
            self.busy,
            oldest,
            seconds,
        )
        return DriverFailedError(
            f"the driver's {name} cannot be called: all {self._threads.limit} threads run methods of the driver that have "
            f"not returned, {oldest} for the longest time: restart the plugin's pod if they hang"
        )

    # --- results --------------------------------------------------------------------------------

    def _result_of(self, name: str, outcome: _Outcome) -> Any:
        error = outcome.error
        if error is None:
            self._logged.forget(name)
            return outcome.value
        driver_error = _driver_error(error)
        if driver_error is not None:
            raise with_author_place(driver_error)
        text = f"the driver's {name} raised {explain_exception(error)}"
        if self._logged.is_new(name, text) and (traceback := own_traceback(error)):
            # Without a traceback, the text is complete, and the caller logs it.
            log.error("exception in the driver's code: %s", text, exc_info=traceback)
        raise DriverFailedError(text) from error

    def _drop(self, name: str, outcome: _Outcome) -> None:
        """Logs the end of a call whose caller gave up."""
        if inspect.iscoroutine(outcome.value):
            outcome.value.close()
        if outcome.error is None:
            log.warning("a method of the driver returned after the plugin had stopped waiting for it: %s", name)
        elif not isinstance(outcome.error, asyncio.CancelledError):
            log.warning("a method of the driver failed after its time limit: %s: %s", name, describe(outcome.error))

    # --- running calls --------------------------------------------------------------------------

    def _enter(self, running: _Running) -> None:
        with self._lock:
            running.parts += 1
            self._running[running.number] = running

    def _leave(self, running: _Running) -> None:
        with self._lock:
            running.parts -= 1
            if running.parts:
                return
            del self._running[running.number]
            if self._running:
                return
            waiting, self._when_idle = self._when_idle, []
        for done in waiting:
            try:
                done()
            except Exception:
                log.exception("unexpected exception after the driver's last call; please report it")


class _Running(msgspec.Struct):
    number: int
    name: str
    since: float
    parts: int = 0  # how many of its caller, thread and task have not ended; at 0 the call has ended


class _Outcome(msgspec.Struct, frozen=True):
    value: Any = None
    error: BaseException | None = None


def _outcome(run: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(_whole(run()))
    except BaseException as e:  # author's code may raise anything, and the thread must survive it
        return _Outcome(error=e)


def _begin(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _Outcome], name: str) -> asyncio.Task[_Outcome]:
    """Creates a task. From Python 3.12 on, it runs at once up to its first wait. This is faster, because most methods never wait."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, name=name, eager_start=True)
    return loop.create_task(work, name=name)


async def _guarded(work: Callable[[], Awaitable[Any]]) -> _Outcome:
    try:
        return _Outcome(await work())
    except Interrupted:
        raise
    except BaseException as e:  # SystemExit from a task would end the loop
        return _Outcome(error=e)


async def _resolve(value: Any) -> Any:
    """Awaits and reads a method's result until it is a plain value."""
    for _ in range(_NESTED):
        if inspect.isawaitable(value):
            value = await value
        elif isinstance(value, AsyncIterable):
            value = await _read(value)
        else:
            return _whole(value)
    raise DriverError("the driver's method returns nested awaitables: it must return a value")


async def _read(source: AsyncIterable[Any]) -> list[Any]:
    out: list[Any] = []
    try:
        async for item in source:
            out.append(item)
            _check_length(len(out))
    finally:
        if inspect.isasyncgen(source):
            await source.aclose()
    return out


def _whole(value: Any) -> Any:
    """Returns ``value``, read to its end if it is lazy. Awaitables and asynchronous iterators are returned unchanged."""
    if type(value) in _PLAIN or _is_async(value):
        return value
    if isinstance(value, Mapping):
        return dict(_bounded(value.items()))
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return list(_bounded(value))
    return value


def _bounded(items: Iterable[Any]) -> Iterable[Any]:
    for i, item in enumerate(items, 1):
        _check_length(i)
        yield item


def _check_length(length: int) -> None:
    if length > _MAX_ITEMS:
        raise DriverError(f"the driver's method returns more than {_MAX_ITEMS:,} items: does its generator end?")


def _is_async(value: Any) -> bool:
    return inspect.isawaitable(value) or isinstance(value, AsyncIterable)


def _driver_error(error: BaseException) -> DraError | None:
    """Returns the DraError that the author raised, also as the only exception of a task group; else None."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, DraError) else None


def _name(method: Callable[..., Any]) -> str:
    while isinstance(method, functools.partial):
        method = method.func
    return printable(getattr(method, "__name__", type(method).__name__))
