"""For every pod that waits in a recorded story, ``explain`` gives the reason that Kubernetes gave, on the same objects."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from dra_kubeletplugin.analysis import Explanation, ExplanationState, ReasonKind, explain, take, with_events
from dra_kubeletplugin.kube.resource import NODES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from tests.vectors.stories import JSON, LONGEST, NAMESPACE, replay
from tests.vectors.test_scenarios import NOT_YET, STORIES

_DEVICES = {
    ReasonKind.NO_DEVICES,
    ReasonKind.TOO_FEW,
    ReasonKind.CLASS_SELECTOR,
    ReasonKind.SELECTOR,
    ReasonKind.CAPACITY,
    ReasonKind.DEVICE_TAINT,
    ReasonKind.HELD,
    ReasonKind.COUNTERS,
    ReasonKind.POOL_INCOMPLETE,
    ReasonKind.CONSTRAINT,
    ReasonKind.COMPETITION,
    ReasonKind.NOT_HERE,
}
# The scheduler's words for what a node says, and for what ends its look at all nodes.
OF_NODES = {
    "cannot allocate all claims": _DEVICES,
    "invalid resource pools were encountered": {ReasonKind.POOL_INVALID},
    "resourceclaim not available on the node": {ReasonKind.CLAIM_ON_OTHER_NODE},
    "node(s) didn't match pod anti-affinity rules": {ReasonKind.POD_AFFINITY},
    "node(s) were unschedulable": {ReasonKind.CORDONED},
    "node(s) had untolerated taint(s)": {ReasonKind.NODE_TAINT},
    "node(s) didn't match Pod's node affinity/selector": {ReasonKind.NODE_AFFINITY},
    "Insufficient": {ReasonKind.RESOURCES, ReasonKind.EXTENDED},
}
OF_ALL = {
    "device class": {ReasonKind.CLASS_MISSING},
    "CEL runtime error": {ReasonKind.SELECTOR_ERROR},
    "is currently being updated": {ReasonKind.POOL_INCOMPLETE},
    "scheduling gates": {ReasonKind.GATED},
    "status.reservedFor": {ReasonKind.RESERVATION},
    "field is immutable": {ReasonKind.BY_HAND},
    "waiting for binding conditions": {ReasonKind.BINDING},
    "failed to create ResourceClaim": {
        ReasonKind.ADMIN_LABEL,
        ReasonKind.TEMPLATE_MISSING,
        ReasonKind.CLAIM_NOT_CREATED,
    },
    "create ResourceClaim": {ReasonKind.ADMIN_LABEL, ReasonKind.TEMPLATE_MISSING, ReasonKind.CLAIM_NOT_CREATED},
}
_UNTOLD = {
    ReasonKind.CLAIM_MISSING,
    ReasonKind.CLAIM_DELETED,
    ReasonKind.TEMPLATE_MISSING,
    ReasonKind.CLAIM_NOT_CREATED,
    ReasonKind.ADMIN_LABEL,
}


def waiting(after: JSON) -> list[str]:
    return [name for name, pod in after["pods"].items() if not pod["nodeName"]]


WITH_WAITERS = [s for s in STORIES if s["id"] not in NOT_YET and any(map(waiting, s["after"]))]


@pytest.mark.cases(8)
@pytest.mark.parametrize("story", [pytest.param(s, id=s["id"]) for s in WITH_WAITERS])
async def test_a_pod_that_waits_is_explained_as_kubernetes_did(story: JSON) -> None:
    judged = 0

    async def look(cluster: LocalCluster, number: int) -> None:
        nonlocal judged
        after = story["after"][number]
        before = story["after"][number - 1] if number else {"pods": {}}
        snapshot = await take(cluster.client, NAMESPACE)
        for name in waiting(after):
            uid = next(p["metadata"]["uid"] for p in snapshot.pods if p["metadata"]["name"] == name)
            found = explain(await with_events(cluster.client, snapshot, NAMESPACE, uid), name, NAMESPACE)
            judged += 1
            repeated = after["pods"][name] == before["pods"].get(name)
            if repeated and found.state is ExplanationState.FITS:
                await tried_again(cluster, name, found.nodes)
            elif repeated and (gone := {r.text for r in found.reasons if r.kind is ReasonKind.CLAIM_MISSING}):
                there = {c["metadata"]["name"] for c in snapshot.claims}
                assert not any(f"/{c} " in text for text in gone for c in there), gone
            else:
                judge(found, name, after)

    await replay(story, look=look)
    assert judged


async def tried_again(cluster: LocalCluster, pod: str, nodes: tuple[str, ...]) -> None:
    """What a pod's event says may be of a time before the last step, after which nobody tried it. So it is tried now."""
    for node in nodes:
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {"tried": "again"}}})
    async with asyncio.timeout(LONGEST):
        while (await cluster.client.get(PODS, pod, NAMESPACE))["spec"].get("nodeName") not in nodes:
            await asyncio.sleep(0.02)


def judge(found: Explanation, pod: str, after: JSON) -> None:
    said = (after["pods"][pod].get("PodScheduled") or {}).get("message") or ""
    about = [
        e for e in after["events"] if e["kind"] == "Pod" and e["name"] == pod and e["reason"] != "FailedScheduling"
    ]
    told = said or " ".join(e["message"] for e in about)
    shown = json.dumps({"said": told, "summary": found.summary, "kinds": sorted(found.kinds)}, indent=1)
    assert found.state is ExplanationState.WAITS, shown
    assert found.summary, shown
    wanted = [kinds for words, kinds in OF_ALL.items() if words in told]
    if wanted:
        assert {r.kind for r in found.reasons} & wanted[0], shown
        return
    clauses = counted(said)
    if not clauses:
        assert {r.kind for r in found.reasons} & _UNTOLD, shown
    for number, kinds in clauses:
        nodes = [n for g in found.groups if first(g) in kinds for n in g.nodes]
        assert len(nodes) == number, f"{number} x {sorted(kinds)}: {nodes}\n{shown}"


def first(group: object) -> ReasonKind | None:
    """The first reason of a group's nodes, which is the one that the scheduler tells."""
    reasons = [*group.reasons, *(r for q in group.requests for r in q.reasons)]  # type: ignore[attr-defined]
    return reasons[0].kind if reasons else None


def counted(said: str) -> list[tuple[int, set[ReasonKind]]]:
    """``0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims.`` as numbers of nodes and kinds."""
    clauses = said.partition(" nodes are available: ")[2].partition(". ")[0]
    found = []
    for number, words in re.findall(r"(\d+) ([^,]+?)(?:,|$)", clauses):
        kinds = next((k for known, k in OF_NODES.items() if words.startswith(known)), None)
        assert kinds is not None, f"unknown words of the scheduler: {words}"
        found.append((int(number), kinds))
    return found
