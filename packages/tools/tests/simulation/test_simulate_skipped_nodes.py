"""Simulate skips a node that refused an earlier pod of a workload only if the node also refuses the next pod."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Simulation, Snapshot, simulate
from packages.tools.tests.objects import CLASS, allocated_claim, claim, dra, gpu, node, pod, pool

_SHARED = dra(
    "ResourceClaim", "shared", {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
)


def _cluster(r: Random) -> Iterator[JSON]:
    yield CLASS
    for i in range(6):
        name = f"n{i}"
        yield node(name, labels={"zone": r.choice("xyz"), "host": name})
        if names := [f"g{k}" for k in range(r.choice([0, 1, 2, 3]))]:
            yield pool(name, *map(gpu, names))
            if r.random() < 0.3:
                yield allocated_claim(f"h{i}", name, names[0])
        if r.random() < 0.4:
            placed = pod(name=f"p{i}", nodeName=name, resources={"requests": {"cpu": r.choice("37")}})
            placed["metadata"]["labels"] = {"app": r.choice("ab")}
            yield placed
    if r.random() < 0.3:
        wide = pool("wide", gpu("w0"), gpu("w1"))
        del wide["spec"]["nodeName"]
        yield {**wide, "spec": {**wide["spec"], "allNodes": True}}
    yield _SHARED


def _workload(r: Random, name: str) -> JSON:
    entries = [{"name": "own", "resourceClaimTemplateName": "t"}, {"name": "shared", "resourceClaimName": "shared"}]
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": r.choice("124")}}}
    spec: JSON = {
        "containers": [container],
        "resourceClaims": r.choice([entries[:1], entries[:1], entries[1:], entries]),
    }
    term = {"labelSelector": {"matchLabels": {"app": r.choice("ab")}}, "topologyKey": r.choice(["host", "zone"])}
    if r.random() < 0.5:
        spread = {**term, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [spread]
    if r.random() < 0.4:
        kind = r.choice(["podAffinity", "podAntiAffinity"])
        spec["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if r.random() < 0.2:
        container["ports"] = [{"hostPort": 80, "containerPort": 80}]
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    replicas = {"replicas": r.randint(4, 14), "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": replicas}


@pytest.mark.parametrize("seed", range(60))
def test_pods_of_one_workload_are_placed_like_pods_of_a_workload_each(seed: int) -> None:
    r = Random(seed)
    snapshot, template = Snapshot.of(_cluster(r)), dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})
    manifests = [_workload(r, name) for name in "ab"]
    single = [
        {**m, "metadata": {"name": f"{m['metadata']['name']}{i}"}, "spec": {**m["spec"], "replicas": 1}}
        for m in manifests
        for i in range(m["spec"]["replicas"])
    ]
    together, alone = (simulate(snapshot, [template, *wanted]) for wanted in (manifests, single))
    assert _placed(together) == _placed(alone)
    assert together.free == alone.free


def _placed(found: Simulation) -> list[tuple[str, tuple[str, ...]]]:
    return [(p.node, p.devices) for fit in found.workloads for p in fit.placed]
