"""The modules of work in flight: batches in a thread, a common start for the claims of a call, and one task at a time
for a claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from dra_kubeletplugin.base.telemetry.logs import operation
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims.batch_window import BatchWindow
from dra_kubeletplugin.claims.inflight import ClaimTasks, Work, as_dra_error
from dra_kubeletplugin.claims.store import batch as module
from dra_kubeletplugin.claims.store.batch import Batcher
from dra_kubeletplugin.errors import DraError, RecordsError
from tests.helpers.waiting import wait_until


class Gate:
    """Work that a test can block: it doubles numbers and raises exceptions among the items."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.idle_calls = 0
        self.open = threading.Event()
        self.open.set()
        self.fault: BaseException | None = None

    def work(self, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        assert self.open.wait(60)
        if self.fault:
            raise self.fault
        return [i if isinstance(i, BaseException) else i * 2 for i in items]

    def fail_on_idle(self) -> None:
        self.idle_calls += 1
        raise ValueError("nobody waits for this")


@pytest.fixture
async def gated_batcher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Gate, Batcher[Any]]]:
    monkeypatch.setattr(module, "_QUIET", 0.005)
    gated_batcher = Gate()
    batcher: Batcher[Any] = Batcher("gated work", gated_batcher.work, gated_batcher.fail_on_idle)
    yield gated_batcher, batcher
    gated_batcher.open.set()
    await batcher.close(5)


def threads() -> int:
    return sum(t.name == "gated work" for t in threading.enumerate())


async def test_items_submitted_together_are_one_batch_and_items_during_a_batch_are_the_next(
    gated_batcher: tuple[Gate, Batcher[Any]],
) -> None:
    gate, batcher = gated_batcher
    assert threads() == 0
    gate.open.clear()
    first = [batcher.submit(n) for n in (1, 2, 3)]
    await wait_until(lambda: gate.batches)
    later = [batcher.submit(n) for n in (4, 5)]
    await asyncio.sleep(0.02)
    assert gate.batches == [[1, 2, 3]]
    assert gate.idle_calls == 0
    gate.open.set()
    assert await asyncio.gather(*first, *later) == [2, 4, 6, 8, 10]
    assert gate.batches == [[1, 2, 3], [4, 5]]
    assert (batcher.batches, threads()) == (2, 1)


async def test_each_item_has_its_own_exception(gated_batcher: tuple[Gate, Batcher[Any]]) -> None:
    gate, batcher = gated_batcher
    futures = [batcher.submit(i) for i in (KeyError("k"), 1, StopIteration(), SystemExit(3))]
    results = await asyncio.gather(*futures[:3], return_exceptions=True)
    assert isinstance(results[0], KeyError)
    assert results[1] == 2
    assert isinstance(results[2], RuntimeError)
    await wait_until(futures[3].done)
    assert isinstance(futures[3].exception(), SystemExit)
    gate.fault = GeneratorExit()
    futures = [batcher.submit(n) for n in (1, 2)]
    await wait_until(lambda: all(f.done() for f in futures))
    assert all(isinstance(f.exception(), GeneratorExit) for f in futures)
    gate.fault = None
    assert await batcher.submit(4) == 8, "the thread continues"


async def test_a_cancelled_wait_does_not_affect_other_items(gated_batcher: tuple[Gate, Batcher[Any]]) -> None:
    _, batcher = gated_batcher
    futures = [batcher.submit(n) for n in (1, 2)]
    futures[0].cancel()
    assert await futures[1] == 4


async def test_the_idle_function_runs_once_after_a_pause_without_work(gated_batcher: tuple[Gate, Batcher[Any]]) -> None:
    gate, batcher = gated_batcher
    await batcher.submit(1)
    await wait_until(lambda: gate.idle_calls == 1)
    await asyncio.sleep(0.03)
    assert gate.idle_calls == 1
    await batcher.submit(1)
    await wait_until(lambda: gate.idle_calls == 2)
    assert await batcher.submit(2) == 4, "an exception of the idle function affects no item"


async def test_work_delays_the_idle_function_but_not_indefinitely(
    gated_batcher: tuple[Gate, Batcher[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, batcher = gated_batcher
    monkeypatch.setattr(module, "_QUIET", 60.0)
    monkeypatch.setattr(module, "_LATEST", 600.0)
    for _ in range(5):
        await batcher.submit(1)
    assert gate.idle_calls == 0
    monkeypatch.setattr(module, "_LATEST", -1.0)
    await batcher.submit(1)
    await wait_until(lambda: gate.idle_calls == 1)


async def test_only_the_last_timer_for_the_idle_function_is_kept(
    gated_batcher: tuple[Gate, Batcher[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, batcher = gated_batcher
    monkeypatch.setattr(module, "_QUIET", 61.0)
    monkeypatch.setattr(module, "_LATEST", 600.0)
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def call_and_record(seconds: float, function: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(seconds, function, *args, **options)
        if seconds == 61.0:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", call_and_record)
    for _ in range(3):
        await batcher.submit(1)
    await wait_until(lambda: len(timers) == 3)
    assert [t.cancelled() for t in timers] == [True, True, False]
    await batcher.close(5)
    assert timers[2].cancelled()
    assert gate.idle_calls == 0


async def test_a_close_waits_for_the_current_batch_and_rejects_new_items(
    gated_batcher: tuple[Gate, Batcher[Any]],
) -> None:
    gate, batcher = gated_batcher
    gate.open.clear()
    future = batcher.submit(1)
    await wait_until(lambda: gate.batches)
    closing = asyncio.create_task(batcher.close(10))
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.open.set()
    await closing
    assert await future == 2
    with pytest.raises(RecordsError, match="gated work: closed"):
        await batcher.submit(2)
    await wait_until(lambda: threads() == 0)
    assert gate.idle_calls == 0


async def test_the_final_function_runs_once_in_the_thread_after_all_batches(
    gated_batcher: tuple[Gate, Batcher[Any]],
) -> None:
    gate, batcher = gated_batcher
    calls: list[tuple[str, int]] = []
    gate.open.clear()
    future = batcher.submit(1)
    closing = asyncio.create_task(
        batcher.close(10, lambda: calls.append((threading.current_thread().name, len(gate.batches))))
    )
    await wait_until(lambda: gate.batches)
    gate.open.set()
    await closing
    assert (calls, await future) == ([("gated work", 1)], 2)
    await batcher.close(10, lambda: calls.append(("again", 0)))
    assert len(calls) == 1


async def test_a_failing_final_function_also_ends_the_thread(gated_batcher: tuple[Gate, Batcher[Any]]) -> None:
    _, batcher = gated_batcher
    await batcher.submit(1)

    def fails() -> None:
        raise ValueError("nobody is told")

    async with asyncio.timeout(30):
        await batcher.close(60, fails)
    await wait_until(lambda: threads() == 0)


async def test_the_wait_of_a_close_is_bounded(gated_batcher: tuple[Gate, Batcher[Any]]) -> None:
    gate, batcher = gated_batcher
    gate.open.clear()
    future = batcher.submit(1)
    await wait_until(lambda: gate.batches)
    async with asyncio.timeout(30):
        await batcher.close(0.01)
    with pytest.raises(RecordsError, match="gated work: closed"):
        await batcher.submit(2)
    gate.open.set()
    assert await future == 2
    await wait_until(lambda: threads() == 0)


async def test_a_close_waits_for_waiting_batches_and_for_the_final_function(
    gated_batcher: tuple[Gate, Batcher[Any]],
) -> None:
    gate, batcher = gated_batcher
    last = threading.Event()
    gate.open.clear()
    first = batcher.submit(1)
    await wait_until(lambda: gate.batches)
    tidy_again = batcher.submit(2)
    closing = asyncio.create_task(batcher.close(60, lambda: last.wait(60) and None))
    await asyncio.sleep(0)
    gate.open.set()
    assert await asyncio.gather(first, tidy_again) == [2, 4]
    await asyncio.sleep(0.02)
    assert not closing.done()
    last.set()
    await closing
    assert gate.batches == [[1], [2]]


async def test_a_close_before_any_work_returns_at_once_and_starts_no_thread() -> None:
    batcher: Batcher[int] = Batcher("gated work", lambda items: items)
    ran: list[int] = []
    async with asyncio.timeout(30):
        await batcher.close(60, lambda: ran.append(1))
    assert (ran, batcher._thread) == ([], None)


async def test_items_during_the_idle_function_are_one_batch_after_it(gated_batcher: tuple[Gate, Batcher[Any]]) -> None:
    gate, batcher = gated_batcher
    is_idle, resume = threading.Event(), threading.Event()

    def wait_on_idle() -> None:
        is_idle.set()
        resume.wait(60)

    batcher._idle = wait_on_idle
    await batcher.submit(1)
    await wait_until(is_idle.is_set)
    futures = [batcher.submit(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    futures.append(batcher.submit(3))
    resume.set()
    assert await asyncio.gather(*futures) == [4, 6]
    assert gate.batches == [[1], [2, 3]]


async def test_work_without_an_idle_function_leaves_no_timer() -> None:
    batcher: Batcher[int] = Batcher("gated work", lambda items: items)
    assert await batcher.submit(1) == 1
    assert batcher._timer is None
    await batcher.close(5)


# --- batch windows ------------------------------------------------------------------------------------------


async def test_a_batch_window_ends_when_all_claims_have_arrived_or_left() -> None:
    window = BatchWindow(3, max_wait=60)
    tasks = [asyncio.create_task(window.wait(uid)) for uid in "aab"]
    await asyncio.sleep(0.01)
    assert not any(t.done() for t in tasks), "one of three is missing; a claim that arrives twice counts once"
    window.leave("c")
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    await asyncio.wait_for(window.wait("late"), 30)


async def test_the_wait_for_a_late_claim_is_bounded_and_an_ended_window_leaves_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await asyncio.wait_for(BatchWindow(2, max_wait=0.01).wait("a"), 30)
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def call_and_record(seconds: float, function: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(call_later(seconds, function, *args, **options))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", call_and_record)
    window = BatchWindow(3, max_wait=60)
    await asyncio.gather(*(window.wait(uid) for uid in "abc"))
    assert [t.cancelled() for t in timers] == [True]
    await window.wait("d")
    assert len(timers) == 1


# --- tasks of claims ----------------------------------------------------------------------------------------


def in_flight(metrics: Metrics) -> float:
    lines = metrics.text().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if "in_flight" in line and not line.startswith("#"))


async def test_a_call_joins_the_same_work_waits_for_other_work_and_never_waits_for_other_claims() -> None:
    metrics = Metrics()
    tasks_in_flight = ClaimTasks(metrics)
    order: list[str] = []
    resume = asyncio.Event()

    def work(name: str) -> Callable[[], Any]:
        async def do() -> str:
            order.append(name)
            await resume.wait()
            return name

        return do

    prepare, is_new = tasks_in_flight.start("u", Work.PREPARE, work("prepare"))
    assert is_new
    assert tasks_in_flight.start("u", Work.PREPARE, work("never")) == (prepare, False)
    unprepare, is_new = tasks_in_flight.start("u", Work.UNPREPARE, work("unprepare"))
    assert not is_new
    prepare_again, _ = tasks_in_flight.start("u", Work.PREPARE, work("prepare again"))
    assert prepare_again is not prepare
    tidy, is_new = tasks_in_flight.start("v", Work.TIDY, work("tidy"))
    assert is_new
    tidy_again, is_new = tasks_in_flight.start("v", Work.TIDY, work("tidy again"))
    assert (tidy_again is tidy, is_new) == (False, False)
    free_task, is_new = tasks_in_flight.start("v", Work.FREE, work("free"))
    assert (free_task in {tidy_again, tidy}, is_new) == (False, False)
    assert tasks_in_flight.start("v", Work.FREE, work("never")) == (free_task, False)
    assert [tasks_in_flight.prepares(uid) for uid in "uvw"] == [True, False, False]
    await asyncio.sleep(0.01)
    assert order == ["prepare", "tidy"]
    assert ("u" in tasks_in_flight, "w" in tasks_in_flight, tasks_in_flight.uids, in_flight(metrics)) == (
        True,
        False,
        ["u", "v"],
        2,
    )
    resume.set()
    assert await asyncio.gather(prepare, unprepare, prepare_again, tidy, tidy_again, free_task) == [
        "prepare", "unprepare", "prepare again", "tidy", "tidy again", "free"
    ]  # fmt: skip
    assert order.index("unprepare") < order.index("prepare again")
    await asyncio.sleep(0)
    assert ("u" in tasks_in_flight, tasks_in_flight.uids, in_flight(metrics)) == (False, [], 0)


async def test_a_failed_task_has_the_reference_to_its_log_lines_and_does_not_block_the_next_task() -> None:
    tasks_in_flight = ClaimTasks(Metrics())

    async def fail() -> None:
        raise DraError("no")

    async def succeed() -> str:
        return "fine"

    with operation() as number:
        task, _ = tasks_in_flight.start("u", Work.PREPARE, fail)
    next_task, _ = tasks_in_flight.start("u", Work.UNPREPARE, succeed)
    with pytest.raises(DraError):
        await task
    assert tasks_in_flight.log_of(task) == (number, {"claim_uid": "u"})
    assert await next_task == "fine"


async def test_a_task_without_waiters_ends_silently_also_if_it_fails() -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    tasks_in_flight = ClaimTasks(Metrics())

    async def fail() -> None:
        raise KeyError("nobody waits")

    failing, _ = tasks_in_flight.start("u", Work.PREPARE, fail)
    cancelled, _ = tasks_in_flight.start("v", Work.PREPARE, asyncio.Event().wait)
    await asyncio.sleep(0)
    cancelled.cancel()
    await wait_until(lambda: not tasks_in_flight.uids)
    assert tasks_in_flight.log_of(failing) is None
    del failing, cancelled
    gc.collect()
    assert problems == []
    await tasks_in_flight.end(0)


@pytest.mark.parametrize("grace", [60.0, 0.01])
async def test_a_stop_waits_for_the_grace_period_and_no_longer(grace: float, caplog: pytest.LogCaptureFixture) -> None:
    tasks_in_flight = ClaimTasks(Metrics())
    resume = asyncio.Event()

    async def wait() -> str:
        await resume.wait()
        return "done"

    task, _ = tasks_in_flight.start("u", Work.PREPARE, wait)
    assert not tasks_in_flight.ending
    ending = asyncio.create_task(tasks_in_flight.end(grace))
    await asyncio.sleep(0)
    assert tasks_in_flight.ending
    if grace > 1:
        resume.set()
        await asyncio.wait_for(ending, 30)
        assert await task == "done"
        assert "unfinished" not in caplog.text
    else:
        await asyncio.wait_for(ending, 30)
        assert task.cancelled()
        assert "stopped with unfinished claims, which the next start rolls back: 1 (prepare u)" in caplog.text
        assert "ignores its cancellation" not in caplog.text
    await tasks_in_flight.end(0)
    assert tasks_in_flight.uids == []


async def test_a_task_that_ignores_its_cancellation_does_not_block_a_stop(caplog: pytest.LogCaptureFixture) -> None:
    tasks_in_flight = ClaimTasks(Metrics())
    resume = asyncio.Event()

    async def ignore_cancellation() -> None:
        while not resume.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await resume.wait()

    task, _ = tasks_in_flight.start("u", Work.PREPARE, ignore_cancellation)
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await tasks_in_flight.end(0.01)
    assert not task.done()
    assert "unfinished work ignores its cancellation: 1 claims" in caplog.text
    resume.set()
    await task


def test_an_internal_error_is_reported_without_its_details() -> None:
    error = DraError("mine")
    assert as_dra_error(error) is error
    assert str(as_dra_error(KeyError("x"))).startswith("an internal error of the plugin: ")
