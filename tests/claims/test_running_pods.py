"""A claim that a user deletes while its pod runs keeps its devices until the pod ends, whatever happens to the plugin meanwhile.

Readiness and the status page name the claims that cannot be prepared, and no claim whose prepare has succeeded since. All of it runs over
real sockets: the API server, the plugin's, and the kubelet's list of pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dra_devkit.testing import ClaimSpec, DriverNode, Request, node_with, pods
from dra_kubeletplugin import Claim, PreparedDevice
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.running_pods import ClaimPods
from dra_kubeletplugin.errors import ClaimBusyError, StoppingError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS
from tests.helpers.crash.claim_manager import Clock
from tests.helpers.drivers import Toy, make_toy_class
from tests.helpers.pod_resources import listing_pods

FAST = {"reconcile_interval": 0.1, "reconcile_grace_period": 0}


@contextlib.asynccontextmanager
async def one_device(**settings: Any) -> AsyncIterator[DriverNode[Toy]]:
    """A node with one device, and the namespaces of two tenants."""
    driver = make_toy_class()
    driver.count = 1
    async with node_with(driver, **(FAST | settings)) as node:
        for namespace in ("a", "b"):
            await node.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        yield node


async def start(node: DriverNode[Toy], namespace: str, *, wait: bool = True) -> str:
    """Creates a claim and a pod that uses it. Returns the UID of the claim."""
    claim, pod = pods.claim("claim", ClaimSpec(Request())), pods.pod("pod", claims=["claim"])
    for made in (claim, pod):
        made["metadata"]["namespace"] = namespace
    (created, _) = await node.api.apply(claim, pod)
    if wait:
        await node.api.wait_running("pod", namespace)
    return str(created["metadata"]["uid"])


async def delete_claim_in_use(node: DriverNode[Toy], namespace: str = "a") -> None:
    """Deletes a claim as a user with the role `edit` can, although its pod runs."""
    client = node.cluster.client
    await client.patch(CLAIMS, "claim", {"metadata": {"finalizers": None}}, namespace)
    with contextlib.suppress(Exception):
        await node.api.delete("ResourceClaim", "claim", namespace)


async def replace_claim_in_use(node: DriverNode[Toy]) -> None:
    await delete_claim_in_use(node)
    claim = pods.claim("claim", ClaimSpec(Request()))
    claim["metadata"]["namespace"] = "a"
    await node.api.apply(claim)


async def deallocate_claim_in_use(node: DriverNode[Toy]) -> None:
    found = await node.api.get("ResourceClaim", "claim", "a")
    assert found
    await node.cluster.client.update(CLAIMS, {**found, "status": {}}, "status")


def calls(node: DriverNode[Toy], method: str) -> list[str]:
    return [uid for name, uid in node.driver_class.calls if name == method]


async def reported_or_freed(node: DriverNode[Toy], uid: str, text: str = "pod") -> None:
    """Waits until the plugin has decided about the claim, and asserts that it keeps the device."""

    async def decided() -> bool:
        events = [e for e in await node.api.events() if e.reason == "DeletedClaimHeld" and text in e.message]
        return bool(events) or uid in calls(node, "unprepare")

    await node.api.wait("a decision about the claim", decided)
    assert calls(node, "unprepare") == []
    assert (await node.leftovers())["held"] == ["toy-0"]


async def unprepared(node: DriverNode[Toy], uid: str) -> None:
    async def done() -> bool:
        return uid in calls(node, "unprepare")

    await node.api.wait("the claim to be unprepared", done)


def metric(node: DriverNode[Toy]) -> float:
    (line,) = [t for t in node.plugin.metrics.text().decode().splitlines() if t.startswith("dra_deleted_claims_held ")]
    return float(line.split()[1])


@pytest.mark.parametrize("attack", [delete_claim_in_use, replace_claim_in_use, deallocate_claim_in_use])
async def test_a_second_tenant_gets_the_device_only_after_the_first_pod_has_ended(
    attack: Callable[[DriverNode[Toy]], Awaitable[None]],
) -> None:
    async with one_device() as node:
        first = await start(node, "a")
        await attack(node)
        second = await start(node, "b", wait=False)
        await reported_or_freed(node, first)
        assert calls(node, "prepare") == [first]
        assert metric(node) == 1
        notes = await node.plugin.claims.notes()
        assert [n for n in notes if first in n and "(pod)" in n and "stay held" in n]
        await node.api.delete_pod("pod", "a")
        if attack is not replace_claim_in_use:  # the new claim may get the device first
            await node.api.wait_running("pod", "b")
            assert calls(node, "prepare") == [first, second]
        assert calls(node, "unprepare") == [first]


async def test_a_second_pod_of_the_claim_and_a_pod_that_uses_it_in_an_init_container_count() -> None:
    """The kubelet calls the plugin for the first pod of a claim only, and its list shows no claims of init containers."""
    async with one_device() as node:
        uid = await start(node, "a")
        init = pods.pod("init", claims=["claim"])
        init["metadata"]["namespace"] = "a"
        container = init["spec"]["containers"][0]
        init["spec"]["initContainers"] = [{**container, "name": "init"}]
        init["spec"]["containers"] = [{"name": "main", "image": "busybox", "command": ["sleep", "infinity"]}]
        await node.api.apply(init)

        await node.api.wait_running("init", "a")
        await delete_claim_in_use(node)
        await reported_or_freed(node, uid)
        await node.api.delete_pod("pod", "a")
        await reported_or_freed(node, uid, "(init)")
        await node.api.delete_pod("init", "a")
        await unprepared(node, uid)


async def lose_checkpoint(node: DriverNode[Toy]) -> None:
    """The kubelet forgets the claims of running pods, as after an operator has deleted a damaged checkpoint."""
    await node.kubelet.stop()
    (node.cluster.node.kubelet_root / "dra_manager_state").unlink()
    await node.kubelet.restart()


async def end_pod_while_plugin_is_down(node: DriverNode[Toy]) -> None:
    """The kubelet has lost the claim, so it does not unprepare it."""
    await node.stop()
    await node.kubelet.stop()
    (node.cluster.node.kubelet_root / "dra_manager_state").unlink()
    await node.cluster.client.delete(PODS, "pod", "a", grace=0)
    await delete_claim_in_use(node)
    await node.kubelet.restart()


@pytest.mark.parametrize(
    "fault",
    [lambda node: node.restart(), lambda node: node.kubelet.restart(), lose_checkpoint],
    ids=["plugin", "kubelet", "checkpoint"],
)
async def test_the_device_stays_held_over_restarts(fault: Callable[[DriverNode[Toy]], Awaitable[None]]) -> None:
    async with one_device() as node:
        uid = await start(node, "a")
        await delete_claim_in_use(node)
        await fault(node)
        await reported_or_freed(node, uid)
        await node.api.delete_pod("pod", "a")
        await unprepared(node, uid)
        assert (await node.leftovers())["held"] == []


async def test_a_pod_that_waits_for_the_device_does_not_keep_it_held() -> None:
    """The kubelet lists this pod in the namespace of the lost claim, but none of its containers has started."""
    async with one_device() as node:
        uid = await start(node, "a")
        await end_pod_while_plugin_is_down(node)
        next_claim, next_pod = pods.claim("next", ClaimSpec(Request())), pods.pod("next", claims=["next"])
        for made in (next_claim, next_pod):
            made["metadata"]["namespace"] = "a"
        await node.api.apply(next_claim, next_pod)

        async def bound() -> bool:
            found = await node.api.get("Pod", "next", "a")
            return bool(found and found["spec"].get("nodeName"))

        await node.start(**FAST)
        await node.api.wait("the pod to be bound", bound)
        await node.api.wait_running("next", "a")
        assert calls(node, "unprepare") == [uid]


async def test_pods_that_start_after_the_claim_was_deleted_do_not_keep_its_device() -> None:
    async with one_device() as node:
        uid = await start(node, "a")
        await delete_claim_in_use(node)
        await reported_or_freed(node, uid)
        later = pods.pod("later")
        later["metadata"]["namespace"] = "a"
        await node.api.apply(later)
        await node.api.wait_running("later", "a")
        node.kubelet.manager.claims.clear()  # the kubelet loses the claim, so only the plugin can unprepare it
        await node.api.delete_pod("pod", "a")
        await unprepared(node, uid)


async def test_the_grace_period_begins_when_the_kubelet_lists_no_pod_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until a kubelet that has just started has read its pods from the API server, it lists none."""
    clock, metrics = Clock(), Metrics()
    listed: list[tuple[str, str]] = []
    record = Record("u", "a", "claim", State.PREPARED, "boot")
    async with listing_pods(tmp_path, listed):
        socket = tmp_path / "pod-resources" / "kubelet.sock"
        claim_pods = ClaimPods(socket, Mock(), "node", metrics, 60.0, clock)

        async def ended(after: float, *pods: str) -> tuple[list[Record], int]:
            clock.now += after
            listed[:] = [("a", pod) for pod in pods]
            found, held = await claim_pods.ended([record], [record]), len(claim_pods.notes)
            assert f"dra_deleted_claims_held {held:.1f}\n".encode() in metrics.text()
            return found, held

        claim_pods.restart_grace_periods()  # the kubelet has registered the plugin
        assert await ended(0) == ([], 0)
        assert await ended(58, "pod") == ([], 1)
        assert await ended(1, "pod") == ([], 1)
        assert len(caplog.records) == 1, "a reason is logged once"
        assert await ended(2) == ([], 0)
        assert await ended(60) == ([record], 0)
        assert claim_pods.is_unused(record)
        claim_pods.set_live(record)
        assert not claim_pods.is_unused(record)
        assert await ended(0, "pod") == ([], 1)
        assert await ended(60, "later") == ([], 0)
        claim_pods.set_live(record)
        assert await ended(0, "pod") == ([], 1)
        claim_pods.set_live(record)
        assert claim_pods.notes == []
        assert await ended(0, "pod") == ([], 1)
        await claim_pods.ended([], [])
        assert claim_pods.notes == []


async def test_a_kubelet_that_does_not_list_its_pods_frees_nothing() -> None:
    async with one_device() as node:
        uid = await start(node, "a")
        await node.kubelet.stop()
        await delete_claim_in_use(node)
        await reported_or_freed(node, uid, "cannot be listed at")
        assert metric(node) == 1
        await node.kubelet.restart()
        await reported_or_freed(node, uid, "(pod)")
        await node.api.delete_pod("pod", "a")
        await unprepared(node, uid)


async def test_a_reboot_ends_the_use_of_a_deleted_claim() -> None:
    async with one_device() as node:
        uid = await start(node, "a")
        await delete_claim_in_use(node)
        await reported_or_freed(node, uid)
        second = await start(node, "b", wait=False)
        await node.reboot()
        await node.api.wait_running("pod", "b")
        assert (calls(node, "prepare"), calls(node, "unprepare")) == ([uid, second], [uid])


# --- claims that cannot be prepared -----------------------------------------------------------------------


class StuckToy(Toy):
    stuck = True

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        if self.stuck:
            raise OSError("the board is stuck")
        return await super().prepare(claim)


async def failing_note(node: DriverNode[StuckToy]) -> str:
    return " ".join(n for n in await node.plugin.notes() if "cannot be prepared" in n)


async def test_readiness_and_page_name_failing_prepares_until_they_succeed() -> None:
    StuckToy.stuck = True
    async with node_with(StuckToy, http_address="127.0.0.1:0") as node:

        def read(path: str) -> str:
            with urllib.request.urlopen(node.plugin.http_url + path) as response:
                return str(response.read().decode())

        await node.apply_pod()
        await node.cluster.wait("a failing prepare in readiness", lambda: failing_note(node))
        page = json.loads(await asyncio.to_thread(read, "/status.json"))
        for text in (await asyncio.to_thread(read, "/readyz"), *page["failing"]):
            assert "cannot be prepared, and pod default/pod does not start (" in text
            for part in ("last try ", "DRIVER_FAILED: ", "the board is stuck", "[DRA-E103]"):
                assert part in text
        StuckToy.stuck = False
        await node.cluster.wait_running("pod")
        assert await asyncio.to_thread(read, "/readyz") == "ok\n"
        assert "cannot be prepared" not in await asyncio.to_thread(read, "/status.json")


async def test_a_failing_claim_is_forgotten_when_its_pod_is_deleted() -> None:
    StuckToy.stuck = True
    async with node_with(StuckToy) as node:

        async def is_quiet() -> bool:
            return not await failing_note(node)

        await node.apply_pod()
        await node.cluster.wait("a failing prepare", lambda: failing_note(node))
        await node.delete_pod()
        await node.cluster.wait("no failing prepare", is_quiet)


def test_a_line_has_the_number_of_tries_and_ages_and_ends_when_the_kubelet_stops_to_ask() -> None:
    clock = Clock()
    ref = ClaimIdentity("ml", "train", "u1")
    claim_pods = ClaimPods(Path("/nonexistent"), Mock(), "node", Mock(), clock=clock)
    claim_pods.set_waiting(ref, [{"resource": "pods", "name": "train-0"}])
    claim_pods.set_failed(ref, ClaimBusyError("busy"))
    claim_pods.set_failed(ref, StoppingError("the plugin is shutting down"))
    clock.now += 150
    claim_pods.set_failed(ref, ClaimBusyError("still busy"))
    clock.now += 12
    (line,) = claim_pods.failing_prepares()
    start = "claim ml/train cannot be prepared, and pod ml/train-0 does not start (for 2m, 2 tries, last try 12s ago): "
    assert line.startswith(start)
    assert "still busy" in line
    clock.now += 180
    assert list(claim_pods.failing_prepares()) == []
