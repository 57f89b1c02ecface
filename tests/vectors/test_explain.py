"""For every waiting pod in a recorded scenario, ``explain`` reports the same reason as Kubernetes, from the same objects."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import NODES, PODS
from dra_tools import Explanation, ExplanationState, ReasonKind, explain, take, with_events
from tests.vectors.scenario_replay import KNOWN_DIFFERENCES, NAMESPACE, SCENARIOS, TIMEOUT, replay

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
# The scheduler's messages about a node, and its messages that end the evaluation of all nodes.
NODE_MESSAGES = {
    "cannot allocate all claims": _DEVICES,
    "invalid resource pools were encountered": {ReasonKind.POOL_INVALID},
    "resourceclaim not available on the node": {ReasonKind.CLAIM_ON_OTHER_NODE},
    "node(s) didn't match pod anti-affinity rules": {ReasonKind.POD_AFFINITY},
    "node(s) were unschedulable": {ReasonKind.CORDONED},
    "node(s) had untolerated taint(s)": {ReasonKind.NODE_TAINT},
    "node(s) didn't match Pod's node affinity/selector": {ReasonKind.NODE_AFFINITY},
    "Insufficient": {ReasonKind.RESOURCES, ReasonKind.EXTENDED},
}
FATAL_MESSAGES = {
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
_WITHOUT_MESSAGE = {
    ReasonKind.CLAIM_MISSING,
    ReasonKind.CLAIM_DELETED,
    ReasonKind.CLAIM_OF_OTHER,
    ReasonKind.TEMPLATE_MISSING,
    ReasonKind.CLAIM_NOT_CREATED,
    ReasonKind.ADMIN_LABEL,
}


def waiting_pods(after: JSON) -> list[str]:
    return [name for name, pod in after["pods"].items() if not pod["nodeName"]]


WITH_WAITING_PODS = [s for s in SCENARIOS if s["id"] not in KNOWN_DIFFERENCES and any(map(waiting_pods, s["after"]))]


@pytest.mark.cases(8)
@pytest.mark.parametrize("scenario", [pytest.param(s, id=s["id"]) for s in WITH_WAITING_PODS])
async def test_a_waiting_pod_has_the_reason_of_kubernetes(scenario: JSON) -> None:
    checked = 0

    async def observe(cluster: LocalCluster, number: int) -> None:
        nonlocal checked
        after = scenario["after"][number]
        before = scenario["after"][number - 1] if number else {"pods": {}}
        snapshot = await take(cluster.client, NAMESPACE)
        for name in waiting_pods(after):
            uid = next(p["metadata"]["uid"] for p in snapshot.pods if p["metadata"]["name"] == name)
            explanation = explain(await with_events(cluster.client, snapshot, NAMESPACE, uid), name, NAMESPACE)
            checked += 1
            repeated = after["pods"][name] == before["pods"].get(name)
            if repeated and explanation.state is ExplanationState.FITS:
                await trigger_retry(cluster, name, explanation.nodes)
            elif repeated and (missing := {r.text for r in explanation.reasons if r.kind is ReasonKind.CLAIM_MISSING}):
                existing = {c["metadata"]["name"] for c in snapshot.claims}
                assert not any(f"/{c} " in text for text in missing for c in existing), missing
            else:
                assert_same_reason(explanation, name, after)

    await replay(scenario, observe=observe)
    assert checked


async def trigger_retry(cluster: LocalCluster, pod: str, nodes: tuple[str, ...]) -> None:
    """Changes a label of the nodes, so that the scheduler tries the pod now. The event of the pod may be older than the last step."""
    for node in nodes:
        await cluster.client.patch(NODES, node, {"metadata": {"labels": {"tried": "again"}}})
    async with asyncio.timeout(TIMEOUT):
        while (await cluster.client.get(PODS, pod, NAMESPACE))["spec"].get("nodeName") not in nodes:
            await asyncio.sleep(0.02)


def assert_same_reason(explanation: Explanation, pod: str, after: JSON) -> None:
    message = (after["pods"][pod].get("PodScheduled") or {}).get("message") or ""
    events = [
        e for e in after["events"] if e["kind"] == "Pod" and e["name"] == pod and e["reason"] != "FailedScheduling"
    ]
    text = message or " ".join(e["message"] for e in events)
    details = json.dumps(
        {"message": text, "summary": explanation.summary, "kinds": sorted(explanation.kinds)}, indent=1
    )
    assert explanation.state is ExplanationState.WAITS, details
    assert explanation.summary, details
    fatal_kinds = [kinds for pattern, kinds in FATAL_MESSAGES.items() if pattern in text]
    if fatal_kinds:
        assert {r.kind for r in explanation.reasons} & fatal_kinds[0], details
        return
    clauses = parse_clauses(message)
    if not clauses:
        assert {r.kind for r in explanation.reasons} & _WITHOUT_MESSAGE, details
    for number, kinds in clauses:
        nodes = [n for g in explanation.groups if first_reason(g) in kinds for n in g.nodes]
        assert len(nodes) == number, f"{number} x {sorted(kinds)}: {nodes}\n{details}"


def first_reason(group: object) -> ReasonKind | None:
    """Returns the first reason of a group's nodes. The scheduler reports this one."""
    reasons = [*group.reasons, *(r for q in group.requests for r in q.reasons)]  # type: ignore[attr-defined]
    return reasons[0].kind if reasons else None


def parse_clauses(message: str) -> list[tuple[int, set[ReasonKind]]]:
    """Parses ``0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims.`` into numbers of nodes and kinds."""
    clauses = message.partition(" nodes are available: ")[2].partition(". ")[0]
    parsed = []
    for number, text in re.findall(r"(\d+) ([^,]+?)(?:,|$)", clauses):
        kinds = next((k for pattern, k in NODE_MESSAGES.items() if text.startswith(pattern)), None)
        assert kinds is not None, f"unknown message of the scheduler: {text}"
        parsed.append((int(number), kinds))
    return parsed
