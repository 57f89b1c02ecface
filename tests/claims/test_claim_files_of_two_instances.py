"""What one instance does with a claim's files must fit what another does with the claim at that moment."""

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


class Plain(Driver):
    name = DRIVER

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []

    def devices(self) -> list[Any]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.prepared.append(claim.uid)
        return [d.prepared(ContainerEdits(env={"D": d.name})) for d in claim.devices]


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, files: ClaimFiles, method: str, work: Callable[[], Awaitable[object]]
) -> asyncio.Event:
    """Before ``method`` does its part, another instance does ``work``, or as much of it as it can in that time.

    Answers what is set when all of it is done.
    """
    loop, real, done = asyncio.get_running_loop(), getattr(files, method), asyncio.Event()

    async def begun() -> None:
        await work()
        done.set()

    def after(*args: Any) -> Any:
        monkeypatch.undo()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(begun(), loop).result(0.4)
        return real(*args)

    monkeypatch.setattr(files, method, after)
    return done


async def test_a_note_never_outlives_its_record_whoever_unprepares_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, later = FakeApiServer(), Plain()
    ref, other = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
    async with running_manager(tmp_path, Plain(), api) as old, running_manager(tmp_path, Plain(), api) as new:
        done = meanwhile(monkeypatch, old.claims.files, "note", lambda: new.unprepare(ref))
        await old.prepare(ref)
        await done.wait()
        assert not old.claims.files.specs.note_path("a").exists()
    async with running_manager(tmp_path, later, api) as third:
        assert await third.records() == {}
        assert not isinstance(await third.prepare(other), Exception)
        assert later.prepared == ["b"]


@pytest.mark.parametrize("who", ["prepare", "reconcile"])
@pytest.mark.parametrize("step", ["are_intact", "restore"])
async def test_files_that_are_repaired_while_another_instance_unprepares_the_claim_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, step: str
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as old, running_manager(tmp_path, Plain(), api) as new:
        await old.prepare(ref)
        old.claims.files.specs.path("a").unlink()
        done = meanwhile(monkeypatch, old.claims.files, step, lambda: new.unprepare(ref))
        if who == "prepare":
            await old.prepare(ref)
        else:
            await old.claims.reconciler.once(ask_server=False)
        await done.wait()
        await wait_until(lambda: not old.claims.tasks.uids)
        assert await new.records() == {}
        assert list(old.settings.cdi_root.iterdir()) == []


async def test_an_unprepare_of_what_is_not_known_leaves_what_another_instance_prepares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as old, running_manager(tmp_path, Plain(), api) as new:
        done = meanwhile(monkeypatch, old.claims.files, "remove_all", lambda: new.prepare(ref))
        assert await old.unprepare(ref) == ()
        await done.wait()
        assert await new.records() == {"a": "Prepared"}
        assert new.claims.files.specs.exists("a")


async def test_what_looks_like_an_orphan_stays_where_another_instance_prepares_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as old, running_manager(tmp_path, Plain(), api) as new:
        make_record_with_file(tmp_path, "a", "d-0")
        done = meanwhile(monkeypatch, old.claims.files, "remove_all", lambda: new.prepare(ref))
        await old.claims.engine.rollback.remove_orphan("a")
        await done.wait()
        assert await new.records() == {"a": "Prepared"}
        assert new.claims.files.specs.exists("a")
