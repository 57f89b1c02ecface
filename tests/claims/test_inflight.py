"""Work on claims as it is gathered: batches in a thread, meetings of tasks, one flight for a claim."""

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
    """Work that a test holds: doubles numbers, raises what is an exception."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.idle = 0
        self.open = threading.Event()
        self.open.set()
        self.fault: BaseException | None = None

    def work(self, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        assert self.open.wait(60)
        if self.fault:
            raise self.fault
        return [i if isinstance(i, BaseException) else i * 2 for i in items]

    def rest(self) -> None:
        self.idle += 1
        raise ValueError("nobody waits for this")


@pytest.fixture
async def gate(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Gate, Batcher[Any]]]:
    monkeypatch.setattr(module, "_QUIET", 0.005)
    gate = Gate()
    batcher: Batcher[Any] = Batcher("gated work", gate.work, gate.rest)
    yield gate, batcher
    gate.open.set()
    await batcher.close(5)


def threads() -> int:
    return sum(t.name == "gated work" for t in threading.enumerate())


async def test_what_comes_together_is_one_batch_and_what_comes_meanwhile_the_next(
    gate: tuple[Gate, Batcher[Any]],
) -> None:
    held, batcher = gate
    assert threads() == 0
    held.open.clear()
    first = [batcher.submit(n) for n in (1, 2, 3)]
    await wait_until(lambda: held.batches)
    later = [batcher.submit(n) for n in (4, 5)]
    await asyncio.sleep(0.02)
    assert held.batches == [[1, 2, 3]]
    assert held.idle == 0
    held.open.set()
    assert await asyncio.gather(*first, *later) == [2, 4, 6, 8, 10]
    assert held.batches == [[1, 2, 3], [4, 5]]
    assert (batcher.batches, threads()) == (2, 1)


async def test_each_item_has_its_own_fault(gate: tuple[Gate, Batcher[Any]]) -> None:
    held, batcher = gate
    futures = [batcher.submit(i) for i in (KeyError("k"), 1, StopIteration(), SystemExit(3))]
    found = await asyncio.gather(*futures[:3], return_exceptions=True)
    assert isinstance(found[0], KeyError)
    assert found[1] == 2
    assert isinstance(found[2], RuntimeError)
    await wait_until(futures[3].done)
    assert isinstance(futures[3].exception(), SystemExit)
    held.fault = GeneratorExit()
    futures = [batcher.submit(n) for n in (1, 2)]
    await wait_until(lambda: all(f.done() for f in futures))
    assert all(isinstance(f.exception(), GeneratorExit) for f in futures)
    held.fault = None
    assert await batcher.submit(4) == 8, "the thread lives on"


async def test_who_waits_no_more_takes_nothing_from_the_others(gate: tuple[Gate, Batcher[Any]]) -> None:
    _, batcher = gate
    futures = [batcher.submit(n) for n in (1, 2)]
    futures[0].cancel()
    assert await futures[1] == 4


async def test_after_a_moment_without_work_comes_the_rest_once(gate: tuple[Gate, Batcher[Any]]) -> None:
    held, batcher = gate
    await batcher.submit(1)
    await wait_until(lambda: held.idle == 1)
    await asyncio.sleep(0.03)
    assert held.idle == 1
    await batcher.submit(1)
    await wait_until(lambda: held.idle == 2)
    assert await batcher.submit(2) == 4, "a fault of the rest is nobody's"


async def test_work_puts_the_rest_off_but_not_for_ever(
    gate: tuple[Gate, Batcher[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, batcher = gate
    monkeypatch.setattr(module, "_QUIET", 60.0)
    monkeypatch.setattr(module, "_LATEST", 600.0)
    for _ in range(5):
        await batcher.submit(1)
    assert held.idle == 0
    monkeypatch.setattr(module, "_LATEST", -1.0)
    await batcher.submit(1)
    await wait_until(lambda: held.idle == 1)


async def test_of_waits_for_a_rest_only_the_last_is_left(
    gate: tuple[Gate, Batcher[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, batcher = gate
    monkeypatch.setattr(module, "_QUIET", 61.0)
    monkeypatch.setattr(module, "_LATEST", 600.0)
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def later(seconds: float, what: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(seconds, what, *args, **options)
        if seconds == 61.0:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", later)
    for _ in range(3):
        await batcher.submit(1)
    await wait_until(lambda: len(timers) == 3)
    assert [t.cancelled() for t in timers] == [True, True, False]
    await batcher.close(5)
    assert timers[2].cancelled()
    assert held.idle == 0


async def test_a_close_waits_for_what_is_under_way_and_takes_nothing_more(gate: tuple[Gate, Batcher[Any]]) -> None:
    held, batcher = gate
    held.open.clear()
    future = batcher.submit(1)
    await wait_until(lambda: held.batches)
    closing = asyncio.create_task(batcher.close(10))
    await asyncio.sleep(0.01)
    assert not closing.done()
    held.open.set()
    await closing
    assert await future == 2
    with pytest.raises(RecordsError, match="gated work: closed"):
        await batcher.submit(2)
    await wait_until(lambda: threads() == 0)
    assert held.idle == 0


async def test_the_last_thing_is_done_by_the_thread_behind_everything_else_and_once(
    gate: tuple[Gate, Batcher[Any]],
) -> None:
    held, batcher = gate
    seen: list[tuple[str, int]] = []
    held.open.clear()
    future = batcher.submit(1)
    closing = asyncio.create_task(
        batcher.close(10, lambda: seen.append((threading.current_thread().name, len(held.batches))))
    )
    await wait_until(lambda: held.batches)
    held.open.set()
    await closing
    assert (seen, await future) == ([("gated work", 1)], 2)
    await batcher.close(10, lambda: seen.append(("again", 0)))
    assert len(seen) == 1


async def test_a_last_thing_that_fails_ends_the_thread_all_the_same(gate: tuple[Gate, Batcher[Any]]) -> None:
    _, batcher = gate
    await batcher.submit(1)

    def fails() -> None:
        raise ValueError("nobody is told")

    async with asyncio.timeout(30):
        await batcher.close(60, fails)
    await wait_until(lambda: threads() == 0)


async def test_a_close_does_not_wait_for_ever(gate: tuple[Gate, Batcher[Any]]) -> None:
    held, batcher = gate
    held.open.clear()
    future = batcher.submit(1)
    await wait_until(lambda: held.batches)
    async with asyncio.timeout(30):
        await batcher.close(0.01)
    with pytest.raises(RecordsError, match="gated work: closed"):
        await batcher.submit(2)
    held.open.set()
    assert await future == 2
    await wait_until(lambda: threads() == 0)


async def test_a_close_waits_for_batches_that_wait_and_for_the_last_thing(gate: tuple[Gate, Batcher[Any]]) -> None:
    held, batcher = gate
    last = threading.Event()
    held.open.clear()
    first = batcher.submit(1)
    await wait_until(lambda: held.batches)
    second = batcher.submit(2)
    closing = asyncio.create_task(batcher.close(60, lambda: last.wait(60) and None))
    await asyncio.sleep(0)
    held.open.set()
    assert await asyncio.gather(first, second) == [2, 4]
    await asyncio.sleep(0.02)
    assert not closing.done()
    last.set()
    await closing
    assert held.batches == [[1], [2]]


async def test_a_close_before_any_work_returns_at_once_and_starts_no_thread() -> None:
    batcher: Batcher[int] = Batcher("gated work", lambda items: items)
    ran: list[int] = []
    async with asyncio.timeout(30):
        await batcher.close(60, lambda: ran.append(1))
    assert (ran, batcher._thread) == ([], None)


async def test_items_that_come_during_the_rest_are_one_batch_after_it(gate: tuple[Gate, Batcher[Any]]) -> None:
    held, batcher = gate
    rests, go = threading.Event(), threading.Event()

    def rest() -> None:
        rests.set()
        go.wait(60)

    batcher._idle = rest
    await batcher.submit(1)
    await wait_until(rests.is_set)
    futures = [batcher.submit(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    futures.append(batcher.submit(3))
    go.set()
    assert await asyncio.gather(*futures) == [4, 6]
    assert held.batches == [[1], [2, 3]]


async def test_work_without_a_rest_leaves_no_timer() -> None:
    batcher: Batcher[int] = Batcher("gated work", lambda items: items)
    assert await batcher.submit(1) == 1
    assert batcher._timer is None
    await batcher.close(5)


# --- meetings -----------------------------------------------------------------------------------------------


async def test_a_meeting_begins_when_all_have_come_or_left() -> None:
    window = BatchWindow(3, max_wait=60)
    tasks = [asyncio.create_task(window.wait(who)) for who in "aab"]
    await asyncio.sleep(0.01)
    assert not any(t.done() for t in tasks), "one of three is missing, who came twice counts once"
    window.leave("c")
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    await asyncio.wait_for(window.wait("late"), 30)


async def test_who_is_late_is_not_waited_for_long_and_a_meeting_that_began_leaves_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await asyncio.wait_for(BatchWindow(2, max_wait=0.01).wait("a"), 30)
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def later(seconds: float, what: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(call_later(seconds, what, *args, **options))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", later)
    window = BatchWindow(3, max_wait=60)
    await asyncio.gather(*(window.wait(who) for who in "abc"))
    assert [t.cancelled() for t in timers] == [True]
    await window.wait("d")
    assert len(timers) == 1


# --- flights ------------------------------------------------------------------------------------------------


def in_flight(metrics: Metrics) -> float:
    lines = metrics.text().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if "in_flight" in line and not line.startswith("#"))


async def test_the_same_work_is_joined_other_work_waits_and_other_claims_never_do() -> None:
    metrics = Metrics()
    tasks_in_flight = ClaimTasks(metrics)
    order: list[str] = []
    go_on = asyncio.Event()

    def work(name: str) -> Callable[[], Any]:
        async def do() -> str:
            order.append(name)
            await go_on.wait()
            return name

        return do

    prepare, fresh = tasks_in_flight.start("u", Work.PREPARE, work("prepare"))
    assert fresh
    assert tasks_in_flight.start("u", Work.PREPARE, work("never")) == (prepare, False)
    unprepare, fresh = tasks_in_flight.start("u", Work.UNPREPARE, work("unprepare"))
    assert not fresh
    again, _ = tasks_in_flight.start("u", Work.PREPARE, work("prepare again"))
    assert again is not prepare
    other, fresh = tasks_in_flight.start("v", Work.TIDY, work("tidy"))
    assert fresh
    second, fresh = tasks_in_flight.start("v", Work.TIDY, work("tidy again"))
    assert (second is other, fresh) == (False, False)
    free, fresh = tasks_in_flight.start("v", Work.FREE, work("free"))
    assert (free in {second, other}, fresh) == (False, False)
    assert tasks_in_flight.start("v", Work.FREE, work("never")) == (free, False)
    assert [tasks_in_flight.prepares(uid) for uid in "uvw"] == [True, False, False]
    await asyncio.sleep(0.01)
    assert order == ["prepare", "tidy"]
    assert ("u" in tasks_in_flight, "w" in tasks_in_flight, tasks_in_flight.uids, in_flight(metrics)) == (
        True,
        False,
        ["u", "v"],
        2,
    )
    go_on.set()
    assert await asyncio.gather(prepare, unprepare, again, other, second, free) == [
        "prepare", "unprepare", "prepare again", "tidy", "tidy again", "free"
    ]  # fmt: skip
    assert order.index("unprepare") < order.index("prepare again")
    await asyncio.sleep(0)
    assert ("u" in tasks_in_flight, tasks_in_flight.uids, in_flight(metrics)) == (False, [], 0)


async def test_a_flight_that_fails_reports_where_its_lines_are_and_keeps_nobody_behind_it() -> None:
    tasks_in_flight = ClaimTasks(Metrics())

    async def fail() -> None:
        raise DraError("no")

    async def fine() -> str:
        return "fine"

    with operation() as number:
        task, _ = tasks_in_flight.start("u", Work.PREPARE, fail)
    behind, _ = tasks_in_flight.start("u", Work.UNPREPARE, fine)
    with pytest.raises(DraError):
        await task
    assert tasks_in_flight.log_of(task) == (number, {"claim_uid": "u"})
    assert await behind == "fine"


async def test_work_that_nobody_waits_for_ends_silently_whatever_its_end() -> None:
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
async def test_an_end_waits_for_its_grace_and_no_longer(grace: float, caplog: pytest.LogCaptureFixture) -> None:
    tasks_in_flight = ClaimTasks(Metrics())
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "done"

    task, _ = tasks_in_flight.start("u", Work.PREPARE, wait)
    assert not tasks_in_flight.ending
    ending = asyncio.create_task(tasks_in_flight.end(grace))
    await asyncio.sleep(0)
    assert tasks_in_flight.ending
    if grace > 1:
        go_on.set()
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


async def test_an_end_is_not_held_up_by_what_lets_itself_not_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    tasks_in_flight = ClaimTasks(Metrics())
    go_on = asyncio.Event()

    async def stubborn() -> None:
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()

    task, _ = tasks_in_flight.start("u", Work.PREPARE, stubborn)
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await tasks_in_flight.end(0.01)
    assert not task.done()
    assert "unfinished work ignores its cancellation: 1 claims" in caplog.text
    go_on.set()
    await task


def test_a_fault_of_ours_is_reported_without_its_insides() -> None:
    mine = DraError("mine")
    assert as_dra_error(mine) is mine
    assert str(as_dra_error(KeyError("x"))).startswith("an internal error of the plugin: ")
