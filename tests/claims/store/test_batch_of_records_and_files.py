"""A claim's record and its files are worked on at one go; what fails of one claim is not the others', and the order stays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.cdi import directory
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.claim_files import record_of
from dra_kubeletplugin.claims.holders import HeldByError
from dra_kubeletplugin.claims.record import Fence
from dra_kubeletplugin.claims.store import batch
from dra_kubeletplugin.claims.store.batch import Batcher
from dra_kubeletplugin.claims.store.offline import read_rows
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.store import RecordJob
from dra_kubeletplugin.errors import DraError, RecordsError, UndoFailedError
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER, insert, instance, make_record


class Plain(Driver):
    name = DRIVER

    def devices(self) -> list[Any]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"D": d.name})) for d in claim.devices]


class Careful(Plain):
    """Looks at what is there when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []
        self.folder = Path()

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.seen.append(sorted(p.suffix for p in self.folder.iterdir()))


async def test_an_operation_that_fails_after_it_wrote_takes_back_its_own_part_alone(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:

        def twice(records: Records) -> None:
            records.insert(make_record("bad", "d-9"))
            records.insert(make_record("bad", "d-9"), shared=True)

        found = await asyncio.gather(
            insert(store, make_record("first", "d-0")),
            store.do(twice),
            insert(store, make_record("held", "d-0")),
            insert(store, make_record("last", "d-1")),
            return_exceptions=True,
        )
        assert [type(f) for f in found] == [type(None), ValueError, HeldByError, type(None)]
        assert {r.uid for r in await store.all()} == {"first", "last"}
        assert {device for _, device in await store.held()} == {"d-0", "d-1"}


async def test_what_fails_before_the_transaction_keeps_its_operation_and_no_other_from_being_done(
    tmp_path: Path,
) -> None:
    def full() -> None:
        raise RecordsError("the folder is full")

    async with instance(tmp_path) as store:
        await store.all()
        before = store.transactions
        bad, good = await asyncio.gather(
            store.do(lambda records: records.insert(make_record("bad", "d-0")), first=full),
            insert(store, make_record("good", "d-1")),
            return_exceptions=True,
        )
        assert isinstance(bad, RecordsError)
        assert good is None
        assert store.transactions == before + 1
        assert {r.uid for r in await store.all()} == {"good"}


async def test_a_job_that_goes_on_does_so_after_its_first_part_is_committed(tmp_path: Path) -> None:
    async with instance(tmp_path) as store, instance(tmp_path) as other:

        def seen_elsewhere() -> list[str]:
            return [r.uid for r in read_rows(other.path)]

        def go_on(_: object) -> RecordJob:
            between = seen_elsewhere()
            return RecordJob(lambda records: records.forget("a"), then=lambda _: between)

        found: object = await store.do(
            lambda records: records.insert(make_record("a", "d-0")),
            then=go_on,  # type: ignore[arg-type]
        )
        assert found == ["a"]
        assert await store.all() == []


async def test_a_claim_takes_two_hops_to_prepare_one_to_repeat_and_one_or_two_to_unprepare(tmp_path: Path) -> None:
    for driver, hops in ((Plain(), 1), (Careful(), 2)):
        api, folder = FakeApiServer(), tmp_path / type(driver).__name__
        refs = [api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER) for i in range(8)]
        async with running_manager(folder, driver, api) as one:
            if isinstance(driver, Careful):
                driver.folder = one.settings.cdi_root
            store = one.claims.store
            before = store.transactions
            await one.claims.prepare(refs)
            assert store.transactions - before == 2
            before = store.transactions
            await one.claims.prepare(refs)
            assert store.transactions - before == 1
            before = store.transactions
            await one.claims.unprepare(refs)
            assert store.transactions - before == hops


async def test_the_cdi_spec_is_gone_before_the_driver_unprepares(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), Careful()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        driver.folder = one.settings.cdi_root
        await one.prepare(ref)
        assert one.claims.files.specs.note_path("a").exists()
        assert await one.unprepare(ref) == ()
        assert driver.seen == [[".record"]]
        assert list(driver.folder.iterdir()) == []


@pytest.mark.parametrize("driver", [Plain(), Careful()], ids=["nothing to undo", "unprepare"])
async def test_a_spec_that_cannot_be_removed_keeps_its_record_and_its_device(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("stuck", "fine"))]
    async with running_manager(tmp_path, driver, api) as one:
        if isinstance(driver, Careful):
            driver.folder = one.settings.cdi_root
        await one.claims.prepare(refs)
        specs = one.claims.files.specs
        remove = specs.remove

        def fails(uid: str) -> None:
            if uid == "stuck":
                raise PermissionError(1, "Operation not permitted")
            remove(uid)

        monkeypatch.setattr(specs, "remove", fails)
        answers = await one.claims.unprepare(refs)
        assert isinstance(answers["stuck"], DraError)
        assert answers["fine"] == ()
        (left,) = await one.claims.store.all()
        assert (left.uid, left.state, left.attempts) == ("stuck", "Unpreparing", 1)
        assert "Operation not permitted" in left.error
        assert set(await one.claims.held()) == {("node", "d-0")}
        monkeypatch.undo()
        assert await one.unprepare(refs[0]) == ()
        assert await one.claims.store.all() == []


async def test_a_claim_that_is_answered_has_its_note_and_one_whose_commit_fails_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref, bad = (api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("ab"))
    update = Records.update

    def taken(self: Records, record: Record, fence: Fence) -> bool:
        return record.uid != "b" and update(self, record, fence)

    monkeypatch.setattr(Records, "update", taken)
    async with running_manager(tmp_path, Plain(), api) as one:
        answers = await one.claims.prepare([ref, bad])
        specs = one.claims.files.specs
        assert not isinstance(answers["a"], DraError)
        assert specs.note_path("a").stat().st_mode & 0o777 == 0o600
        assert isinstance(answers["b"], DraError)
        assert not specs.note_path("b").exists()


async def test_a_note_that_cannot_be_written_fails_no_claim_and_is_written_by_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        specs = one.claims.files.specs
        with monkeypatch.context() as patch:

            def full(fd: int, data: bytes) -> None:
                os.write(fd, data[:9])
                if data.startswith(b'{"uid"'):
                    raise OSError(28, "No space left on device")

            patch.setattr(directory, "_write_all", full)
            assert not isinstance(await one.prepare(ref), DraError)
        assert not specs.note_path("a").exists()
        specs.note_path("a").touch()  # as cut by a death
        assert record_of(specs, "a") is None
        await one.claims.reconciler.once(ask_server=False)
        found = record_of(specs, "a")
        assert found
        assert found.state is State.PREPARED
        assert [p.name for p in specs.root.iterdir() if ".tmp-" in p.name] == []


async def test_what_nobody_waits_for_is_done_in_time_also_where_batches_never_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "_LATEST", 0.05)
    rests = 0

    def rest() -> None:
        nonlocal rests
        rests += 1

    batcher: Batcher[int] = Batcher("test", lambda items: [None for _ in items], rest)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        while rests < 3:
            await asyncio.gather(*(batcher.submit(i) for i in range(2)))
    await batcher.close(5)
    assert rests <= (loop.time() - began) / 0.05 + 1


@pytest.mark.parametrize("driver", [Plain(), Careful()], ids=["nothing to undo", "unprepare"])
async def test_a_claim_whose_note_cannot_be_removed_keeps_its_record_and_never_comes_back(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref, other = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
    async with running_manager(tmp_path, driver, api) as one:
        if isinstance(driver, Careful):
            driver.folder = one.settings.cdi_root
        await one.prepare(ref)
        specs = one.claims.files.specs
        assert specs.note_path("a").exists()

        def fails(uid: str) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(specs, "remove_note", fails)
        first = await one.unprepare(ref)
        monkeypatch.undo()
        assert isinstance(first, RecordsError | UndoFailedError)
        assert await one.records() == {"a": "Unpreparing"}
        assert await one.unprepare(ref) == ()
    async with running_manager(tmp_path, driver, api) as two:
        assert await two.records() == {}
        assert not isinstance(await two.prepare(other), DraError)
