"""Runs a cluster's event loop in its own thread, and makes async methods usable in both plain and async tests."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import DraError

from .task_context import Hosted

P = ParamSpec("P")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread that runs until :meth:`close`.

    It is independent of the test's event loop, if there is one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="dra local cluster", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def close(self) -> None:
        """Cancels the tasks that still run, and stops the loop and its thread."""
        self.run(_cancel_others())
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` in the loop's thread, and blocks until it has ended. Raises its exception."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would block the cluster's event loop: do not use fixtures in a driver's methods")
        __tracebackhide__ = True
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            error = future.exception()
        except BaseException:
            future.cancel()  # the caller was interrupted
            raise
        if isinstance(error, DraError):  # its message is complete; a traceback through this package does not help
            raise error.with_traceback(None)
        if error is not None:
            raise error
        return future.result()

    async def await_(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` in the loop's thread, and awaits it in the caller's event loop. Raises its exception."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # the caller runs in trio, as tests that use anyio may
        else:
            return await asyncio.wrap_future(future)
        trio = importlib.import_module("trio")
        try:
            result: T = await trio.to_thread.run_sync(future.result, abandon_on_cancel=True)
        except BaseException:
            future.cancel()  # the caller was cancelled
            raise
        return result


class LoopThreadHandle(Protocol[S_co]):
    """An object with an inner object that is used in a :class:`LoopThread` only."""

    @property
    def thread(self) -> LoopThread: ...

    @property
    def inner(self) -> S_co: ...


class SyncAsyncCall(Generic[P, T]):
    """A method with two forms: ``method(...)`` blocks the thread, ``await method.aio(...)`` does not."""

    def __init__(self, thread: LoopThread, method: Callable[P, Coroutine[Any, Any, T]]) -> None:
        self._thread = thread
        self._method = method
        self.__wrapped__ = method  # for inspect.signature
        self.__doc__ = method.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            work = self._method(*args, **kwargs)
        except TypeError as e:
            known = inspect.signature(self._method).parameters
            raise TypeError(f"{e}{next((did_you_mean(n, known) for n in kwargs if n not in known), '')}") from None
        return self._thread.run(work)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Returns an awaitable for the call, for coroutines of any event loop."""
        return self._thread.await_(self._method(*args, **kwargs))


class both(Generic[S, P, T]):
    """A descriptor that exposes an async method of the inner object as a :class:`SyncAsyncCall` of the outer object.

    As an attribute of the class it is a plain function, so that ``help`` shows the method's signature.
    """

    def __init__(self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

        @functools.wraps(method)
        def blocking(instance: LoopThreadHandle[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
            __tracebackhide__ = True
            return self.__get__(instance, type(instance))(*args, **kwargs)

        self._blocking = blocking

    def __set_name__(self, owner: type, name: str) -> None:
        self._blocking.__module__, self._blocking.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[LoopThreadHandle[S], P], T]: ...
    @overload
    def __get__(self, instance: LoopThreadHandle[S], owner: type) -> SyncAsyncCall[P, T]: ...
    def __get__(
        self, instance: LoopThreadHandle[S] | None, owner: type
    ) -> Callable[Concatenate[LoopThreadHandle[S], P], T] | SyncAsyncCall[P, T]:
        if instance is None:
            return self._blocking
        call: SyncAsyncCall[P, T] = SyncAsyncCall(instance.thread, functools.partial(self._method, instance.inner))
        call.__doc__ = self.__doc__  # a partial has no docstring of its own
        return call


def in_loop(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[LoopThreadHandle[S], P], T]:
    """Exposes a plain method of the inner object as a method of the outer object. It runs in the loop's thread."""

    @functools.wraps(method)
    def blocking(self: LoopThreadHandle[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True

        async def call() -> T:
            __tracebackhide__ = True
            return method(self.inner, *args, **kwargs)

        return self.thread.run(call())

    return blocking


class Scope(Generic[T]):
    """Makes an async context manager of the loop's thread usable with ``with`` and ``async with``."""

    def __init__(self, thread: LoopThread, manager: AbstractAsyncContextManager[T], name: str) -> None:
        self._thread = thread
        self._manager = manager
        self._name = name
        self._hosted: Hosted[T] | None = None

    def __enter__(self) -> T:
        return self._thread.run(self._enter())

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.run(self._leave())

    async def __aenter__(self) -> T:
        return await self._thread.await_(self._enter())

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thread.await_(self._leave())

    async def _enter(self) -> T:
        self._hosted = Hosted(self._manager, self._name)
        return await self._hosted.enter()

    async def _leave(self) -> None:
        if self._hosted:
            await self._hosted.leave()


async def _cancel_others() -> None:
    others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
