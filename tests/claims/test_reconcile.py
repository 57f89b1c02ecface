"""Reconciling unprepares a vanished claim only if no pod got it again, and only after the grace period of the
kubelet.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import reconcile
from dra_kubeletplugin.kube.resource import CLAIMS
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref

GRACE = 100.0


class RecordingDriver(Driver):
    name = DRIVER

    def __init__(self) -> None:
        self.unprepared: list[str] = []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.unprepared.append(claim.uid)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of reconciling alone; the test sets ``now``."""
    fake_time = SimpleNamespace(now=0.0)
    fake_time.monotonic = lambda: fake_time.now
    monkeypatch.setattr(reconcile, "time", fake_time)
    return fake_time


def deallocate(api: FakeApiServer, name: str) -> Any:
    """Removes the devices of a claim. Returns the claim before the change."""
    old_claim = api.claims[name]
    api.claims[name] = {**old_claim, "status": {}}
    return old_claim


async def reallocate_and_prepare(api: FakeApiServer, claim_object: Any, manager: RunningManager) -> None:
    api.claims["a"] = claim_object
    claim_ref = api.allocate("a", "a", "d-0", DRIVER)
    assert not isinstance(await manager.prepare(claim_ref), Exception)


@pytest.mark.parametrize("preparing_instance", ["old", "new"])
async def test_a_claim_that_is_allocated_again_during_a_pass_keeps_its_devices(
    tmp_path: Path, preparing_instance: str
) -> None:
    """A pass reads all other claims and the node between the read of this claim and its unprepare. By then its pod may
    run, prepared by this instance or by another.
    """
    api, driver = FakeApiServer(), RecordingDriver()
    claim_ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, driver, api) as old_manager,
        running_manager(tmp_path, RecordingDriver(), api) as new_manager,
    ):
        await old_manager.prepare(claim_ref)
        old_claim, is_away = deallocate(api, "a"), old_manager.claims.reconciler.verifier.slices.kubelet_is_away

        async def reallocate_and_ask() -> bool:
            if preparing_instance == "old":
                await reallocate_and_prepare(api, old_claim, old_manager)
            return await is_away()

        real_fetch, fetched = old_manager.claims.reconciler.verifier.fetch, list[Any]()

        async def fetch(ref: Any) -> Any:
            fetched.append(await real_fetch(ref))
            if (
                preparing_instance == "new" and len(fetched) == 2
            ):  # the last fetch, in which the claim has no devices yet
                await reallocate_and_prepare(api, old_claim, new_manager)
            return fetched[-1]

        old_manager.claims.reconciler.verifier.slices.kubelet_is_away = reallocate_and_ask  # type: ignore[method-assign]
        old_manager.claims.reconciler.verifier.fetch = fetch  # type: ignore[method-assign]
        report = await old_manager.claims.reconciler.once()
        assert (report.unprepared, driver.unprepared) == ([], [])
        assert await old_manager.records() == {"a": "Prepared"}
        assert old_manager.claims.files.specs.exists("a")


async def prepare_again(manager: RunningManager, api: FakeApiServer) -> None:
    claim_ref = api.allocate("a", "a", "d-0", DRIVER)
    await manager.unprepare(claim_ref)
    await manager.prepare(claim_ref)
    deallocate(api, "a")


async def register_kubelet(manager: RunningManager, api: FakeApiServer) -> None:
    manager.claims.kubelet_registered()


@pytest.mark.parametrize("interruption", [prepare_again, register_kubelet])
async def test_the_grace_period_begins_again_after_a_prepare_or_a_registration_of_the_kubelet(
    tmp_path: Path, clock: Any, interruption: Callable[[RunningManager, FakeApiServer], Awaitable[None]]
) -> None:
    """A claim may be prepared again between two passes. A kubelet that starts first ends the containers that it
    missed.
    """
    api, driver = FakeApiServer(), RecordingDriver()
    async with running_manager(tmp_path, driver, api, reconcile_grace_period=GRACE) as manager:
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        deallocate(api, "a")
        assert (await manager.claims.reconciler.once()).waiting == ["a"]
        await interruption(manager, api)
        driver.unprepared.clear()
        clock.now += GRACE + 1
        assert (await manager.claims.reconciler.once()).waiting == ["a"]
        clock.now += GRACE - 1
        assert (await manager.claims.reconciler.once()).waiting == ["a"]
        assert driver.unprepared == []
        clock.now += 1
        assert (await manager.claims.reconciler.once()).unprepared == ["a"]
        assert driver.unprepared == ["a"]


async def test_a_kubelet_that_registers_during_a_pass_gets_its_grace_period(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), RecordingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        await manager.prepare(api.allocate("a", "a", "d-0", DRIVER))
        api.claims.clear()
        is_away = manager.claims.reconciler.verifier.slices.kubelet_is_away

        async def ask_and_register() -> bool:
            is_kubelet_away = await is_away()
            manager.claims.kubelet_registered()
            return is_kubelet_away

        manager.claims.reconciler.verifier.slices.kubelet_is_away = ask_and_register  # type: ignore[method-assign]
        await manager.claims.reconciler.once()
        assert driver.unprepared == []


async def test_a_restart_of_the_kubelet_restarts_the_grace_period(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    is_registered = asyncio.Event()
    async with node_with(make_toy_class(), reconcile_grace_period=GRACE) as node:
        reconciler = node.plugin.claims.reconciler
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await prepare_call(node, ref(claim))
        await node.cluster.client.delete(CLAIMS, "c", "default")
        uid = claim["metadata"]["uid"]
        assert (await reconciler.once()).waiting == [uid]
        real_registered = reconciler.kubelet_registered

        def register() -> None:
            real_registered()
            is_registered.set()

        monkeypatch.setattr(reconciler, "kubelet_registered", register)
        await node.kubelet.restart()
        await is_registered.wait()
        clock.now += GRACE + 1
        assert (await reconciler.once()).waiting == [uid]


async def test_claims_that_cannot_be_read_do_not_hide_other_claims(tmp_path: Path) -> None:
    """A pass reads claims with failed reads last in the next pass, whatever their number."""
    api, driver = FakeApiServer(), RecordingDriver()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("abcdefgh")]
    async with running_manager(tmp_path, driver, api) as manager:
        for claim_ref in refs:
            await manager.prepare(claim_ref)
        for name in "abcdef":
            api.claims[name] = {"metadata": "of another kind"}
        del api.claims["h"]
        for _ in range(3):
            await manager.claims.reconciler.once()
        assert driver.unprepared == ["h"]
        for name in "abcdef":
            del api.claims[name]
        await manager.claims.reconciler.once()
        assert sorted(driver.unprepared) == list("abcdefh")
