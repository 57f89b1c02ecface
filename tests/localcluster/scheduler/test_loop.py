"""The scheduler in a cluster: who is scheduled, who waits and with which words, what is never stopped by whom."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.scheduler import loop
from dra_kubeletplugin.localcluster.scheduler.claimbinder import ClaimBinder
from dra_kubeletplugin.scheduling.framework import node_info, pod_groups, pod_info, unsupported
from dra_kubeletplugin.scheduling.framework.cache import Cache
from dra_kubeletplugin.scheduling.framework.claim_cache import ClaimCache
from dra_kubeletplugin.scheduling.framework.cycle import Cycle
from dra_kubeletplugin.scheduling.framework.devices import PodClaims
from dra_kubeletplugin.scheduling.framework.node_allocation import AllocationMemory, NodeAllocator
from dra_kubeletplugin.scheduling.framework.status import SchedulerError

JSON = dict[str, Any]
DRIVER = "sim.example.com"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(()) as cluster:
        await cluster.apply(node("node-a"))
        yield cluster


def node(name: str, cpu: str = "8") -> JSON:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name: str, cpu: str = "", claim: str = "", **spec: Any) -> JSON:
    resources: JSON = {"requests": {"cpu": cpu}} if cpu else {}
    if claim:
        resources["claims"] = [{"name": "c"}]
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": claim}]
    spec["containers"] = [{"name": "main", "image": "pause", "resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def devices(count: int, where: str = "node-a") -> list[JSON]:
    pool = {"name": where, "generation": 1, "resourceSliceCount": 1}
    made = [{"name": f"dev-{i}"} for i in range(count)]
    api = {"apiVersion": "resource.k8s.io/v1"}
    return [
        {**api, "kind": "ResourceSlice", "metadata": {"name": f"s-{where}"}, "spec": {"driver": DRIVER, "nodeName": where, "pool": pool, "devices": made}},
        {**api, "kind": "DeviceClass", "metadata": {"name": "sim"}, "spec": {}},
    ]  # fmt: skip


def claim(name: str, *counts: int) -> JSON:
    requests = [
        {"name": f"r{i}", "exactly": {"deviceClassName": "sim", "count": n}} for i, n in enumerate(counts or (1,))
    ]
    spec = {"devices": {"requests": requests}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


async def node_of(cluster: LocalCluster, name: str) -> str:
    async def bound() -> str:
        found = await cluster.client.get(PODS, name, "default")
        return str(found["spec"].get("nodeName") or "")

    return str(await cluster.wait(f"{name} to be scheduled", bound))


async def told(cluster: LocalCluster, name: str, words: str) -> str:
    async def event() -> str:
        return next((e for e in cluster.events(name) if words in e), "")

    return str(await cluster.wait(f"{name} to be told {words!r}", event))


async def condition(cluster: LocalCluster, name: str) -> JSON:
    """Once it is there: the event about the same may be there before."""

    async def written() -> JSON:
        found = await cluster.client.get(PODS, name, "default")
        return {c["type"]: c for c in found["status"].get("conditions") or []}.get("PodScheduled", {})

    found: JSON = await cluster.wait(f"the condition PodScheduled of {name}", written)
    return found


async def test_a_pod_of_another_scheduler_is_left_alone(cluster: LocalCluster) -> None:
    await cluster.apply(pod("theirs", schedulerName="other"), pod("ours"))
    await node_of(cluster, "ours")
    theirs = await cluster.client.get(PODS, "theirs", "default")
    assert "nodeName" not in theirs["spec"]
    assert not cluster.events("theirs")


async def test_what_another_scheduler_placed_takes_its_share(cluster: LocalCluster) -> None:
    await cluster.apply(pod("theirs", cpu="6", schedulerName="other", nodeName="node-a"), pod("ours", cpu="4"))
    await told(cluster, "ours", "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")  # fmt: skip
    await cluster.client.delete(PODS, "theirs", "default", grace=0)
    assert await node_of(cluster, "ours") == "node-a"


async def test_without_nodes_the_pod_reports_it_and_goes_to_the_first_that_comes() -> None:
    async with LocalCluster(()) as cluster:
        await cluster.apply(pod("p"))
        await told(cluster, "p", "FailedScheduling: no nodes available to schedule pods")
        await cluster.apply(node("late"))
        assert await node_of(cluster, "p") == "late"


async def test_what_is_not_implemented_leaves_the_pod_pending_with_a_sentence(cluster: LocalCluster) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "x"}}
    await cluster.apply(pod("p", volumes=[volume]))
    why = "0/1 nodes are available: not supported by the local cluster: volume v of kind persistentVolumeClaim."
    await told(cluster, "p", why)
    found = await condition(cluster, "p")
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    assert found["message"].startswith(why)


async def test_a_pod_of_higher_priority_takes_the_cpu_of_another_and_that_ones_claim_is_freed(
    cluster: LocalCluster,
) -> None:
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    await cluster.apply(
        *devices(1), claim("c"), priority, pod("low", cpu="6", claim="c", terminationGracePeriodSeconds=0)
    )
    await node_of(cluster, "low")
    uid = (await cluster.client.get(PODS, "low", "default"))["metadata"]["uid"]
    await cluster.apply(pod("high", cpu="6", priorityClassName="high"))
    assert await node_of(cluster, "high") == "node-a"
    high = (await cluster.client.get(PODS, "high", "default"))["metadata"]["uid"]
    await told(cluster, "low", f"Preempted: Preempted by pod {high} on node node-a")
    await told(cluster, "high", "FailedScheduling: 0/1 nodes are available: 1 Insufficient cpu.")
    assert uid != high

    async def freed() -> bool:
        return not (await cluster.client.get(CLAIMS, "c", "default"))["status"]

    await cluster.wait("the claim to be free", freed)


async def test_a_victim_that_takes_its_time_keeps_its_place_and_the_winner_its_promise(cluster: LocalCluster) -> None:
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    await cluster.apply(priority, pod("low", cpu="6", terminationGracePeriodSeconds=30))
    await node_of(cluster, "low")
    await cluster.apply(pod("high", cpu="6", priorityClassName="high"))

    async def promised() -> bool:
        found = await cluster.client.get(PODS, "high", "default")
        return found["status"].get("nominatedNodeName") == "node-a"

    await cluster.wait("the promise", promised)
    low = await cluster.client.get(PODS, "low", "default")
    assert low["metadata"]["deletionTimestamp"]
    reasons = {c["type"]: c.get("reason") for c in low["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "PreemptionByScheduler"
    await cluster.apply(pod("sneaky", cpu="2"))
    await told(cluster, "sneaky", "Insufficient cpu")
    await cluster.client.delete(PODS, "low", "default", grace=0)
    assert await node_of(cluster, "high") == "node-a"
    assert await node_of(cluster, "sneaky") == "node-a"


async def test_gates_hold_a_pod_that_is_tried_once_they_are_gone(cluster: LocalCluster) -> None:
    await cluster.apply(pod("p", schedulingGates=[{"name": "example.com/wait"}]), pod("other"))
    await node_of(cluster, "other")
    assert (await condition(cluster, "p"))["reason"] == "SchedulingGated"
    assert not cluster.events("p")
    await cluster.client.patch(PODS, "p", {"spec": {"schedulingGates": []}}, "default")
    assert await node_of(cluster, "p") == "node-a"


async def test_a_search_that_takes_long_holds_up_nobody_but_the_queue(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "NodeAllocator", functools.partial(NodeAllocator, limit=3600.0))
    made = devices(24)
    for i, device in enumerate(made[0]["spec"]["devices"]):
        device["attributes"] = {"i": {"int": i}, "pair": {"int": i // 2}}
    hard = claim("hard", *[2] * 9)
    pairs = [{"requests": [f"r{i}"], "matchAttribute": f"{DRIVER}/pair"} for i in range(8)]
    hard["spec"]["devices"]["constraints"] = [*pairs, {"requests": ["r8"], "matchAttribute": f"{DRIVER}/i"}]
    await cluster.apply(*made, hard, pod("p", claim="hard"))
    for _ in range(20):
        await cluster.client.get(NODES, "node-a")  # the event loop goes on
    assert not cluster.events("p")
    await cluster.apply(pod("next"))
    await cluster.client.delete(PODS, "p", "default", grace=0)
    assert await node_of(cluster, "next") == "node-a", "a search for a pod that is gone ends"


async def test_more_devices_than_there_are_is_reported_within_a_second(cluster: LocalCluster) -> None:
    await cluster.apply(*devices(18), claim("c", 5, 14), pod("p", claim="c"))
    started = time.process_time()
    await told(
        cluster, "p", "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption:"
    )
    assert time.process_time() - started < 1


async def test_a_claim_that_is_full_stops_its_next_pod_and_nobody_else(cluster: LocalCluster) -> None:
    await cluster.apply(*devices(2), claim("full"), claim("free"))
    consumers = [{"resource": "pods", "name": f"p{i}", "uid": f"u{i}"} for i in range(256)]
    await cluster.apply(pod("first", claim="full"))
    await node_of(cluster, "first")
    found = await cluster.client.get(CLAIMS, "full", "default")
    reserved = [
        *found["status"]["reservedFor"],
        *({**c, "resource": "foos", "apiGroup": "example.com"} for c in consumers[1:]),
    ]
    await cluster.client.update(CLAIMS, {**found, "status": {**found["status"], "reservedFor": reserved}}, "status")
    await cluster.apply(pod("late", claim="full"), pod("other", claim="free"))
    assert await node_of(cluster, "other") == "node-a"
    await told(cluster, "late", 'running PreBind plugin "DynamicResources": add reservation to claim default/full: ')
    assert (await condition(cluster, "late"))["reason"] == "SchedulerError"


async def test_pods_that_share_a_claim_write_it_once_each(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they would be in conflict, and all but one would have to read it again."""
    written: Counter[str] = Counter()
    update = ClaimBinder._update

    async def counted(binder: ClaimBinder, claim: JSON, what: str, sub: str) -> JSON:
        written[what] += 1
        return await update(binder, claim, what, sub)

    monkeypatch.setattr(ClaimBinder, "_update", counted)
    await cluster.apply(*devices(1), claim("shared"))
    await cluster.apply(*[pod(f"p{i}", claim="shared") for i in range(40)])
    for i in range(40):
        assert await node_of(cluster, f"p{i}") == "node-a"
    name = "default/shared"
    assert written == {
        f"add finalizer to claim {name}": 1,
        f"add allocation and reservation to claim {name}": 1,
        f"add reservation to claim {name}": 39,
    }
    assert not [e for i in range(40) for e in cluster.events(f"p{i}") if "add reservation" in e]
    found = await cluster.client.get(CLAIMS, "shared", "default")
    assert len({r["uid"] for r in found["status"]["reservedFor"]}) == 40


async def test_a_claim_that_is_freed_while_its_pod_is_bound_is_reported_and_allocated_again(
    cluster: LocalCluster,
) -> None:
    await cluster.apply(*devices(1), claim("c"))
    [made] = await cluster.apply(pod("first", claim="c"))
    await node_of(cluster, "first")
    stale = await cluster.client.get(CLAIMS, "c", "default")
    status = {k: v for k, v in stale["status"].items() if k not in {"allocation", "reservedFor"}}
    store = ClaimCache()
    store.observe(await cluster.client.update(CLAIMS, {**stale, "status": status}, "status"))
    binder = ClaimBinder(cluster.client, store, 1.0)
    with pytest.raises(SchedulerError, match="claim default/c got deallocated elsewhere in the meantime"):
        await binder.write(stale, pod_groups.pod_reference(made), None)


async def test_a_binding_that_loses_a_race_is_tried_again_and_keeps_no_device(cluster: LocalCluster) -> None:
    await cluster.apply(*devices(1), claim("c"))
    cluster.api.injected_faults.conflicts = 1
    await cluster.apply(pod("p", claim="c"))
    assert await node_of(cluster, "p") == "node-a"


async def test_a_server_that_is_away_for_a_while_loses_no_pod(cluster: LocalCluster) -> None:
    await cluster.apply(*devices(8), *[claim(f"c{i}") for i in range(4)])
    await cluster.apply(*[pod(f"p{i}", claim=f"c{i}") for i in range(4)])
    with cluster.api_outage():
        await asyncio.sleep(0.05)  # whatever is being written now is refused
    for i in range(4):
        assert await node_of(cluster, f"p{i}") == "node-a"
    results = [c["status"]["allocation"]["devices"]["results"][0]["device"] for c in cluster.claims()]
    assert len(set(results)) == 4


async def test_a_claim_for_extended_resources_that_is_refused_leaves_nothing_and_is_made_later(
    cluster: LocalCluster,
) -> None:
    made = devices(1)
    made[1]["spec"] = {"extendedResourceName": "example.com/gpu"}
    hard = {"count/resourceclaims.resource.k8s.io": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    wants = pod("p")
    wants["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    await cluster.apply(*made, quota, wants)
    words = 'running PreBind plugin "DynamicResources": create claim for extended resources default/'
    refused = await told(cluster, "p", words)
    assert "exceeded quota: q" in refused
    assert not cluster.claims()
    await cluster.client.delete(Resource("", "v1", "resourcequotas", namespaced=True), "q", "default")
    assert await node_of(cluster, "p") == "node-a"
    [found] = cluster.claims()
    mapping = (await cluster.client.get(PODS, "p", "default"))["status"]["extendedResourceClaimStatus"]
    assert mapping["resourceClaimName"] == found["metadata"]["name"]


async def test_a_claim_for_extended_resources_that_was_left_over_is_deleted_and_made_again(
    cluster: LocalCluster,
) -> None:
    """PostFilter: a scheduler that ended between the claim and the binding has left it."""
    slices, device_class = devices(2)
    device_class["spec"]["extendedResourceName"] = "example.com/gpu"
    await cluster.apply(slices, device_class)
    waiting = pod("p", schedulingGates=[{"name": "later"}])
    waiting["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    [made] = await cluster.apply(waiting)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"], "controller": True}
    left = claim("left")
    left["metadata"] |= {
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [owner],
    }
    await cluster.apply(left, claim("later"), pod("later", claim="later"))
    await node_of(cluster, "later")  # so what was left is known when the other pod is tried
    await cluster.client.patch(PODS, "p", {"spec": {"schedulingGates": None}}, "default")
    await told(cluster, "p", "cannot schedule extended resource claim. deletion of ResourceClaim completed, ")
    # That a claim is deleted has no pod tried again, up to 1.36: something else has to change.
    await cluster.client.patch(NODES, "node-a", {"metadata": {"labels": {"example.com/new": ""}}})
    assert await node_of(cluster, "p") == "node-a"
    [kept] = [c for c in cluster.claims() if c["metadata"]["name"] != "later"]
    assert kept["metadata"]["generateName"] == "p-extended-resources-"


async def test_each_reason_is_reported_however_many_there_were(cluster: LocalCluster) -> None:
    await cluster.apply(pod("p", cpu="9"))
    for i in range(12):
        await told(cluster, "p", f"0/{i + 1} nodes are available: {i + 1} Insufficient cpu.")
        await cluster.apply(node(f"small-{i}"))
    assert not any("combined" in e for e in cluster.events("p"))


# --- objects that are no such objects ---------------------------------------------------------

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


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [p for k, v in items for p in paths(v, (*at, k))]


def mutated(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = mutated(value[path[0]], path[1:], junk)
    return copied


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(paths(SPEC)), JUNK)
def test_a_pod_with_anything_in_it_is_read_refused_or_judged(path: tuple[Any, ...], junk: Any) -> None:
    """Whatever else is raised is told as the pod's own error, by the scheduler's loop; here it must be one of few kinds."""
    raw = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": mutated(SPEC, path, junk)}
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


async def test_pods_that_are_no_pods_stop_nobody(cluster: LocalCluster) -> None:
    """They are put into the storage past validation: what a webhook or an older server let through."""
    for i, path in enumerate(paths(SPEC)):
        meta = {
            "name": f"odd-{i}",
            "namespace": "default",
            "uid": f"odd-{i}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        spec = mutated({**SPEC, "schedulerName": "default-scheduler"}, path, [None])
        cluster.api.storage.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    await cluster.apply(pod("p"))
    assert await node_of(cluster, "p") == "node-a"
    try:
        await told(cluster, "odd-0", "FailedScheduling")
    except ApiError:  # pragma: no cover - a server that cannot show it
        pytest.fail("the event is there, whatever the pod is")
