"""The work queue follows the rules of client-go."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dra_devkit.localcluster.work_queue import WorkQueue


async def test_a_key_that_is_added_twice_is_processed_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_during_its_processing_waits_until_it_is_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_the_backoff_grows_with_each_failure_and_is_reset_by_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue(0.5, 3.0)
    assert [queue.retry("a") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert queue.retry("b") == 0.5
    queue.forget("a")
    assert queue.retry("a") == 0.5
    queue.close()


async def test_the_earliest_of_several_delays_applies() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.001)
    queue.add_after("a", 1800)
    async with asyncio.timeout(30):
        assert await queue.get() == "a"
    queue.close()


async def test_a_failing_key_does_not_block_other_keys_has_one_worker_and_is_reported_once_per_text() -> None:
    queue: WorkQueue[int] = WorkQueue(0.001, 0.002)
    runs: Counter[int] = Counter()
    busy: set[int] = set()
    reported: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: int) -> None:
        assert key not in busy
        busy.add(key)
        await asyncio.sleep(0)
        busy.discard(key)
        runs[key] += 1
        if all(runs[k] >= 4 - (k + 1) % 2 for k in range(10)):
            finished.set()
        if key % 2 or runs[key] < 3:
            raise ValueError(f"{key} the first time" if runs[key] == 1 else f"{key} again")

    def failed(key: int, error: Exception) -> None:
        reported.append(str(error))

    async with asyncio.timeout(30):
        work = asyncio.ensure_future(queue.work(reconcile, failed, 3))
        for key in range(10):
            queue.add(key)
        await finished.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert all(runs[k] == 3 for k in range(0, 10, 2))
    assert sorted(reported) == sorted(f"{k} {text}" for k in range(10) for text in ("the first time", "again"))


async def test_a_cancelled_call_fails_its_key_and_ends_no_worker() -> None:
    """Closing the channel of a plugin cancels its calls."""
    queue: WorkQueue[str] = WorkQueue(0.001, 0.001)
    failed_keys: list[str] = []
    retried = asyncio.Event()

    async def reconcile(key: str) -> None:
        if failed_keys:
            retried.set()
            return
        call = asyncio.ensure_future(asyncio.Event().wait())
        call.cancel()
        await call

    queue.add("a")
    async with asyncio.timeout(30):
        work = asyncio.ensure_future(queue.work(reconcile, lambda key, e: failed_keys.append(key), 1))
        await retried.wait()
    work.cancel()
    await asyncio.wait([work])
    assert failed_keys == ["a"]


async def test_retry_now_requeues_all_waiting_keys_and_resets_their_failures() -> None:
    queue: WorkQueue[str] = WorkQueue(100.0, 1000.0)
    queue.retry("a")
    queue.retry("b")
    queue.retry("b")
    queue.retry_now()
    assert sorted([await queue.get(), await queue.get()]) == ["a", "b"]
    assert queue.retry("b") == 100.0
    queue.close()
