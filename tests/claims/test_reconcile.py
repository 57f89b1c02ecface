"""What looks given up is taken back only where it is: nobody got it again, and the kubelet had its time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import reconcile
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.testing import node_with
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.drivers import make_toy_class
from tests.plugin.test_node import allocate, prepare_call, ref

GRACE = 100.0


class Plain(Driver):
    name = DRIVER

    def __init__(self) -> None:
        self.unprepared: list[str] = []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.unprepared.append(claim.uid)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of reconciling alone: ``now`` is moved by the test."""
    made = SimpleNamespace(now=0.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(reconcile, "time", made)
    return made


def released(api: FakeApiServer, name: str) -> Any:
    """The claim loses its devices; answers what it was, to be given again."""
    before = api.claims[name]
    api.claims[name] = {**before, "status": {}}
    return before


async def given_again(api: FakeApiServer, what: Any, one: RunningManager) -> None:
    api.claims["a"] = what
    known = api.allocate("a", "a", "d-0", DRIVER)
    assert not isinstance(await one.prepare(known), Exception)


@pytest.mark.parametrize("who", ["old", "new"])
async def test_a_claim_that_got_its_devices_again_while_it_was_looked_for_keeps_them(tmp_path: Path, who: str) -> None:
    """Between the look at it and its turn lie the looks at all others, and one at the node: its pod may run by then, told by this
    instance or by another."""
    api, driver = FakeApiServer(), Plain()
    known = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as old, running_manager(tmp_path, Plain(), api) as new:
        await old.prepare(known)
        found, ask = released(api, "a"), old.claims.reconciler.verifier.slices.kubelet_is_away

        async def asked() -> bool:
            if who == "old":
                await given_again(api, found, old)
            return await ask()

        look, looks = old.claims.reconciler.verifier.fetch, list[Any]()

        async def fetch(ref: Any) -> Any:
            looks.append(await look(ref))
            if who == "new" and len(looks) == 2:  # the last one, in which it has none yet
                await given_again(api, found, new)
            return looks[-1]

        old.claims.reconciler.verifier.slices.kubelet_is_away = asked  # type: ignore[method-assign]
        old.claims.reconciler.verifier.fetch = fetch  # type: ignore[method-assign]
        report = await old.claims.reconciler.once()
        assert (report.unprepared, driver.unprepared) == ([], [])
        assert await old.records() == {"a": "Prepared"}
        assert old.claims.files.specs.exists("a")


async def prepared_anew(one: RunningManager, api: FakeApiServer) -> None:
    found = api.allocate("a", "a", "d-0", DRIVER)
    await one.unprepare(found)
    await one.prepare(found)
    released(api, "a")


async def kubelet_came(one: RunningManager, api: FakeApiServer) -> None:
    one.claims.kubelet_registered()


@pytest.mark.parametrize("what", [prepared_anew, kubelet_came])
async def test_a_grace_begins_again_where_what_was_seen_is_over(
    tmp_path: Path, clock: Any, what: Callable[[RunningManager, FakeApiServer], Awaitable[None]]
) -> None:
    """A claim may be prepared again between two looks; and a kubelet that starts first ends the containers that it missed."""
    api, driver = FakeApiServer(), Plain()
    async with running_manager(tmp_path, driver, api, reconcile_grace_period=GRACE) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        released(api, "a")
        assert (await one.claims.reconciler.once()).waiting == ["a"]
        await what(one, api)
        driver.unprepared.clear()
        clock.now += GRACE + 1
        assert (await one.claims.reconciler.once()).waiting == ["a"]
        clock.now += GRACE - 1
        assert (await one.claims.reconciler.once()).waiting == ["a"]
        assert driver.unprepared == []
        clock.now += 1
        assert (await one.claims.reconciler.once()).unprepared == ["a"]
        assert driver.unprepared == ["a"]


async def test_a_kubelet_that_comes_amid_a_pass_has_its_time_too(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), Plain()
    async with running_manager(tmp_path, driver, api) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        api.claims.clear()
        ask = one.claims.reconciler.verifier.slices.kubelet_is_away

        async def asked() -> bool:
            away = await ask()
            one.claims.kubelet_registered()
            return away

        one.claims.reconciler.verifier.slices.kubelet_is_away = asked  # type: ignore[method-assign]
        await one.claims.reconciler.once()
        assert driver.unprepared == []


async def test_a_kubelet_that_was_restarted_is_heard_of(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = asyncio.Event()
    async with node_with(make_toy_class(), reconcile_grace_period=GRACE) as node:
        reconciler = node.plugin.claims.reconciler
        found = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await prepare_call(node, ref(found))
        await node.cluster.client.delete(CLAIMS, "c", "default")
        uid = found["metadata"]["uid"]
        assert (await reconciler.once()).waiting == [uid]
        came = reconciler.kubelet_registered

        def told() -> None:
            came()
            heard.set()

        monkeypatch.setattr(reconciler, "kubelet_registered", told)
        await node.kubelet.restart()
        await heard.wait()
        clock.now += GRACE + 1
        assert (await reconciler.once()).waiting == [uid]


async def test_claims_that_cannot_be_read_hide_no_others(tmp_path: Path) -> None:
    """However many: what cannot be read comes last the next time."""
    api, driver = FakeApiServer(), Plain()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate("abcdefgh")]
    async with running_manager(tmp_path, driver, api) as one:
        for known in refs:
            await one.prepare(known)
        for name in "abcdef":
            api.claims[name] = {"metadata": "of another kind"}
        del api.claims["h"]
        for _ in range(3):
            await one.claims.reconciler.once()
        assert driver.unprepared == ["h"]
        for name in "abcdef":
            del api.claims[name]
        await one.claims.reconciler.once()
        assert sorted(driver.unprepared) == list("abcdefh")
