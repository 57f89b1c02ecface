"""Explain examines only one of several nodes that are equal for a pod. The explanation equals that of an examination of each node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, Snapshot, explain
from packages.tools.tests.explanation.test_explain_equal_devices import (
    MODEL,
    allocated_claim,
    claim,
    comparable,
    device,
    device_class,
    node,
    pod,
    request,
    slices,
    with_unequal_devices,
)


def _node(draw: random.Random, name: str) -> JSON:
    taint = {"key": "a", "value": draw.choice("xy"), "effect": draw.choice(["NoSchedule", "PreferNoSchedule"])}
    obj = node(name, unschedulable=draw.random() < 0.1, taints=[taint] if draw.random() < 0.2 else [])
    obj["metadata"]["labels"] = {"host": name, **draw.choice([{"zone": "x"}, {"zone": "y"}, {}])}
    if draw.random() < 0.2:
        obj["status"]["allocatable"] |= {draw.choice(["pods", "example.com/plugin"]): "1"}
    return obj


def _placed(draw: random.Random, name: str, node_name: str) -> JSON:
    """Returns a pod that takes CPU, sometimes a port, and sometimes excludes the pod p from its node or zone by anti-affinity."""
    ports = [{"hostPort": 80, "containerPort": 80}] if draw.random() < 0.3 else []
    container = {"name": "main", "resources": {"requests": {"cpu": draw.choice("135")}}, "ports": ports}
    spec: JSON = {"nodeName": node_name, "containers": [container]}
    if draw.random() < 0.1:
        spec["affinity"] = {"podAntiAffinity": _required(draw.choice(["host", "zone"]), "p")}
    meta = {"name": name, "labels": {"app": draw.choice("pq")}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def _required(key: str, app: str) -> JSON:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def cluster(draw: random.Random) -> Iterator[JSON]:
    of_devices = device_class(*draw.choice([(), (MODEL,)]))
    if draw.random() < 0.5:
        of_devices["spec"]["extendedResourceName"] = "example.com/plugin"
    yield of_devices
    for i in range(12):
        name = f"n-{i}"
        yield _node(draw, name)
        yield from slices(name, [device(name, k, draw.choice(["small", "large"])) for k in range(2)], [])
        for k in range(draw.choice([0, 0, 1, 2])):
            yield _placed(draw, f"p-{i}-{k}", name)
        if draw.random() < 0.2:
            yield allocated_claim(f"c-{name}", name, [f"d-{name}-0"])


def _waiting(draw: random.Random) -> Iterator[JSON]:
    """Yields the pod p with its claim, and a random selection of requirements that a node may fail to meet."""
    container: JSON = {"name": "main", "resources": {"requests": {"cpu": draw.choice(["1", "4", "6"])}}}
    spec: JSON = {"containers": [container]}
    if draw.random() < 0.2:
        container["ports"] = [{"hostPort": 80, "containerPort": 80}]
    if draw.random() < 0.2:
        container["resources"]["requests"]["example.com/plugin"] = "1"
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"zone": "x"}
    if draw.random() < 0.2:
        fields = [{"key": "metadata.name", "operator": "In", "values": ["n-3", "n-5"]}]
        labels = [{"key": "zone", "operator": "Exists"}]
        term = draw.choice([{"matchFields": fields}, {"matchExpressions": labels}])
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    elif draw.random() < 0.3:
        kind = draw.choice(["podAffinity", "podAntiAffinity"])
        spec["affinity"] = {kind: _required(draw.choice(["host", "zone"]), "q")}
    if draw.random() < 0.2:
        selector = {"matchLabels": {"app": "q"}}
        constraint = {"maxSkew": 1, "topologyKey": draw.choice(["host", "zone"]), "labelSelector": selector}
        spec["topologySpreadConstraints"] = [constraint]
    if draw.random() < 0.2:
        yield {**_placed(draw, "rival", ""), "status": {"phase": "Pending", "nominatedNodeName": "n-4"}}
    if draw.random() < 0.2:
        own = allocated_claim("own", "n-2", ["d-n-2-1"])
        terms = [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
        own["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": terms}
        yield own
        waiting_pod = pod("own", "c", **spec)
    else:
        waiting_pod = pod("c", **spec)
    waiting_pod["metadata"]["labels"] = {"app": "p"}
    yield waiting_pod
    yield claim("c", [request(draw.choice([1, 2, 3]))])


def _with_examples(found: Explanation) -> Any:
    """Returns all of an explanation. The examples of nodes' reasons are included, because they contain the names of the nodes."""
    return comparable(found), [[(r.text, r.examples, r.command) for r in g.reasons] for g in found.groups]


@pytest.mark.parametrize("seed", range(100))
def test_an_explanation_equals_one_that_examines_each_node(seed: int) -> None:
    draw = random.Random(seed)
    objects = [*cluster(draw), *_waiting(draw)]
    explanation = explain(Snapshot.of(objects), "p")
    assert _with_examples(explanation) == _with_examples(explain(Snapshot.of(with_unequal_devices(objects)), "p"))
