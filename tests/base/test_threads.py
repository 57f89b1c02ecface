"""The executors of the event loop return results, raise exceptions and cancel as in the standard library. Idle threads end."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time

import pytest

from dra_kubeletplugin.base.threads import LoopExecutor, Threads, in_own_thread


def blocking_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "blocking"]


async def test_results_and_exceptions_reach_the_caller() -> None:
    asyncio.get_running_loop().set_default_executor(LoopExecutor())
    assert await asyncio.to_thread(sorted, [2, 1]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 // 0)
    assert all(t.daemon for t in blocking_threads())


async def test_work_beyond_the_thread_limit_waits_and_can_be_cancelled() -> None:
    asyncio.get_running_loop().set_default_executor(LoopExecutor(limit=1))
    gate = threading.Event()
    ran: list[str] = []
    first = asyncio.ensure_future(asyncio.to_thread(gate.wait))
    second = asyncio.ensure_future(asyncio.to_thread(ran.append, "second"))
    third = asyncio.ensure_future(asyncio.to_thread(ran.append, "third"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])  # The cancellation removes the work from the queue.
    gate.set()
    await third
    assert await first
    assert ran == ["third"]


async def test_a_job_runs_once_the_machine_has_threads_again() -> None:
    asyncio.get_running_loop().set_default_executor(LoopExecutor())
    size = threading.stack_size(1 << 46)  # bytes that no machine has, so that no thread starts
    try:
        job = asyncio.ensure_future(asyncio.to_thread(sorted, [2, 1]))
        await asyncio.sleep(0)
    finally:
        threading.stack_size(size)
    async with asyncio.timeout(60):
        assert await job == [1, 2]


async def test_a_burst_of_work_leaves_no_thread() -> None:
    existing = set(blocking_threads())
    asyncio.get_running_loop().set_default_executor(LoopExecutor(idle_seconds=0.05))
    barrier = threading.Barrier(8)
    await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(8)))
    async with asyncio.timeout(60):
        while set(blocking_threads()) - existing:
            await asyncio.sleep(0.01)


def test_the_threads_of_a_burst_end_although_further_jobs_follow() -> None:
    pool, barrier = Threads(8, "of a burst", idle_seconds=0.5), threading.Barrier(9)
    for _ in range(8):
        pool.submit(barrier.wait)
    barrier.wait()
    deadline = time.monotonic() + 60
    while sum(t.name == "of a burst" for t in threading.enumerate()) > 2:
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(60) and time.monotonic() < deadline
        time.sleep(0.02)


def test_no_job_is_lost_while_idle_threads_end() -> None:
    """The idle time is zero, so threads end at the moment when jobs come."""
    pool, count = Threads(4, "ending", idle_seconds=0.0), 2_000
    done = threading.Semaphore(0)
    for i in range(count):
        pool.submit(done.release)
        if i % 3 == 0:
            assert done.acquire(timeout=60)
    for _ in range(count - len(range(0, count, 3))):
        assert done.acquire(timeout=60)


async def test_hanging_calls_of_a_driver_do_not_block_the_work_of_the_package() -> None:
    asyncio.get_running_loop().set_default_executor(LoopExecutor(limit=2))
    gate, name = threading.Event(), contextvars.ContextVar("name", default="")
    hung = [asyncio.ensure_future(asyncio.to_thread(gate.wait)) for _ in range(3)]
    try:
        name.set("of the caller")
        async with asyncio.timeout(60):
            assert await in_own_thread(sorted, [2, 1], reverse=True) == [2, 1]
            assert await in_own_thread(name.get) == "of the caller"
        assert not any(call.done() for call in hung)
    finally:
        gate.set()
        await asyncio.gather(*hung)


FRAMES = """
import gc, threading, time
from dra_kubeletplugin.base.threads import current_frames

threads_ended = threading.Event()

def start_threads():
    for _ in range(2000):
        threading.Thread(target=int).start()
    threads_ended.set()

gc.callbacks.append(lambda phase, info: time.sleep(0))
gc.set_threshold(1)
threading.Thread(target=start_threads, daemon=True).start()
while not threads_ended.is_set():
    assert threading.get_ident() in current_frames()
print(gc.isenabled())
"""


def test_frames_are_read_while_threads_start_and_garbage_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", FRAMES], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


FORKS = """
import gc, os, sys, threading
from dra_kubeletplugin.base.threads import current_frames

def read_frames():
    while True:
        current_frames()

threading.Thread(target=read_frames, daemon=True).start()
for _ in range(100):
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() and current_frames() else 1)
    if os.waitpid(child, 0)[1]:
        sys.exit("a child has no garbage collection")
"""


def test_a_child_that_is_forked_while_frames_are_read_collects_garbage_and_reads_frames() -> None:
    words = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
