"""Pods that wait: order, pauses, and which changes of the cluster let a rejected pod be tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_kubeletplugin.localcluster.scheduler.queue import QueuedPod, SchedulingQueue
from dra_kubeletplugin.scheduling.framework import node_info, pod_info
from dra_kubeletplugin.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.scheduling.framework.queueing_hints import (
    ChangeKind,
    ClusterChange,
    of_node,
    of_placed_pod,
    of_waiting_pod,
)
from dra_kubeletplugin.scheduling.framework.status import Plugin

JSON = dict[str, Any]
DEVICES = frozenset({Plugin.DEVICES})


def pod(name: str, priority: int = 0, claims: tuple[str, ...] = (), **more: Any) -> PodInfo:
    spec = {"containers": [{"name": "c"}], "priority": priority, **more.pop("spec", {})}
    spec["resourceClaims"] = [{"name": c, "resourceClaimName": c} for c in claims]
    return pod_info.read({"metadata": {"name": name, "namespace": "ns", "uid": name, **more}, "spec": spec})


def claim(name: str, *, allocated: bool = False, **status: Any) -> JSON:
    if allocated:
        status["allocation"] = {}
    return {"metadata": {"name": name, "namespace": "ns", "uid": name}, "status": status}


class Gated:
    """Pods that must not be tried, by name, and why."""

    def __init__(self) -> None:
        self.names: dict[str, Plugin] = {}

    def __call__(self, p: PodInfo) -> Plugin | None:
        return self.names.get(p.name)


def made(gate: Gated | None = None, pause: float = 1.0) -> SchedulingQueue:
    return SchedulingQueue(gate or Gated(), lambda p, uid: f"ns/{uid}" in p.claim_keys, pause)


async def waiting(queue: SchedulingQueue) -> list[str]:
    """Who would be tried now, in order. They are in flight then."""
    names = []
    while True:
        try:
            async with asyncio.timeout(0.005):
                names.append((await queue.pop()).info.name)
        except TimeoutError:
            return names


async def rejected(queue: SchedulingQueue, p: PodInfo, rejectors: frozenset[Plugin] = DEVICES) -> QueuedPod:
    queue.add(p)
    entry = await queue.pop()
    queue.failed(entry, rejectors)
    return entry


async def test_the_highest_priority_comes_first_and_then_the_oldest() -> None:
    queue = made()
    for p in (pod("a"), pod("b", 5), pod("c"), pod("d", 5)):
        queue.add(p)
    assert await waiting(queue) == ["b", "d", "a", "c"]


async def test_a_pod_that_goes_is_not_tried() -> None:
    queue = made()
    queue.add(pod("a"))
    queue.add(pod("b"))
    queue.remove("a")
    assert await waiting(queue) == ["b"]
    queue.remove("b")
    assert "b" not in queue


@pytest.mark.parametrize(
    ("rejector", "change", "again"),
    [
        (Plugin.DEVICES, ClusterChange(ChangeKind.SLICE), True),
        (Plugin.DEVICES, ClusterChange(ChangeKind.CLASS), True),
        (Plugin.DEVICES, ClusterChange(ChangeKind.NODE_ADDED), True),
        (Plugin.DEVICES, ClusterChange(ChangeKind.NODE_RESOURCES), False),
        (Plugin.DEVICES, ClusterChange(ChangeKind.POD_GONE), False),
        (Plugin.DEVICES, ClusterChange(ChangeKind.CLAIM, claim("other", allocated=True), claim("other")), True),
        (Plugin.DEVICES, ClusterChange(ChangeKind.CLAIM, None, claim("other", allocated=True)), False),
        (Plugin.DEVICES, ClusterChange(ChangeKind.CLAIM, claim("mine"), claim("mine", allocated=True)), True),
        (Plugin.DEVICES, ClusterChange(ChangeKind.CLAIM, claim("mine"), claim("mine")), False),
        (Plugin.FIT, ClusterChange(ChangeKind.POD_GONE), True),
        (Plugin.FIT, ClusterChange(ChangeKind.SLICE), False),
        (Plugin.FIT, ClusterChange(ChangeKind.CLASS), True),
        (Plugin.TAINTS, ClusterChange(ChangeKind.NODE_TAINTS), True),
        (Plugin.TAINTS, ClusterChange(ChangeKind.NODE_LABELS), False),
        (Plugin.NODE_AFFINITY, ClusterChange(ChangeKind.NODE_LABELS), True),
        (Plugin.POD_AFFINITY, ClusterChange(ChangeKind.POD_ADDED), True),
        (Plugin.UNSUPPORTED, ClusterChange(ChangeKind.NODE_ADDED), False),
        (Plugin.UNSUPPORTED, ClusterChange(ChangeKind.OWN, pod="p"), True),
        (Plugin.TAINTS, ClusterChange(ChangeKind.OWN, pod="another"), False),
    ],
)
async def test_a_rejected_pod_waits_for_what_may_help(rejector: Plugin, change: ClusterChange, again: bool) -> None:
    queue = made()
    await rejected(queue, pod("p", claims=("mine",)), frozenset({rejector}))
    queue.move(change)
    assert await waiting(queue) == (["p"] if again else [])


async def test_what_changes_while_a_pod_is_tried_is_not_missed() -> None:
    queue = made()
    queue.add(pod("p"))
    queue.add(pod("q"))
    p, q = await queue.pop(), await queue.pop()
    queue.move(ClusterChange(ChangeKind.POD_GONE))
    queue.failed(p, DEVICES)
    assert await waiting(queue) == [], "a pod that went frees no devices"
    queue.move(ClusterChange(ChangeKind.SLICE))
    queue.failed(q, DEVICES)
    assert await waiting(queue) == ["p", "q"]


async def test_an_error_makes_a_pod_pause_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, slept = asyncio.get_running_loop(), 0.0
    clock = loop.time

    def now() -> float:
        return clock() + slept

    monkeypatch.setattr(loop, "time", now)
    queue = made(pause=2.0)
    queue.add(pod("p"))
    pauses = []
    for _ in range(3):
        entry = await queue.pop()
        queue.failed(entry, frozenset())
        queue.move(ClusterChange(ChangeKind.SLICE))
        pauses.append(entry.not_before - now())
        assert await waiting(queue) == [], "no change ends the pause"
        slept += 1000
    assert pauses == pytest.approx([2, 4, 8], abs=1)
    assert (await queue.pop()).info.name == "p"


async def test_a_gated_pod_is_tried_once_its_gate_is_gone() -> None:
    gate = Gated()
    gate.names = {"p": Plugin.GATES, "q": Plugin.DEVICES}
    queue = made(gate)
    queue.add(pod("p"))
    queue.add(pod("q", claims=("mine",)))
    for change in (
        ClusterChange(ChangeKind.SLICE),
        ClusterChange(ChangeKind.NODE_ADDED),
        ClusterChange(ChangeKind.CLAIM, claim("x", allocated=True), claim("x")),
    ):
        queue.move(change)
    assert await waiting(queue) == []
    gate.names = {}
    queue.update(pod("p", labels={"a": "b"}), [ClusterChange(ChangeKind.OWN, pod="p")])
    queue.move(ClusterChange(ChangeKind.CLAIM, None, claim("mine")))
    assert await waiting(queue) == ["p", "q"]


async def test_a_claim_that_is_named_later_wakes_its_pod() -> None:
    gate = Gated()
    gate.names = {"p": Plugin.DEVICES}
    queue = made(gate)
    queue.add(pod("p"))
    queue.update(pod("p", claims=("made",)), [ClusterChange(ChangeKind.OWN, pod="p")])
    gate.names = {}
    queue.move(ClusterChange(ChangeKind.CLAIM, None, claim("made")))
    assert await waiting(queue) == ["p"]


def node(labels: JSON | None = None, heartbeat: str = "1", **spec: Any) -> node_info.NodeInfo:
    status = {
        "allocatable": {"cpu": "1"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}],
    }
    return node_info.read({"metadata": {"name": "n", "labels": labels or {}}, "spec": spec, "status": status})


def test_a_heartbeat_is_no_change_of_a_node() -> None:
    assert of_node(node(), node(heartbeat="2")) == []
    assert [c.kind for c in of_node(None, node())] == [ChangeKind.NODE_ADDED]
    assert [c.kind for c in of_node(node(), node({"a": "b"}))] == [ChangeKind.NODE_LABELS]
    assert [c.kind for c in of_node(node(), node(unschedulable=True))] == [ChangeKind.NODE_TAINTS]


def test_our_own_condition_is_no_change_of_a_waiting_pod() -> None:
    before, after = pod("p"), pod("p")
    after.pod["status"] = {"conditions": [{"type": "PodScheduled"}], "nominatedNodeName": "n"}
    assert of_waiting_pod(before, after) == []
    after.pod["status"] = {"resourceClaimStatuses": [{"name": "c"}]}
    assert [c.kind for c in of_waiting_pod(before, after)] == [ChangeKind.OWN]
    on_node = pod("p", spec={"nodeName": "n"})
    assert [c.kind for c in of_placed_pod(before, on_node)] == [ChangeKind.POD_ADDED]
    assert of_placed_pod(on_node, on_node) == []
