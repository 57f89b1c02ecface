"""The work queue keeps client-go's rules."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dra_kubeletplugin.localcluster.work_queue import Backoff, WorkQueue


async def test_a_key_that_is_added_twice_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_that_is_added_while_it_is_worked_on_waits_for_that() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_a_pause_grows_with_each_failure_until_the_longest_and_ends_with_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue(Backoff(0.5, 3.0))
    assert [queue.retry("a") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert queue.retry("b") == 0.5
    queue.forget("a")
    assert queue.retry("a") == 0.5
    queue.close()


async def test_the_earliest_of_several_times_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.001)
    queue.add_after("a", 1800)
    async with asyncio.timeout(30):
        assert await queue.get() == "a"
    queue.close()


async def test_a_key_that_fails_for_ever_holds_up_no_other_and_never_has_two_workers() -> None:
    queue: WorkQueue[int] = WorkQueue(Backoff(0.001, 0.002))
    seen: Counter[int] = Counter()
    busy: set[int] = set()
    failures: Counter[int] = Counter()
    finished = asyncio.Event()

    async def reconcile(key: int) -> None:
        assert key not in busy
        busy.add(key)
        await asyncio.sleep(0)
        busy.discard(key)
        seen[key] += 1
        if all(seen[k] >= 4 - (k + 1) % 2 for k in range(10)):
            finished.set()
        if key % 2 or seen[key] < 3:
            raise ValueError(key)

    def failed(key: int, error: Exception) -> None:
        failures[key] += 1

    async with asyncio.timeout(30):
        work = asyncio.ensure_future(queue.work(reconcile, failed, 3))
        for key in range(10):
            queue.add(key)
        await finished.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert all(seen[k] == 3 and failures[k] == 2 for k in range(0, 10, 2))
    assert all(failures[k] >= 3 for k in range(1, 10, 2))


async def test_a_call_that_somebody_else_cancels_fails_its_key_and_ends_no_worker() -> None:
    """A plugin's channel that is closed cancels the calls on it."""
    queue: WorkQueue[str] = WorkQueue(Backoff(0.001, 0.001))
    told: list[str] = []
    again = asyncio.Event()

    async def reconcile(key: str) -> None:
        if told:
            again.set()
            return
        call = asyncio.ensure_future(asyncio.Event().wait())
        call.cancel()
        await call

    queue.add("a")
    async with asyncio.timeout(30):
        work = asyncio.ensure_future(queue.work(reconcile, lambda key, e: told.append(key), 1))
        await again.wait()
    work.cancel()
    await asyncio.wait([work])
    assert told == ["a"]


async def test_keys_that_wait_can_be_retried_now_with_their_failures_reset() -> None:
    queue: WorkQueue[str] = WorkQueue(Backoff(100.0, 1000.0))
    queue.retry("a")
    queue.retry("b")
    queue.retry("b")
    queue.retry_now()
    assert sorted([await queue.get(), await queue.get()]) == ["a", "b"]
    assert queue.failures("b") == 0
    assert queue.retry("b") == 100.0
    queue.close()
