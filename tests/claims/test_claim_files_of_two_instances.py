"""Two instances work on the files of one claim at the same time, and the files match the records afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedDevice
from dra_kubeletplugin.claims.claim_files import ClaimFiles
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER, make_record_with_file
from tests.helpers.waiting import wait_until


class RecordingDriver(Driver):
    name = DRIVER

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []

    def devices(self) -> list[Any]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.prepared.append(claim.uid)
        return [d.prepared(ContainerEdits(env={"D": d.name})) for d in claim.devices]


def run_before_method(
    monkeypatch: pytest.MonkeyPatch, files: ClaimFiles, method: str, work: Callable[[], Awaitable[object]]
) -> asyncio.Event:
    """Makes ``method`` run ``work`` of another instance first, for at most 0.4 s.

    Returns an event that is set when ``work`` is complete.
    """
    loop, real, done = asyncio.get_running_loop(), getattr(files, method), asyncio.Event()

    async def run_work() -> None:
        await work()
        done.set()

    def replacement(*args: Any) -> Any:
        monkeypatch.undo()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(run_work(), loop).result(0.4)
        return real(*args)

    monkeypatch.setattr(files, method, replacement)
    return done


async def test_a_note_never_outlives_its_record_if_another_instance_unprepares_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, later = FakeApiServer(), RecordingDriver()
    ref, other_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
    async with (
        running_manager(tmp_path, RecordingDriver(), api) as old_manager,
        running_manager(tmp_path, RecordingDriver(), api) as new_manager,
    ):
        done = run_before_method(monkeypatch, old_manager.claims.files, "note", lambda: new_manager.unprepare(ref))
        await old_manager.prepare(ref)
        await done.wait()
        assert not old_manager.claims.files.specs.note_path("a").exists()
    async with running_manager(tmp_path, later, api) as restarted:
        assert await restarted.records() == {}
        assert not isinstance(await restarted.prepare(other_ref), Exception)
        assert later.prepared == ["b"]


@pytest.mark.parametrize("caller", ["prepare", "reconcile"])
@pytest.mark.parametrize("step", ["are_intact", "restore"])
async def test_files_that_are_repaired_while_another_instance_unprepares_the_claim_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str, step: str
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, RecordingDriver(), api) as old_manager,
        running_manager(tmp_path, RecordingDriver(), api) as new_manager,
    ):
        await old_manager.prepare(ref)
        old_manager.claims.files.specs.path("a").unlink()
        done = run_before_method(monkeypatch, old_manager.claims.files, step, lambda: new_manager.unprepare(ref))
        if caller == "prepare":
            await old_manager.prepare(ref)
        else:
            await old_manager.claims.reconciler.once(ask_server=False)
        await done.wait()
        await wait_until(lambda: not old_manager.claims.tasks.uids)
        assert await new_manager.records() == {}
        assert list(old_manager.settings.cdi_root.iterdir()) == []


@pytest.mark.parametrize("is_orphan", [False, True])
async def test_files_of_a_claim_without_a_record_are_kept_while_another_instance_prepares_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_orphan: bool
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, RecordingDriver(), api) as old_manager,
        running_manager(tmp_path, RecordingDriver(), api) as new_manager,
    ):
        if is_orphan:
            make_record_with_file(tmp_path, "a", "d-0")
        done = run_before_method(monkeypatch, old_manager.claims.files, "remove_all", lambda: new_manager.prepare(ref))
        if is_orphan:
            await old_manager.claims.engine.rollback.remove_orphan("a")
        else:
            assert await old_manager.unprepare(ref) == ()
        await done.wait()
        assert await new_manager.records() == {"a": "Prepared"}
        assert new_manager.claims.files.specs.exists("a")
