"""Updates that do not complete normally: another instance prepares the claim, no caller awaits the update, or the
plugin stops.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.metadata_updates import MetadataUpdates, _PendingUpdate
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.driver import MetadataUpdate
from dra_kubeletplugin.errors import ClaimBusyError, MetadataUpdateError, StoppingError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.metadata_update_process import UID, Net, claim
from tests.helpers.waiting import block_until, wait_until

UPDATE = MetadataUpdate(uid=UID, request="net", attributes={"x": {"int": 1}})


def set_owner(manager: RunningManager, state: State, owner: str) -> Any:
    def change_owner(records: Records) -> None:
        row = records.read(UID)
        assert isinstance(row, Record)
        fence, row.state, row.owner = row.fence, state, owner
        assert records.update(row, fence)

    return manager.claims.store.do(change_owner)


async def test_an_update_waits_while_another_instance_prepares_the_claim(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Net(), api) as manager, running_manager(tmp_path, Net(), api) as other:
        await manager.prepare(claim(api))
        await set_owner(manager, State.PREPARING, other.process.id)
        transactions = manager.claims.store.transactions
        update = asyncio.ensure_future(manager.claims.update_metadata(UPDATE))
        await wait_until(lambda: manager.claims.store.transactions > transactions + 2)
        assert not update.done()
        await set_owner(manager, State.PREPARED, "")
        assert await update == 2


async def test_an_update_waits_for_a_bounded_time(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Net(), api) as manager, running_manager(tmp_path, Net(), api) as other:
        await manager.prepare(claim(api))
        await set_owner(manager, State.PREPARING, other.process.id)
        updates = manager.claims._updates
        assert updates.timeout == manager.settings.call_timeout / 2
        with pytest.raises(ClaimBusyError, match="is still being prepared by another instance of the plugin"):
            await updates._apply(UPDATE, -1.0)
        await set_owner(manager, State.PREPARED, "")


@pytest.mark.parametrize(
    ("state", "boot", "fields", "message"),
    [
        (State.UNPREPARING, "boot", {}, "claim ns/c (UID uid-1) is not prepared, so it has no metadata to update"),
        (State.PREPARED, "earlier", {}, "was prepared before the node was rebooted"),
        (
            State.PREPARED,
            "boot",
            {"recovered": True},
            "recovered from the hardware without its record",
        ),
    ],
)
async def test_only_a_prepared_claim_can_be_updated(
    tmp_path: Path, state: State, boot: str, fields: dict[str, Any], message: str
) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as manager:
        record = Record(UID, "ns", "c", state, boot, **fields)
        await manager.claims.store.do(lambda records: records.insert(record))
        with pytest.raises(MetadataUpdateError) as caught:
            await manager.claims.update_metadata(UPDATE)
        assert message in str(caught.value)


async def test_an_update_before_the_start_or_after_the_end_of_the_loop_is_an_error(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as manager:
        opened = manager.claims._updates
        updates = MetadataUpdates(opened.store, opened.files, opened.transitions, opened.tasks, manager.settings)
        with pytest.raises(StoppingError, match=r"call it after start\(\) has returned"):
            updates.begin(UPDATE)
        updates.open()
        closed_loop = asyncio.new_event_loop()
        closed_loop.close()
        updates._loop = closed_loop
        with pytest.raises(StoppingError, match="the plugin has stopped"):  # and no warning of a coroutine
            updates.begin(UPDATE)


async def test_an_update_during_the_stop_of_the_plugin_is_an_error(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as manager:
        updates, resume = manager.claims._updates, asyncio.Event()

        async def hangs(update: MetadataUpdate, deadline: float) -> int:
            await resume.wait()
            return 1

        updates._apply = hangs  # type: ignore[method-assign]
        update = asyncio.ensure_future(updates.apply(UPDATE))
        await wait_until(lambda: manager.claims.tasks.uids)
        await manager.claims.stop(0)
        with pytest.raises(StoppingError, match="the plugin is shutting down"):
            await update


# --- an update that no caller awaits -----------------------------------------------------------------------


def failed(error: Exception) -> concurrent.futures.Future[int]:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_exception(error)
    return future


def test_only_a_failure_that_no_caller_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    _PendingUpdate(failed(MetadataUpdateError("not prepared")), UPDATE)
    (line,) = caplog.records
    assert line.getMessage() == "device metadata is not updated: not prepared"
    assert (vars(line)["claim_uid"], vars(line)["request"]) == (UID, "net")
    caplog.clear()
    _PendingUpdate(failed(KeyError("odd")), UPDATE)
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    cancelled: concurrent.futures.Future[int] = concurrent.futures.Future()
    awaited: concurrent.futures.Future[int] = concurrent.futures.Future()
    _PendingUpdate(future, UPDATE)
    _PendingUpdate(cancelled, UPDATE)
    pending = _PendingUpdate(awaited, UPDATE)
    future.set_result(1)
    cancelled.cancel()

    def fail() -> None:
        block_until(lambda: pending._awaited)
        awaited.set_exception(MetadataUpdateError("not prepared"))

    failing = threading.Thread(target=fail)
    failing.start()
    with pytest.raises(MetadataUpdateError):
        pending.wait(30)
    failing.join()
    assert caplog.records == []


async def test_an_awaited_failure_is_raised_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    pending = _PendingUpdate(future, UPDATE)
    asyncio.get_running_loop().call_later(0.01, future.set_exception, MetadataUpdateError("not prepared"))
    with pytest.raises(MetadataUpdateError):
        await pending
    assert caplog.records == []


def test_the_wait_of_a_thread_ends_when_the_plugin_stops() -> None:
    cancelled: concurrent.futures.Future[int] = concurrent.futures.Future()
    cancelled.cancel()
    for future in (cancelled, concurrent.futures.Future()):
        with pytest.raises(StoppingError, match="the plugin stopped before the update was complete"):
            _PendingUpdate(future, UPDATE).wait(0.01)
