"""Waiting pods: their order, their backoff, and the cluster changes that requeue a rejected pod."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_devkit.localcluster.scheduler.queue import QueuedPod, SchedulingQueue
from dra_devkit.scheduling.framework import node_info, pod_info
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_devkit.scheduling.framework.queueing_hints import (
    ChangeKind,
    ClusterChange,
    of_node,
    of_placed_pod,
    of_waiting_pod,
)
from dra_devkit.scheduling.framework.status import Plugin
from dra_kubeletplugin.base.json_types import JSON

DEVICES = frozenset({Plugin.DEVICES})


def pod(name: str, priority: int = 0, claims: tuple[str, ...] = (), **fields: Any) -> PodInfo:
    spec = {"containers": [{"name": "c"}], "priority": priority, **fields.pop("spec", {})}
    spec["resourceClaims"] = [{"name": c, "resourceClaimName": c} for c in claims]
    return pod_info.read({"metadata": {"name": name, "namespace": "ns", "uid": name, **fields}, "spec": spec})


def claim(name: str, *, allocated: bool = False, **status: Any) -> JSON:
    if allocated:
        status["allocation"] = {}
    return {"metadata": {"name": name, "namespace": "ns", "uid": name}, "status": status}


class GateCheck:
    """Rejects the named pods before scheduling, each with a plugin."""

    def __init__(self) -> None:
        self.names: dict[str, Plugin] = {}

    def __call__(self, p: PodInfo) -> Plugin | None:
        return self.names.get(p.name)


def new_queue(gate: GateCheck | None = None, backoff: float = 1.0) -> SchedulingQueue:
    return SchedulingQueue(gate or GateCheck(), lambda p, uid: f"ns/{uid}" in p.claim_keys, backoff)


async def pop_all(queue: SchedulingQueue) -> list[str]:
    """Returns the names of all pods that are ready to be tried, in order. These pods are then in flight."""
    names = []
    while True:
        try:
            async with asyncio.timeout(0.005):
                names.append((await queue.pop()).info.name)
        except TimeoutError:
            return names


async def add_rejected(queue: SchedulingQueue, p: PodInfo, rejectors: frozenset[Plugin] = DEVICES) -> QueuedPod:
    queue.add(p)
    entry = await queue.pop()
    queue.failed(entry, rejectors)
    return entry


async def test_the_highest_priority_comes_first_and_then_the_oldest() -> None:
    queue = new_queue()
    for p in (pod("a"), pod("b", 5), pod("c"), pod("d", 5)):
        queue.add(p)
    assert await pop_all(queue) == ["b", "d", "a", "c"]


async def test_a_removed_pod_is_not_tried() -> None:
    queue = new_queue()
    queue.add(pod("a"))
    queue.add(pod("b"))
    queue.remove("a")
    assert await pop_all(queue) == ["b"]
    queue.remove("b")
    assert "b" not in queue


@pytest.mark.parametrize(
    ("rejector", "change", "is_requeued"),
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
async def test_a_rejected_pod_waits_for_a_change_that_may_help(
    rejector: Plugin, change: ClusterChange, is_requeued: bool
) -> None:
    queue = new_queue()
    await add_rejected(queue, pod("p", claims=("mine",)), frozenset({rejector}))
    queue.move(change)
    assert await pop_all(queue) == (["p"] if is_requeued else [])


async def test_a_change_during_an_attempt_requeues_the_pod() -> None:
    queue = new_queue()
    queue.add(pod("p"))
    queue.add(pod("q"))
    p, q = await queue.pop(), await queue.pop()
    queue.move(ClusterChange(ChangeKind.POD_GONE))
    queue.failed(p, DEVICES)
    assert await pop_all(queue) == [], "a deleted pod without claims releases no devices"
    queue.move(ClusterChange(ChangeKind.SLICE))
    queue.failed(q, DEVICES)
    assert await pop_all(queue) == ["p", "q"]


async def test_the_backoff_of_a_pod_doubles_with_each_error() -> None:
    loop = asyncio.get_running_loop()
    queue, due = new_queue(backoff=0.1), loop.time()
    queue.add(pod("p"))
    backoffs = []
    for _ in range(3):
        entry = await queue.pop()
        assert loop.time() >= due, "no change shortens the backoff"
        queue.failed(entry, frozenset())
        queue.move(ClusterChange(ChangeKind.SLICE))
        due = entry.not_before
        backoffs.append(due - entry.since)
    assert backoffs == pytest.approx([0.1, 0.2, 0.4], abs=0.05)


async def test_a_gated_pod_is_tried_after_its_gate_is_removed() -> None:
    gate = GateCheck()
    gate.names = {"p": Plugin.GATES, "q": Plugin.DEVICES}
    queue = new_queue(gate)
    queue.add(pod("p"))
    queue.add(pod("q", claims=("mine",)))
    for change in (
        ClusterChange(ChangeKind.SLICE),
        ClusterChange(ChangeKind.NODE_ADDED),
        ClusterChange(ChangeKind.CLAIM, claim("x", allocated=True), claim("x")),
    ):
        queue.move(change)
    assert await pop_all(queue) == []
    gate.names = {}
    queue.update(pod("p", labels={"a": "b"}), [ClusterChange(ChangeKind.OWN, pod="p")])
    queue.move(ClusterChange(ChangeKind.CLAIM, None, claim("mine")))
    assert await pop_all(queue) == ["p", "q"]


async def test_a_claim_named_later_requeues_its_pod() -> None:
    gate = GateCheck()
    gate.names = {"p": Plugin.DEVICES}
    queue = new_queue(gate)
    queue.add(pod("p"))
    queue.update(pod("p", claims=("made",)), [ClusterChange(ChangeKind.OWN, pod="p")])
    gate.names = {}
    queue.move(ClusterChange(ChangeKind.CLAIM, None, claim("made")))
    assert await pop_all(queue) == ["p"]


def node(labels: JSON | None = None, heartbeat: str = "1", **spec: Any) -> node_info.NodeInfo:
    status = {
        "allocatable": {"cpu": "1"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}],
    }
    return node_info.read({"metadata": {"name": "n", "labels": labels or {}}, "spec": spec, "status": status})


def test_a_heartbeat_is_not_a_node_change() -> None:
    assert of_node(node(), node(heartbeat="2")) == []
    assert [c.kind for c in of_node(None, node())] == [ChangeKind.NODE_ADDED]
    assert [c.kind for c in of_node(node(), node({"a": "b"}))] == [ChangeKind.NODE_LABELS]
    assert [c.kind for c in of_node(node(), node(unschedulable=True))] == [ChangeKind.NODE_TAINTS]


def test_the_schedulers_own_condition_is_not_a_change_of_a_waiting_pod() -> None:
    before, after = pod("p"), pod("p")
    after.pod["status"] = {"conditions": [{"type": "PodScheduled"}], "nominatedNodeName": "n"}
    assert of_waiting_pod(before, after) == []
    after.pod["status"] = {"resourceClaimStatuses": [{"name": "c"}]}
    assert [c.kind for c in of_waiting_pod(before, after)] == [ChangeKind.OWN]
    on_node = pod("p", spec={"nodeName": "n"})
    assert [c.kind for c in of_placed_pod(before, on_node)] == [ChangeKind.POD_ADDED]
    assert of_placed_pod(on_node, on_node) == []
