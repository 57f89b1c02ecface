"""Calls of a driver's methods, of every kind of method, raise only the errors of this package, and in bounded time."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError, DriverError, DriverFailedError, PermanentError, RetryableError

BOUND = 60.0  # seconds; the limit for each operation in this file


class CustomBaseError(BaseException):
    pass


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
LAZY: dict[str, Callable[[], Any]] = {
    "map": lambda: map(str, (1, 2)),
    "generator": lambda: (i for i in (1, 2)),
    "coroutine": lambda: asyncio.sleep(0),
    "async_generator": lambda: (i async for i in _numbers()),
}


async def _numbers() -> AsyncIterator[int]:
    yield 1


def methods(outcome: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """Returns a plain and an ``async def`` method that return the result of ``outcome``, or raise it if it is an exception."""

    def plain() -> Any:
        result = outcome()
        if isinstance(result, BaseException):
            raise result
        return result

    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return plain()

    return {"plain": plain, "async": coroutine}


KINDS = ["plain", "async"]


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RAISED)
async def test_a_failing_method_raises_only_errors_of_this_package(kind: str, name: str) -> None:
    calls = Calls()
    async with asyncio.timeout(BOUND):
        with pytest.raises(DraError) as raised:
            await calls(methods(RAISED[name])[kind])
    raised.value.event().encode()
    if name.startswith("own error"):
        assert type(raised.value) is not DriverFailedError
    else:
        assert type(raised.value) is DriverFailedError
        assert raised.value.__cause__ is not None
    assert calls.busy == 0
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [None, [1, 2], (1,), {"a": 1}, 7, "text"])
async def test_the_result_of_a_method_is_returned_unchanged(kind: str, value: object) -> None:
    calls = Calls()
    assert await calls(methods(lambda: value)[kind]) is value
    assert calls.busy == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAZY)
async def test_a_lazy_result_is_refused_with_the_line_of_the_method(kind: str, name: str) -> None:
    sentence = rf"returned {name}: it must be `def` or `async def` and return a list; .* \(driver/test_calls\.py:\d+\)"
    with pytest.raises(DriverError, match=sentence):
        await Calls()(methods(LAZY[name])[kind])


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from([*RAISED, ""]), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_many_concurrent_calls_with_some_cancelled_end_in_time(steps: list[tuple[str, str, bool]]) -> None:
    async def body() -> None:
        calls = Calls(threads=3)
        outcomes: dict[str, Callable[[], Any]] = {**RAISED, "": list}
        tasks = [(asyncio.create_task(calls(methods(outcomes[n])[kind])), cancelled) for kind, n, cancelled in steps]
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


async def test_a_plain_method_runs_in_a_thread_with_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="")
    variable.set("caller's value")

    def method() -> tuple[int, str]:
        return threading.get_ident(), variable.get()

    thread, value = await Calls()(method)
    assert thread != threading.get_ident()
    assert value == "caller's value"


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


@pytest.mark.parametrize("waits", [True, False])
async def test_a_method_that_cancels_its_task_does_not_cancel_the_caller(waits: bool) -> None:
    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        if waits:
            await asyncio.sleep(0)

    with pytest.raises(DriverFailedError, match="the driver's cancels raised CancelledError"):
        await Calls()(cancels)
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


async def test_a_plain_method_fails_in_time_if_no_thread_can_be_started() -> None:
    calls = Calls()
    calls.thread_wait = 0.1
    before = threading.stack_size(1 << 47)  # more than the address space
    try:
        with pytest.raises(DriverFailedError, match="no thread can be started"):
            async with asyncio.timeout(BOUND):
                await calls(lambda: "plain")
    finally:
        threading.stack_size(before)


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
