"""Operations that arrive together share one transaction, and the end of a store waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from dra_kubeletplugin.claims import RecordStore
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import RecordsError
from tests.helpers.crash.record_stores import open_store
from tests.helpers.waiting import wait_until

Result = TypeVar("Result")


class Gate:
    """Work that a test can hold up."""

    def __init__(self) -> None:
        self.began, self.open = threading.Event(), threading.Event()

    def pass_through(self) -> str:
        self.began.set()
        assert self.open.wait(60)
        return "passed"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    found = open_store(tmp_path)
    yield found
    found.folder.process.release()


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.open.set()


async def run(store: RecordStore, work: Callable[[], Result]) -> Result:
    return await store.do(lambda _: work(), Mode.READ)


async def held_up(store: RecordStore, gate: Gate) -> asyncio.Task[str]:
    task = asyncio.create_task(run(store, gate.pass_through))
    await wait_until(gate.began.is_set)
    return task


async def test_an_exception_that_ends_programs_reaches_the_caller_and_the_thread_continues(store: RecordStore) -> None:
    def fail() -> None:
        raise GeneratorExit

    with pytest.raises(GeneratorExit):
        await run(store, fail)
    assert await run(store, lambda: 1) == 1


async def test_a_cancelled_call_affects_no_other_operation(store: RecordStore, gate: Gate) -> None:
    first = await held_up(store, gate)
    waiting = [asyncio.create_task(run(store, work)) for work in (lambda: 1, lambda: 2)]
    await asyncio.sleep(0)
    first.cancel()
    waiting[0].cancel()
    gate.open.set()
    assert await waiting[1] == 2


async def test_a_driver_that_cancels_all_tasks_does_not_stop_the_records(store: RecordStore, gate: Gate) -> None:
    calls = [await held_up(store, gate), asyncio.ensure_future(run(store, lambda: "second"))]
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait(calls)
    gate.open.set()
    async with asyncio.timeout(60):
        assert await run(store, lambda: "third") == "third"


async def test_a_close_waits_for_all_operations_and_rejects_new_ones(store: RecordStore, gate: Gate) -> None:
    first, second = await held_up(store, gate), asyncio.create_task(run(store, lambda: 2))
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close(60))
    await asyncio.sleep(0.02)
    assert not closing.done()
    gate.open.set()
    await closing
    assert (await first, await second) == ("passed", 2)
    with pytest.raises(RecordsError, match="the claim records are closed, because the plugin stops"):
        await run(store, lambda: 3)


async def test_the_wait_of_a_close_is_bounded_and_without_use_there_is_no_wait_and_no_file(
    store: RecordStore, gate: Gate, tmp_path: Path
) -> None:
    unused = open_store(tmp_path)
    async with asyncio.timeout(30):
        await unused.close(60)
        assert not unused.path.exists()
        unused.folder.process.release()
        first = await held_up(store, gate)
        await store.close(0.01)
    gate.open.set()
    assert await first == "passed"
