"""Small steps of the records that only a look at exactly them shows: what is rolled back alone, what a repeat tells."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dra_kubeletplugin import Claim, ContainerEdits, DeviceStatus, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import ClaimIdentity, Record, engine
from dra_kubeletplugin.claims.record import SUPERSEDED, Fence
from dra_kubeletplugin.claims.store import offline
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.claims.verification import Verifier
from dra_kubeletplugin.errors import DraError, DriverError, RecordsError
from dra_kubeletplugin.testing import node_with
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import (
    DRIVER,
    insert,
    instance,
    make_record,
    make_record_with_file,
    open_store,
    records_locked,
)
from tests.helpers.drivers import make_toy_class


class Plain(Driver):
    name = DRIVER

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        pass


# --- a batch ------------------------------------------------------------------------------------------------


def noting(key: str, *, fail: bool = False) -> Any:
    def note(records: Records) -> str:
        records.set_meta(f"note:{key}", key)
        if fail:
            raise KeyError(key)
        return key

    return note


async def test_of_a_batch_what_fails_is_rolled_back_alone(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.check_file()
        before = store.transactions
        results = await asyncio.gather(*(store.do(noting(k, fail=k in "bd")) for k in "abcde"), return_exceptions=True)
        assert store.transactions == before + 1
        assert [r if isinstance(r, str) else type(r) for r in results] == ["a", KeyError, "c", KeyError, "e"]
        assert await store.do(lambda records: sorted(records.get_meta("note:"))) == ["a", "c", "e"]


# --- an operator's command ----------------------------------------------------------------------------------


def test_a_command_that_fails_leaves_the_file_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (path := tmp_path / "records.journal").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "pread", fail)
    path.write_bytes(b"x")
    with pytest.raises(RecordsError, match="Input/output error"):
        offline.read_rows(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- a start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "fault", "says"),
    [
        (slow, fault, says)
        for slow in (False, True)
        for fault, says in (
            (RecordsError("the disk is full"), "claims cannot be prepared or unprepared"),
            (KeyError("odd"), "failed unexpectedly: rolling back claims"),
        )
    ],
)
async def test_how_a_part_of_the_start_ended_is_reported_also_where_it_took_long(
    tmp_path: Path,
    slow: bool,
    fault: Exception,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.manager._START_TIMEOUT", 0.01 if slow else 100.0)
    one = RunningManager(tmp_path, Plain(), FakeApiServer(), "boot")
    go_on = asyncio.Event()
    if not slow:
        go_on.set()

    async def fail(**options: Any) -> str:
        await go_on.wait()
        raise fault

    monkeypatch.setattr(one.claims.reconciler, "once", fail)
    await one.open()
    assert (says in caplog.text) is not slow
    assert ("takes long and continues in the background: rolling back claims" in caplog.text) is slow
    go_on.set()
    async with asyncio.timeout(30):
        while says not in caplog.text:
            await asyncio.sleep(0.001)
    await one.close()


# --- a repeat -----------------------------------------------------------------------------------------------


async def test_only_a_file_that_was_written_again_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        for _ in range(2):
            assert not isinstance(await one.prepare(ref), DraError)
        assert "written again" not in caplog.text
        ClaimSpecs(tmp_path / "cdi", DRIVER).remove("a")
        assert not isinstance(await one.prepare(ref), DraError)
        assert caplog.text.count("written again") == 1


# --- a claim as the server has it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "pods"),
    [
        ({"reservedFor": [{"name": "p", "uid": "1"}, {"name": "q", "uid": "2"}]}, ["p", "q"]),
        ({"reservedFor": []}, []),
        ({"reservedFor": None}, []),
        ({}, []),
        (None, []),
    ],
)
async def test_for_whom_a_claim_is_reserved(status: Any, pods: list[str]) -> None:
    nothing = cast(Any, None)
    api = FakeApiServer()
    api.claims["c"] = {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "status": status}
    verifier = Verifier(cast(Any, api), nothing, nothing, nothing, DRIVER)
    found = await verifier.fetch(ClaimIdentity("ns", "c", "u"))
    assert found is not None
    assert [p["name"] for p in found.fields.reserved_for] == pods
    assert (found.fields.metadata.uid, found.fields.results(DRIVER), list(found.fields.config())) == ("u", [], [])


# --- a prepare that fails, or seems to ------------------------------------------------------------------------


class Telling(Plain):
    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        status = DeviceStatus(data={"link": "up"})
        return [d.prepared(ContainerEdits(env={"X": d.name}), status=status) for d in claim.devices]


async def test_a_commit_that_was_done_though_it_seemed_to_fail_is_a_prepare_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Telling(), api) as one:
        store, attempt, update = one.claims.store, one.claims.store._attempt, Records.update
        faults: list[OSError] = []

        def updated(self: Records, record: Record, fence: Fence) -> bool:
            faults.append(OSError(errno.EIO, os.strerror(errno.EIO)))
            monkeypatch.setattr(Records, "update", update)
            return update(self, record, fence)

        def attempted(*args: Any, **options: Any) -> Any:
            done = attempt(*args, **options)
            if faults:
                one.claims.files.specs.remove("a")
                raise faults.pop()
            return done

        told: list[Any] = []
        monkeypatch.setattr(Records, "update", updated)
        monkeypatch.setattr(store, "_attempt", attempted)
        monkeypatch.setattr(one.claims.reports, "queue", lambda key, statuses: told.append((key.uid, *statuses)))
        engine = one.claims.engine
        engine.context = msgspec.structs.replace(engine.context, changed=lambda: told.append("changed"))
        assert not isinstance(await one.prepare(ref), DraError)
        assert await one.records() == {"a": "Prepared"}
        assert told == ["changed", ("a", ("node", "d-0", ""))]
        assert one.claims.files.specs.exists("a"), "its file is written again"


async def test_what_a_prepare_left_whose_record_was_lost_goes_though_its_device_is_anothers_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:

        def taken(records: Records, record: Record, fence: Fence) -> bool:
            monkeypatch.undo()
            records.forget("a")
            records.insert(make_record("b", "d-0"))
            return False

        monkeypatch.setattr(Records, "update", taken)
        assert isinstance(await one.prepare(ref), DraError)
        assert await one.records() == {"b": "Prepared"}
        assert one.claims.files.specs.uids() == []


async def test_a_claim_that_fails_in_the_same_way_all_the_time_is_reported_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    holder, waits = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")

    async def told() -> int:
        before = len(caplog.records)
        assert isinstance(await one.prepare(waits), DraError)
        return sum(
            r.getMessage().startswith("cannot prepare claim") and vars(r)["claim"] == "ns/b"
            for r in caplog.records[before:]
        )

    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(holder)
        assert [await told() for _ in range(3)] == [1, 0, 0]
        monkeypatch.setattr(engine, "_LOG_AGAIN", 0.0)
        assert await told() == 1
        monkeypatch.undo()
        api.away = True
        assert await told() == 1, "another reason"
        api.away = False
        await one.unprepare(holder)
        assert not isinstance(await one.prepare(waits), DraError)
        api.claims.clear()
        assert [await told() for _ in range(2)] == [1, 0]


async def test_an_undo_whose_failure_cannot_be_noted_is_not_brought_back_after_another_has_undone_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Plain):
        async def unprepare(self, claim: PreparedClaim) -> None:
            raise DriverError("not now")

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Failing(), api) as old, running_manager(tmp_path, Plain(), api) as new:
        await old.prepare(ref)

        def full(*_: Any) -> bool:
            raise RecordsError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(Records, "update", full)
            assert isinstance(await old.unprepare(ref), DraError)
        await new.claims.store.do(lambda records: records.forget("a"))  # as if it had been taken for dead
        new.claims.files.remove_all("a")
        assert not isinstance(await new.prepare(api.allocate("b", "b", "d-0", DRIVER)), DraError)
        old.claims.store.journal.drop()
        assert await old.records() == {"b": "Prepared"}


async def test_a_close_is_bounded_and_leaves_the_loop_free_while_somebody_holds_the_records(tmp_path: Path) -> None:
    store = open_store(tmp_path, wait=600)
    await store.all()
    holder = contextlib.ExitStack()
    holder.enter_context(records_locked(store.path))
    adding = asyncio.create_task(store.do(lambda records: records.insert(make_record("a", "d-0"))))
    inside = threading.Event()
    reading = asyncio.create_task(store.do(lambda records: inside.set(), Mode.READ))
    assert await asyncio.to_thread(inside.wait, 30)  # in the same batch, before the write, which waits
    await store.close(0.1)
    assert not adding.done()
    holder.close()
    await asyncio.gather(reading, adding)
    store.journal.process.release()


# --- a note and no record ----------------------------------------------------------------------------------


async def test_a_note_without_a_record_comes_back_is_reported_and_has_the_driver_asked(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.check_file()
        await insert(store, make_record_with_file(tmp_path, "kept", "d-0"))
        await insert(store, make_record_with_file(tmp_path, "lost", "d-1"))
        await store.do(lambda records: (records.clear_meta(RECOVER), records.forget("lost")))
    async with instance(tmp_path) as store:
        assert {r.uid for r in await store.all()} == {"kept", "lost"}
        assert store.journal.report == ["1 record lost and rebuilt: lost"]
        assert await store.recovering()


async def test_files_of_a_claim_that_another_instance_undid_meanwhile_go_and_do_not_come_back(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        claims, specs = one.claims, one.claims.files.specs
        record = await claims.store.get("a")
        assert isinstance(record, Record)
        await claims.store.do(lambda records: records.forget("a"))
        specs.path("a").write_text("{}")  # so that there is something to mend
        assert not await claims.engine.rollback.restore_files(record)
        assert not specs.path("a").exists()
        assert not specs.note_path("a").exists()


async def test_each_claim_of_a_write_that_fails_is_logged_with_its_own_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    api = FakeApiServer()
    refs = [api.allocate(uid, uid, f"d-{uid}", DRIVER) for uid in "ab"]
    async with running_manager(tmp_path, Plain(), api) as one:
        monkeypatch.setattr("dra_kubeletplugin.claims.store.journal.Journal.commit", fail)
        answers = await one.claims.engine.prepare(refs)
        assert answers["a"] is answers["b"]  # one write, one exception
        lines = [vars(r) for r in caplog.records if "cannot prepare claim" in r.getMessage()]
        assert [(line["claim"], line["claim_uid"]) for line in lines] == [("ns/a", "a"), ("ns/b", "b")]
        monkeypatch.undo()


@pytest.mark.parametrize("superseded", [True, False])
async def test_a_claim_whose_device_another_claim_has_got_since_is_undone_without_the_driver(superseded: bool) -> None:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await node.run_pod()
        uid = (await node.claim_of("pod"))["metadata"]["uid"]

        def supersede(records: Records) -> None:
            row = records.read(uid)
            assert isinstance(row, Record)
            row.doc = {**row.doc, SUPERSEDED: superseded}
            assert records.update(row, row.fence)

        await node.plugin.claims.store.do(supersede)
        await node.delete_pod()
        assert (("unprepare", uid) in driver.calls) is not superseded
        assert await node.leftovers() == {"files": [], "records": [], "held": []}
