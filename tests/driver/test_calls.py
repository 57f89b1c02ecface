"""The boundary around a driver's methods: whatever they are and whatever they do, only our errors come out, in bounded time."""

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

BOUND = 60.0  # seconds for anything here


class Odd(BaseException):
    pass


class Lazy(Mapping[str, int]):
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
    "a BaseException": Odd,
    "weird text": lambda: OSError("\ud800 \x00 \x1b[2J"),
    "TimeoutError": TimeoutError,
    "RecursionError": RecursionError,
    "ours": lambda: RetryableError("later \udfff"),
    "ours in a group": lambda: ExceptionGroup("tasks", [ExceptionGroup("more", [PermanentError("never")])]),
}
VALUES: dict[str, tuple[Callable[[], Any], Any]] = {
    "None": (lambda: None, None),
    "a list": (lambda: [1, 2], [1, 2]),
    "a number": (lambda: 7, 7),
    "map": (lambda: map(str, (1, 2)), ["1", "2"]),
    "a generator": (lambda: (i for i in (1, 2)), [1, 2]),
    "a view": ({"a": 1}.values, [1]),
    "a mapping": (Lazy, {"a": 1, "b": 1}),
    "text": (lambda: "text", "text"),
}


def never_returned(outcome: Callable[[], Any]) -> Any:
    """Raises what ``outcome`` makes, if it makes an exception, and answers it otherwise."""
    made = outcome()
    if isinstance(made, BaseException):
        raise made
    return made


def kinds(outcome: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """Methods of all kinds that end in the same way."""

    def plain() -> Any:
        return never_returned(outcome)

    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return never_returned(outcome)

    def awaitable() -> Any:
        return coroutine()

    async def nested() -> Any:
        return coroutine()

    def generator() -> Iterator[Any]:
        yield never_returned(outcome)

    async def async_generator() -> AsyncIterator[Any]:
        yield never_returned(outcome)

    def lazily() -> Any:
        return async_generator()

    class Callable_:
        def __call__(self) -> Any:
            return never_returned(outcome)

    class AsyncCallable:
        async def __call__(self) -> Any:
            return never_returned(outcome)

    class Awaited:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return never_returned(outcome)

    return {
        "plain": plain,
        "async": coroutine,
        "awaitable": awaitable,
        "nested": nested,
        "generator": generator,
        "async generator": async_generator,
        "lazily": lazily,
        "object": Callable_(),
        "async object": AsyncCallable(),
        "own awaitable": Awaited,
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
}  # the others differ in how Python calls them, so one case is enough
YIELDING = {"generator", "async generator", "lazily", "generator partial"}


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
async def test_only_our_errors_come_out(kind: str, name: str) -> None:
    calls = Calls()
    async with asyncio.timeout(BOUND):
        with pytest.raises(DraError) as raised:
            await calls(kinds(RAISED[name])[kind])
    raised.value.event().encode()
    if name.startswith("ours"):
        assert type(raised.value) is not DriverFailedError
    else:
        assert type(raised.value) is DriverFailedError
        assert raised.value.__cause__ is not None
    assert calls.busy == 0
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in VALUES if kind in COMMON or name == "a list"]
)
async def test_every_kind_of_method_answers_and_lazy_answers_are_read(kind: str, name: str) -> None:
    make, expected = VALUES[name]
    calls = Calls()
    found = await calls(kinds(make)[kind])
    if kind in YIELDING:
        (found,) = found
        if name in {"map", "a generator", "a view"}:
            found = list(found)  # what is inside an answer is the caller's to judge
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
def test_many_calls_at_once_of_which_some_are_given_up(steps: list[tuple[str, str, bool]], text: str) -> None:
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


async def test_plain_code_and_its_generators_run_in_one_thread_with_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="")
    variable.set("of the caller")

    def generator() -> Iterator[tuple[int, str]]:
        for _ in range(2):
            yield threading.get_ident(), variable.get()

    found = await Calls()(generator)
    assert found[0] == found[1]
    assert found[0][0] != threading.get_ident()
    assert found[0][1] == "of the caller"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_cancellation_of_ours_passes_and_the_method_is_counted_until_it_ends(kind: str) -> None:
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


async def test_a_caller_s_time_limit_is_a_timeout_and_an_async_method_gets_to_clean_up() -> None:
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


async def test_a_driver_that_cancels_its_own_task_does_not_cancel_ours() -> None:
    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    with pytest.raises(DriverFailedError, match="the driver's cancels raised CancelledError"):
        await Calls()(cancels)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_driver_that_cancels_its_own_task_and_never_waits_does_not_cancel_ours() -> None:
    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]

    def plain() -> Any:
        return cancels()

    for method in (cancels, plain):
        with pytest.raises(DriverFailedError, match="raised CancelledError"):
            await Calls()(method)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_call_made_while_our_task_is_being_cancelled_still_works() -> None:
    calls, seen = Calls(), []

    async def raises() -> None:
        raise asyncio.CancelledError

    async def ours() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await calls(raises)
            except DriverFailedError as e:
                seen.append(e)

    task = asyncio.create_task(ours())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(seen) == 1


async def test_when_every_thread_hangs_a_further_call_is_reported_so_and_async_ones_go_on() -> None:
    calls, gate, inside = Calls(threads=2), threading.Event(), threading.Semaphore(0)

    def hangs() -> None:
        inside.release()
        gate.wait(BOUND)

    async def quick() -> str:
        return "quick"

    def plain() -> str:
        return "plain"

    stuck = [asyncio.create_task(calls(hangs)) for _ in range(2)]
    for _ in stuck:
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
    await asyncio.gather(*stuck)
    assert await calls(plain) == "plain"
    await idle(calls)


async def test_256_methods_block_at_once() -> None:
    calls, barrier = Calls(), threading.Barrier(256)
    await asyncio.wait_for(asyncio.gather(*(calls(barrier.wait, 60) for _ in range(256))), 60)
    await idle(calls)


async def test_a_generator_without_end_is_refused() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    async def endless_too() -> AsyncIterator[int]:
        while True:
            yield 1

    for method in (endless, endless_too):
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
    assert [bool(r.exc_info) for r in caplog.records] == [True, False, True]
    caplog.clear()
    for _ in range(20):
        with pytest.raises(DriverFailedError):
            await calls(fails, "b")
    counts = [r.getMessage().partition(": ")[0].rpartition(", ")[2] for r in caplog.records]
    assert counts == [f"{n} times" for n in (2, 4, 8, 16)]


async def test_what_follows_the_last_call_is_called_once_and_at_once_where_nothing_runs() -> None:
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


def test_a_method_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = """
import asyncio, threading
from dra_kubeletplugin.driver.calls import Calls

async def main():
    try:
        async with asyncio.timeout(0.1):
            await Calls()(threading.Event().wait)
    except TimeoutError:
        print("given up")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "given up\n"
