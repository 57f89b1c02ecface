"""Calls of a driver's methods, of every kind of method, raise only the errors of this package, and in bounded time."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError, DriverError, DriverFailedError, PermanentError, RetryableError

BOUND = 60.0  # seconds; the limit for each operation in this file


class CustomBaseError(BaseException):
    pass


class CustomMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(("a", "b"))

    def __len__(self) -> int:
        return 2


RAISED: dict[str, Callable[[], BaseException]] = {
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "a group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), OSError("x")]),
    "a BaseException": CustomBaseError,
    "weird text": lambda: OSError("\ud800 \x00 \x1b[2J"),
    "TimeoutError": TimeoutError,
    "RecursionError": RecursionError,
    "own error": lambda: RetryableError("later \udfff"),
    "own error in a group": lambda: ExceptionGroup("tasks", [ExceptionGroup("more", [PermanentError("never")])]),
}
VALUES: dict[str, tuple[Callable[[], Any], Any]] = {
    "None": (lambda: None, None),
    "a list": (lambda: [1, 2], [1, 2]),
    "a number": (lambda: 7, 7),
    "map": (lambda: map(str, (1, 2)), ["1", "2"]),
    "a generator": (lambda: (i for i in (1, 2)), [1, 2]),
    "a view": ({"a": 1}.values, [1]),
    "a mapping": (CustomMapping, {"a": 1, "b": 1}),
    "text": (lambda: "text", "text"),
}


def raise_or_return(outcome: Callable[[], Any]) -> Any:
    """Calls ``outcome``. Raises the result if it is an exception, and returns it otherwise."""
    result = outcome()
    if isinstance(result, BaseException):
        raise result
    return result


def kinds(outcome: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """Returns methods of all kinds with the same outcome."""

    def plain() -> Any:
        return raise_or_return(outcome)

    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return raise_or_return(outcome)

    def awaitable() -> Any:
        return coroutine()

    async def nested() -> Any:
        return coroutine()

    def generator() -> Iterator[Any]:
        yield raise_or_return(outcome)

    async def async_generator() -> AsyncIterator[Any]:
        yield raise_or_return(outcome)

    def returns_generator() -> Any:
        return async_generator()

    class Callable_:
        def __call__(self) -> Any:
            return raise_or_return(outcome)

    class AsyncCallable:
        async def __call__(self) -> Any:
            return raise_or_return(outcome)

    class CustomAwaitable:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return raise_or_return(outcome)

    return {
        "plain": plain,
        "async": coroutine,
        "awaitable": awaitable,
        "nested": nested,
        "generator": generator,
        "async generator": async_generator,
        "returns generator": returns_generator,
        "object": Callable_(),
        "async object": AsyncCallable(),
        "custom awaitable": CustomAwaitable,
        "partial": functools.partial(plain),
        "async partial": functools.partial(functools.partial(coroutine)),
        "generator partial": functools.partial(async_generator),
    }


KINDS = sorted(kinds(lambda: None))
COMMON = {
    "plain",
    "async",
    "awaitable",
    "generator",
    "async generator",
}  # The other kinds differ only in how Python calls them, so one case for each is enough.
YIELDING = {"generator", "async generator", "returns generator", "generator partial"}


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


async def idle(calls: Calls) -> None:
    """Waits until no method runs."""
    done = threading.Event()
    calls.when_idle(done.set)
    assert await asyncio.to_thread(done.wait, BOUND)
    assert calls.busy == 0
    assert calls.running() == []


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in RAISED if kind in COMMON or name == "SystemExit"]
)
async def test_a_failing_method_raises_only_errors_of_this_package(kind: str, name: str) -> None:
    calls = Calls()
    async with asyncio.timeout(BOUND):
        with pytest.raises(DraError) as raised:
            await calls(kinds(RAISED[name])[kind])
    raised.value.event().encode()
    if name.startswith("own error"):
        assert type(raised.value) is not DriverFailedError
    else:
        assert type(raised.value) is DriverFailedError
        assert raised.value.__cause__ is not None
    assert calls.busy == 0
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in VALUES if kind in COMMON or name == "a list"]
)
async def test_every_kind_of_method_returns_its_value_and_lazy_values_are_read(kind: str, name: str) -> None:
    make, expected = VALUES[name]
    calls = Calls()
    found = await calls(kinds(make)[kind])
    if kind in YIELDING:
        (found,) = found
        if name in {"map", "a generator", "a view"}:
            found = list(found)  # Calls does not read nested values; the caller does.
    assert found == expected
    if kind not in YIELDING:
        assert type(found) is type(expected)
    assert calls.busy == 0


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from([*RAISED, *VALUES]), st.booleans()), min_size=1, max_size=12
    ),
    st.text(st.characters(exclude_categories=()), max_size=20),
)
def test_many_concurrent_calls_with_some_cancelled_end_in_time(steps: list[tuple[str, str, bool]], text: str) -> None:
    async def body() -> None:
        calls = Calls(threads=3)
        tasks = []
        for kind, name, cancelled in steps:
            outcome = RAISED[name] if name in RAISED else VALUES[name][0]
            if name == "weird text":
                outcome = functools.partial(OSError, text)
            tasks.append((asyncio.create_task(calls(kinds(outcome)[kind])), cancelled))
        await asyncio.sleep(0)
        for task, cancelled in tasks:
            if cancelled:
                task.cancel()
        _done, waiting = await asyncio.wait([t for t, _ in tasks], timeout=BOUND)
        assert not waiting
        for task, cancelled in tasks:
            if task.cancelled():
                assert cancelled
            elif task.exception() is not None:
                assert isinstance(task.exception(), DraError)
        await idle(calls)

    asyncio.run(body())
    gc.collect()  # a coroutine that was never awaited would warn


async def test_a_sync_generator_runs_in_one_thread_with_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="")
    variable.set("caller's value")

    def generator() -> Iterator[tuple[int, str]]:
        for _ in range(2):
            yield threading.get_ident(), variable.get()

    found = await Calls()(generator)
    assert found[0] == found[1]
    assert found[0][0] != threading.get_ident()
    assert found[0][1] == "caller's value"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_cancelled_caller_stops_waiting_and_the_method_is_counted_until_it_ends(kind: str) -> None:
    calls, gate, begun = Calls(), threading.Event(), threading.Event()

    def hangs() -> None:
        begun.set()
        gate.wait(BOUND)

    async def stubborn() -> None:
        begun.set()
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    task = asyncio.create_task(calls(hangs if kind == "thread" else stubborn))
    assert await asyncio.to_thread(begun.wait, BOUND)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.busy == 1
    ((name, seconds),) = calls.running()
    assert name in {"hangs", "stubborn"}
    assert 0 <= seconds < BOUND
    gate.set()
    await idle(calls)


async def test_a_timeout_of_the_caller_raises_timeout_error_and_the_async_method_cleans_up() -> None:
    calls, cleaned = Calls(), asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await calls(slow)
    assert cleaned.is_set()
    await idle(calls)


async def test_a_method_that_cancels_its_task_and_waits_does_not_cancel_the_caller() -> None:
    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    with pytest.raises(DriverFailedError, match="the driver's cancels raised CancelledError"):
        await Calls()(cancels)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_method_that_cancels_its_task_and_returns_does_not_cancel_the_caller() -> None:
    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]

    def plain() -> Any:
        return cancels()

    for method in (cancels, plain):
        with pytest.raises(DriverFailedError, match="raised CancelledError"):
            await Calls()(method)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_call_works_during_the_cancellation_of_the_caller() -> None:
    calls, seen = Calls(), []

    async def raises() -> None:
        raise asyncio.CancelledError

    async def caller() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await calls(raises)
            except DriverFailedError as e:
                seen.append(e)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(seen) == 1


async def test_when_all_threads_hang_sync_calls_fail_with_the_reason_and_async_calls_work() -> None:
    calls, gate, inside = Calls(threads=2), threading.Event(), threading.Semaphore(0)

    def hangs() -> None:
        inside.release()
        gate.wait(BOUND)

    async def quick() -> str:
        return "quick"

    def plain() -> str:
        return "plain"

    hanging = [asyncio.create_task(calls(hangs)) for _ in range(2)]
    for _ in hanging:
        assert await asyncio.to_thread(inside.acquire, timeout=BOUND)
    calls.thread_wait = 0.1
    texts = set()
    for _ in range(2):
        with pytest.raises(
            DriverFailedError, match="all 2 threads run methods of the driver that have not returned"
        ) as e:
            await calls(plain)
        texts.add(str(e.value))
    assert len(texts) == 1
    assert await calls(quick) == "quick"
    assert calls.busy == 2
    cancelled = asyncio.create_task(calls(plain))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert calls.busy == 2
    gate.set()
    calls.thread_wait = BOUND
    await asyncio.gather(*hanging)
    assert await calls(plain) == "plain"
    await idle(calls)


async def test_256_methods_can_block_at_the_same_time() -> None:
    calls, barrier = Calls(), threading.Barrier(256)
    await asyncio.wait_for(asyncio.gather(*(calls(barrier.wait, 60) for _ in range(256))), 60)
    await idle(calls)


async def test_an_endless_generator_is_rejected() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    async def endless_async() -> AsyncIterator[int]:
        while True:
            yield 1

    for method in (endless, endless_async):
        with pytest.raises(DriverError, match="returns more than 100,000 items"):
            await Calls()(method)


async def test_the_traceback_of_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    caplog.set_level(logging.WARNING)

    def fails(text: str) -> None:
        library(text)

    def library(text: str) -> None:
        raise OSError(text)

    for text in ("a", "a", "b"):
        with pytest.raises(DriverFailedError):
            await calls(fails, text)
    assert [bool(r.exc_info) for r in caplog.records] == [True, True]


async def test_when_idle_calls_its_callback_once_and_immediately_if_nothing_runs() -> None:
    calls, done = Calls(), []
    calls.when_idle(lambda: done.append("now"))
    gate = threading.Event()
    task = asyncio.create_task(calls(gate.wait, BOUND))
    await asyncio.sleep(0)
    calls.when_idle(lambda: done.append("later"))
    assert done == ["now"]
    gate.set()
    await task
    await idle(calls)
    assert done == ["now", "later"]


def test_a_hanging_method_does_not_block_the_exit_of_the_process() -> None:
    program = """
import asyncio, threading
from dra_kubeletplugin.driver.calls import Calls

async def main():
    try:
        async with asyncio.timeout(0.1):
            await Calls()(threading.Event().wait)
    except TimeoutError:
        print("timed out")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "timed out\n"
