"""The scheduler in a cluster: placement, reasons for waiting pods, and isolation between pods."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.scheduler import loop
from dra_devkit.localcluster.scheduler.claimbinder import ClaimBinder
from dra_devkit.scheduling.framework import node_info, pod_groups, pod_info, unsupported
from dra_devkit.scheduling.framework.cache import Cache
from dra_devkit.scheduling.framework.claim_cache import ClaimCache
from dra_devkit.scheduling.framework.cycle import Cycle
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.node_allocation import AllocationMemory, NodeAllocator
from dra_devkit.scheduling.framework.status import SchedulerError
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS
from packages.devkit.tests.localcluster.scheduler.objects import claim, node, node_of, pod, wait_for_event

DRIVER = "sim.example.com"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(()) as cluster:
        await cluster.apply(node("node-a"))
        yield cluster


def slice_and_class(count: int, node_name: str = "node-a") -> list[JSON]:
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    entries = [{"name": f"dev-{i}"} for i in range(count)]
    api = {"apiVersion": "resource.k8s.io/v1"}
    return [
        {**api, "kind": "ResourceSlice", "metadata": {"name": f"s-{node_name}"}, "spec": {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": entries}},
        {**api, "kind": "DeviceClass", "metadata": {"name": "sim"}, "spec": {}},
    ]  # fmt: skip


async def condition(cluster: LocalCluster, name: str) -> JSON:
    """Waits for the condition PodScheduled, because the event about the same decision may be written earlier."""

    async def read_condition() -> JSON:
        current = await cluster.client.get(PODS, name, "default")
        return {c["type"]: c for c in current["status"].get("conditions") or []}.get("PodScheduled", {})

    current: JSON = await cluster.wait(f"the condition PodScheduled of {name}", read_condition)
    return current


async def test_a_pod_of_another_scheduler_is_ignored(cluster: LocalCluster) -> None:
    await cluster.apply(pod("theirs", schedulerName="other"), pod("ours"))
    await node_of(cluster, "ours")
    foreign_pod = await cluster.client.get(PODS, "theirs", "default")
    assert "nodeName" not in foreign_pod["spec"]
    assert not cluster.events("theirs")


async def test_pods_of_another_scheduler_use_resources_of_their_node(cluster: LocalCluster) -> None:
    await cluster.apply(pod("theirs", cpu="6", schedulerName="other", nodeName="node-a"), pod("ours", cpu="4"))
    await wait_for_event(cluster, "ours", "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")  # fmt: skip
    await cluster.client.delete(PODS, "theirs", "default", grace=0)
    assert await node_of(cluster, "ours") == "node-a"


async def test_a_pod_waits_without_nodes_and_runs_on_the_first_new_node() -> None:
    async with LocalCluster(()) as cluster:
        await cluster.apply(pod("p"))
        await wait_for_event(cluster, "p", "FailedScheduling: no nodes available to schedule pods")
        await cluster.apply(node("late"))
        assert await node_of(cluster, "p") == "late"


async def test_an_unsupported_field_keeps_the_pod_pending_with_a_reason(cluster: LocalCluster) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "x"}}
    await cluster.apply(pod("p", volumes=[volume]))
    reason = "0/1 nodes are available: not supported by the local cluster: volume v of kind persistentVolumeClaim."
    await wait_for_event(cluster, "p", reason)
    scheduled_condition = await condition(cluster, "p")
    assert (scheduled_condition["status"], scheduled_condition["reason"]) == ("False", "Unschedulable")
    assert scheduled_condition["message"].startswith(reason)


async def test_preemption_releases_the_claim_of_the_victim(
    cluster: LocalCluster,
) -> None:
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    await cluster.apply(
        *slice_and_class(1), claim("c"), priority, pod("low", cpu="6", claim="c", terminationGracePeriodSeconds=0)
    )
    await node_of(cluster, "low")
    uid = (await cluster.client.get(PODS, "low", "default"))["metadata"]["uid"]
    await cluster.apply(pod("high", cpu="6", priorityClassName="high"))
    assert await node_of(cluster, "high") == "node-a"
    high = (await cluster.client.get(PODS, "high", "default"))["metadata"]["uid"]
    await wait_for_event(cluster, "low", f"Preempted: Preempted by pod {high} on node node-a")
    await wait_for_event(cluster, "high", "FailedScheduling: 0/1 nodes are available: 1 Insufficient cpu.")
    assert uid != high

    async def is_released() -> bool:
        return not (await cluster.client.get(CLAIMS, "c", "default"))["status"]

    await cluster.wait("the release of the claim", is_released)


async def test_a_preempting_pod_stays_nominated_while_the_victim_terminates(cluster: LocalCluster) -> None:
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    await cluster.apply(priority, pod("low", cpu="6", terminationGracePeriodSeconds=30))
    await node_of(cluster, "low")
    await cluster.apply(pod("high", cpu="6", priorityClassName="high"))

    async def is_nominated() -> bool:
        current = await cluster.client.get(PODS, "high", "default")
        return current["status"].get("nominatedNodeName") == "node-a"

    await cluster.wait("the nomination", is_nominated)
    low = await cluster.client.get(PODS, "low", "default")
    assert low["metadata"]["deletionTimestamp"]
    reasons = {c["type"]: c.get("reason") for c in low["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "PreemptionByScheduler"
    await cluster.apply(pod("sneaky", cpu="2"))
    await wait_for_event(cluster, "sneaky", "Insufficient cpu")
    await cluster.client.delete(PODS, "low", "default", grace=0)
    assert await node_of(cluster, "high") == "node-a"
    assert await node_of(cluster, "sneaky") == "node-a"


async def test_a_gated_pod_is_scheduled_after_its_gates_are_removed(cluster: LocalCluster) -> None:
    await cluster.apply(pod("p", schedulingGates=[{"name": "example.com/wait"}]), pod("other"))
    await node_of(cluster, "other")
    assert (await condition(cluster, "p"))["reason"] == "SchedulingGated"
    assert not cluster.events("p")
    await cluster.client.patch(PODS, "p", {"spec": {"schedulingGates": []}}, "default")
    assert await node_of(cluster, "p") == "node-a"


async def test_a_long_search_does_not_block_the_event_loop(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "NodeAllocator", functools.partial(NodeAllocator, limit=3600.0))
    objects = slice_and_class(24)
    for i, device in enumerate(objects[0]["spec"]["devices"]):
        device["attributes"] = {"i": {"int": i}, "pair": {"int": i // 2}}
    hard = claim("hard", *[2] * 9)
    pairs = [{"requests": [f"r{i}"], "matchAttribute": f"{DRIVER}/pair"} for i in range(8)]
    hard["spec"]["devices"]["constraints"] = [*pairs, {"requests": ["r8"], "matchAttribute": f"{DRIVER}/i"}]
    await cluster.apply(*objects, hard, pod("p", claim="hard"))
    for _ in range(20):
        await cluster.client.get(NODES, "node-a")  # the event loop still responds
    assert not cluster.events("p")
    await cluster.apply(pod("next"))
    await cluster.client.delete(PODS, "p", "default", grace=0)
    assert await node_of(cluster, "next") == "node-a", "the search for a deleted pod ends"


async def test_a_request_for_too_many_devices_is_reported_within_a_second(cluster: LocalCluster) -> None:
    await cluster.apply(*slice_and_class(18), claim("c", 5, 14), pod("p", claim="c"))
    started = time.process_time()
    await wait_for_event(
        cluster, "p", "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption:"
    )
    assert time.process_time() - started < 1


async def test_pods_that_share_a_claim_reserve_it_without_conflicts(cluster: LocalCluster) -> None:
    await cluster.apply(*slice_and_class(1), claim("shared"))
    await cluster.apply(*[pod(f"p{i}", claim="shared") for i in range(40)])
    for i in range(40):
        assert await node_of(cluster, f"p{i}") == "node-a"
    assert not [e for i in range(40) for e in cluster.events(f"p{i}") if "add reservation" in e]
    shared_claim = await cluster.client.get(CLAIMS, "shared", "default")
    assert len({r["uid"] for r in shared_claim["status"]["reservedFor"]}) == 40


async def test_a_claim_deallocated_during_the_binding_is_reported(
    cluster: LocalCluster,
) -> None:
    await cluster.apply(*slice_and_class(1), claim("c"))
    [created] = await cluster.apply(pod("first", claim="c"))
    await node_of(cluster, "first")
    stale = await cluster.client.get(CLAIMS, "c", "default")
    status = {k: v for k, v in stale["status"].items() if k not in {"allocation", "reservedFor"}}
    store = ClaimCache()
    store.observe(await cluster.client.update(CLAIMS, {**stale, "status": status}, "status"))
    binder = ClaimBinder(cluster.client, store, 1.0)
    with pytest.raises(SchedulerError, match="claim default/c got deallocated elsewhere in the meantime"):
        await binder.write(stale, pod_groups.pod_reference(created), None)


async def test_a_binding_with_a_conflict_is_retried(cluster: LocalCluster) -> None:
    await cluster.apply(*slice_and_class(1), claim("c"))
    cluster.api.injected_faults.conflicts = 1
    await cluster.apply(pod("p", claim="c"))
    assert await node_of(cluster, "p") == "node-a"


async def test_all_pods_are_scheduled_after_an_outage_of_the_api_server(cluster: LocalCluster) -> None:
    await cluster.apply(*slice_and_class(8), *[claim(f"c{i}") for i in range(4)])
    await cluster.apply(*[pod(f"p{i}", claim=f"c{i}") for i in range(4)])
    with cluster.api_outage():
        await asyncio.sleep(0.05)  # the outage rejects all writes in flight
    for i in range(4):
        assert await node_of(cluster, f"p{i}") == "node-a"
    results = [c["status"]["allocation"]["devices"]["results"][0]["device"] for c in cluster.claims()]
    assert len(set(results)) == 4


async def test_a_rejected_claim_for_extended_resources_is_created_later(
    cluster: LocalCluster,
) -> None:
    objects = slice_and_class(1)
    objects[1]["spec"] = {"extendedResourceName": "example.com/gpu"}
    hard = {"count/resourceclaims.resource.k8s.io": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    requesting_pod = pod("p")
    requesting_pod["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    await cluster.apply(*objects, quota, requesting_pod)
    reason = 'running PreBind plugin "DynamicResources": create claim for extended resources default/'
    event = await wait_for_event(cluster, "p", reason)
    assert "exceeded quota: q" in event
    assert not cluster.claims()
    await cluster.client.delete(Resource("", "v1", "resourcequotas", namespaced=True), "q", "default")
    assert await node_of(cluster, "p") == "node-a"
    [created] = cluster.claims()
    mapping = (await cluster.client.get(PODS, "p", "default"))["status"]["extendedResourceClaimStatus"]
    assert mapping["resourceClaimName"] == created["metadata"]["name"]


async def test_a_leftover_claim_for_extended_resources_is_deleted_and_created_again(
    cluster: LocalCluster,
) -> None:
    """PostFilter: a scheduler that stopped between the creation of the claim and the binding leaves the claim behind."""
    slices, device_class = slice_and_class(2)
    device_class["spec"]["extendedResourceName"] = "example.com/gpu"
    await cluster.apply(slices, device_class)
    waiting = pod("p", schedulingGates=[{"name": "later"}])
    waiting["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    [created] = await cluster.apply(waiting)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": created["metadata"]["uid"], "controller": True}
    leftover = claim("left")
    leftover["metadata"] |= {
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [owner],
    }
    await cluster.apply(leftover, claim("later"), pod("later", claim="later"))
    await node_of(cluster, "later")  # the scheduler has processed the leftover claim before it tries the other pod
    await cluster.client.patch(PODS, "p", {"spec": {"schedulingGates": None}}, "default")
    await wait_for_event(cluster, "p", "cannot schedule extended resource claim. deletion of ResourceClaim completed, ")
    # Up to 1.36 the deletion of a claim does not requeue a pod, so another change is necessary.
    await cluster.client.patch(NODES, "node-a", {"metadata": {"labels": {"example.com/new": ""}}})
    assert await node_of(cluster, "p") == "node-a"
    [new_claim] = [c for c in cluster.claims() if c["metadata"]["name"] != "later"]
    assert new_claim["metadata"]["generateName"] == "p-extended-resources-"


async def test_every_new_reason_is_reported_in_its_own_event(cluster: LocalCluster) -> None:
    await cluster.apply(pod("p", cpu="9"))
    for i in range(12):
        await wait_for_event(cluster, "p", f"0/{i + 1} nodes are available: {i + 1} Insufficient cpu.")
        await cluster.apply(node(f"small-{i}"))
    assert not any("combined" in e for e in cluster.events("p"))


# --- malformed objects -------------------------------------------------------------------------

SPEC = {
    "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"x.com/y": "1"}}, "ports": [{"containerPort": 1, "hostPort": 2}]}],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b"}}}]},
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}],
    "resourceClaims": [{"name": "c", "resourceClaimName": "x"}],
}  # fmt: skip
JUNK = st.one_of(
    st.none(), st.integers(-1, 3), st.text(max_size=3), st.just([]), st.just({}), st.just([None]), st.just({"": None})
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix] * bool(prefix) + [p for k, v in items for p in paths(v, (*prefix, k))]


def with_value_at(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = with_value_at(value[path[0]], path[1:], junk)
    return copied


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(paths(SPEC)), JUNK)
def test_a_malformed_pod_is_scheduled_or_raises_a_known_error(path: tuple[Any, ...], junk: Any) -> None:
    """The scheduling loop reports every other exception as an error of the pod. Here only a few exception types are allowed."""
    raw = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": with_value_at(SPEC, path, junk)}
    try:
        p = pod_info.read(raw)
        unsupported.reasons(p)
        cache = Cache()
        cache.node_changed({**node("n"), "metadata": {"name": "n", "labels": {"a": "b", "z": "1"}}})
        snapshot = cache.snapshot()
        allocations = NodeAllocator(AllocationMemory(), cache.devices(), 1)
        Cycle(p, snapshot, PodClaims(), allocations).feasible()
        node_info.read(node("n")).with_pod(p).without_pod("u")
    except (TypeError, KeyError, ValueError, AttributeError):
        pass


async def test_malformed_pods_do_not_block_other_pods(cluster: LocalCluster) -> None:
    """The test writes them into the storage without validation, as a webhook or an older API server could have."""
    for i, path in enumerate(paths(SPEC)):
        meta = {
            "name": f"odd-{i}",
            "namespace": "default",
            "uid": f"odd-{i}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        spec = with_value_at({**SPEC, "schedulerName": "default-scheduler"}, path, [None])
        cluster.api.storage.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    await cluster.apply(pod("p"))
    assert await node_of(cluster, "p") == "node-a"
    try:
        await wait_for_event(cluster, "odd-0", "FailedScheduling")
    except ApiError:  # pragma: no cover - a server that cannot return the event
        pytest.fail("the API server must return the event of a malformed pod")
