"""A call that concurrent callers share. Later callers repeat it or reuse its result, and no caller cancels it for others."""

from __future__ import annotations

import asyncio

import pytest

from dra_kubeletplugin.base.shared_call import SharedCall


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self.fault: Exception | None = None

    async def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        await self.gate.wait()
        if self.fault:
            raise self.fault
        return number


async def join(shared: SharedCall[int]) -> int:
    return await asyncio.shield(shared.begin())


async def test_callers_join_the_call_in_progress_and_later_callers_begin_another_call() -> None:
    counter = Counter()
    shared = SharedCall(counter, "test")
    callers = [asyncio.ensure_future(join(shared)) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    counter.gate.set()
    assert await asyncio.gather(*callers[1:]) == [1, 1]
    assert await join(shared) == 2


async def test_a_result_is_reused_for_callers_that_accept_its_age() -> None:
    counter = Counter()
    counter.gate.set()
    shared = SharedCall(counter, "test", keep=60)
    began = asyncio.get_running_loop().time()
    assert [await shared.since(began), await shared.since(began)] == [1, 1]
    assert await shared.since(asyncio.get_running_loop().time() + 0.001) == 2


async def test_a_failure_is_raised_by_all_callers_and_not_reused() -> None:
    counter = Counter()
    counter.fault = OSError("unavailable")
    shared = SharedCall(counter, "test", keep=60)
    callers = [asyncio.ensure_future(shared.since(0.0)) for _ in range(2)]
    await asyncio.sleep(0)
    counter.gate.set()
    for caller in callers:
        with pytest.raises(OSError, match="unavailable"):
            await caller
    counter.fault = None
    assert await shared.since(0.0) == 2


async def test_fresh_waits_for_the_call_in_progress_and_its_callers_share_the_next_call() -> None:
    counter = Counter()
    shared = SharedCall(counter, "test", pause=4)
    async with asyncio.timeout(60):
        first = [asyncio.create_task(shared.fresh()) for _ in range(10)]
        while not counter.calls:
            await asyncio.sleep(0)
        later = [asyncio.create_task(shared.fresh()) for _ in range(10)]
        later[0].cancel()
        await asyncio.sleep(0)
        assert counter.calls == 1, "one call at a time"
        counter.gate.set()
        assert await asyncio.gather(*first) == [1] * 10
        assert await asyncio.gather(*later[1:]) == [2] * 9
        assert await shared.fresh() == 3


async def test_calls_take_at_most_the_configured_share_of_the_time() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def call() -> None:
        times.append(loop.time())
        await asyncio.sleep(0.01)
        times.append(loop.time())

    shared = SharedCall(call, "test", pause=4)
    await shared.fresh()
    await shared.fresh()
    began, ended, next_began, _ = times
    assert next_began - ended >= 4 * (ended - began) - 0.001


async def test_close_cancels_the_call() -> None:
    shared = SharedCall(Counter(), "test")
    caller = asyncio.ensure_future(join(shared))
    await asyncio.sleep(0)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
