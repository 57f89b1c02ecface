"""The store writes a claim's record and its files in one batch. A failure affects only its own claim, and the order of
steps is fixed.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from dra_kubeletplugin import PreparedClaim
from dra_kubeletplugin.claims.claim_files import read_note
from dra_kubeletplugin.claims.store.records import HeldByError, Records
from dra_kubeletplugin.errors import DraError, RecordsError, UndoFailedError
from tests.helpers.crash.claim_drivers import PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import DRIVER, insert, instance, make_record


class FileListingDriver(PlainDriver):
    """Records the suffixes of the files that exist when ``unprepare`` is called."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.suffixes: list[list[str]] = []
        self.folder = folder

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.suffixes.append(sorted(p.suffix for p in self.folder.iterdir()))


async def test_a_failed_operation_reverts_only_its_own_changes(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:

        def twice(records: Records) -> None:
            records.insert(make_record("bad", "d-9"))
            records.insert(make_record("bad", "d-9"), shared=True)

        def fail_on_full_folder(records: Records) -> None:
            records.insert(make_record("worse", "d-8"))
            raise RecordsError("the folder is full")

        result = await asyncio.gather(
            insert(store, make_record("first", "d-0")),
            store.do(twice),
            store.do(fail_on_full_folder),
            insert(store, make_record("held", "d-0")),
            insert(store, make_record("last", "d-1")),
            return_exceptions=True,
        )
        assert [type(f) for f in result] == [type(None), ValueError, RecordsError, HeldByError, type(None)]
        assert {r.uid for r in await store.all()} == {"first", "last"}
        assert {device for _, device in await store.held()} == {"d-0", "d-1"}


@pytest.mark.parametrize("file", [".json", ".record"])
@pytest.mark.parametrize("has_undo", [False, True])
async def test_a_claim_keeps_its_record_and_its_device_until_its_spec_and_then_its_note_are_removed(
    tmp_path: Path, has_undo: bool, file: str
) -> None:
    api, driver = FakeApiServer(), FileListingDriver(tmp_path / "cdi") if has_undo else PlainDriver()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("stuck", "fine"))]
    async with running_manager(tmp_path, driver, api) as manager:
        await manager.claims.prepare(refs)
        assert manager.claims.files.specs.note_path("stuck").stat().st_mode & 0o777 == 0o600
        with failing_calls(
            errno.EPERM, "unlink", text=f"cdi/{'.' * (file == '.record')}k8s.{DRIVER}-claim_stuck{file}"
        ):
            responses = await manager.claims.unprepare(refs)
        assert isinstance(responses["stuck"], UndoFailedError)
        assert responses["fine"] == ()
        (record,) = await manager.claims.store.all()
        assert (record.uid, record.state, record.attempts) == ("stuck", "Unpreparing", 1)
        assert "Operation not permitted" in record.error
        assert set(await manager.claims.held()) == {("node", "d-0")}
        assert await manager.unprepare(refs[0]) == ()
        if isinstance(driver, FileListingDriver):
            assert driver.suffixes[-1] == [".record"], "the spec is removed before the driver unprepares"
        assert list((tmp_path / "cdi").iterdir()) == []
    async with running_manager(tmp_path, driver, api) as restarted:
        assert await restarted.records() == {}
        other_ref = api.allocate("other", "other", "d-0", DRIVER)
        assert not isinstance(await restarted.prepare(other_ref), DraError)


async def test_a_note_that_cannot_be_written_fails_no_claim_and_the_next_pass_writes_it(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        specs = manager.claims.files.specs
        with failing_calls(errno.ENOSPC, "open", text=".record'"):
            assert not isinstance(await manager.prepare(ref), DraError)
        assert not specs.note_path("a").exists()
        specs.note_path("a").touch()  # as after a killed write
        assert read_note(specs, "a") is None
        await manager.claims.reconciler.once(ask_server=False)
        note = read_note(specs, "a")
        assert note
        assert note.head.state == "Prepared"
        assert [p.name for p in specs.root.iterdir() if ".tmp-" in p.name] == []
