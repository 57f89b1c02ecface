"""The modules of work in flight: a common start for the claims of a call, and one task at a time for a claim."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest

from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims.inflight import BatchWindow, ClaimTasks, Work, as_dra_error
from dra_kubeletplugin.errors import DraError
from tests.helpers.waiting import wait_until

# --- batch windows ------------------------------------------------------------------------------------------


async def test_a_batch_window_ends_when_all_claims_have_arrived_or_left() -> None:
    window = BatchWindow("abc", max_wait=60)
    tasks = [asyncio.create_task(window.wait(uid)) for uid in "aab"]
    await asyncio.sleep(0.01)
    assert not any(t.done() for t in tasks), "one of three is missing; a claim that arrives twice counts once"
    window.leave("c")
    await asyncio.wait_for(asyncio.gather(*tasks, window.wait("late")), 30)


async def test_the_wait_for_a_late_claim_is_bounded_and_ends_for_all_claims_at_once() -> None:
    window = BatchWindow("abc", max_wait=0.01)
    await asyncio.wait_for(window.wait("a"), 30)
    late = asyncio.create_task(window.wait("b"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert late.done()


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

    prepare = tasks_in_flight.start("u", Work.PREPARE, work("prepare"))
    assert tasks_in_flight.start("u", Work.PREPARE, work("never")) is prepare
    unprepare = tasks_in_flight.start("u", Work.UNPREPARE, work("unprepare"))
    prepare_again = tasks_in_flight.start("u", Work.PREPARE, work("prepare again"))
    tidy = tasks_in_flight.start("v", Work.TIDY, work("tidy"))
    tidy_again = tasks_in_flight.start("v", Work.TIDY, work("tidy again"))
    free_task = tasks_in_flight.start("v", Work.FREE, work("free"))
    assert tasks_in_flight.start("v", Work.FREE, work("never")) is free_task
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


async def test_a_task_without_waiters_ends_silently_also_if_it_fails() -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    tasks_in_flight = ClaimTasks(Metrics())

    async def fail() -> None:
        raise KeyError("nobody waits")

    failing = tasks_in_flight.start("u", Work.PREPARE, fail)
    cancelled = tasks_in_flight.start("v", Work.PREPARE, asyncio.Event().wait)
    await asyncio.sleep(0)
    cancelled.cancel()
    await wait_until(lambda: not tasks_in_flight.uids)
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

    task = tasks_in_flight.start("u", Work.PREPARE, wait)
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

    task = tasks_in_flight.start("u", Work.PREPARE, ignore_cancellation)
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
