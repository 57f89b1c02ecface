"""Nodes with equal devices are examined once, and the explanation is the same as if each were examined."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from dra_kubeletplugin.analysis import Explanation, Snapshot, explain
from dra_kubeletplugin.analysis.explanation.device_keys import DeviceKeys
from dra_kubeletplugin.scheduling import cel

JSON = dict[str, Any]
DRIVER = "gpu.example.com"
API = "resource.k8s.io/v1"
MODEL = f'device.attributes["{DRIVER}"].model == "large"'


def node(name: str, **spec: Any) -> JSON:
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status}


def device(node_name: str, number: int, model: str, **more: Any) -> JSON:
    """A device whose name and serial number no other device has."""
    attributes = {
        "model": {"string": model},
        "serial": {"string": f"{node_name}-{number}"},
        "numa": {"int": number // 2},
    }
    return {
        "name": f"d-{node_name}-{number}",
        "attributes": attributes,
        "capacity": {"memory": {"value": "80Gi"}},
        **more,
    }


def slices(node_name: str, devices: list[JSON], counters: list[JSON]) -> Iterator[JSON]:
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 2 if counters else 1}
    spec = {"driver": DRIVER, "nodeName": node_name, "pool": pool}
    meta = {"name": f"{node_name}-devices"}
    yield {"apiVersion": API, "kind": "ResourceSlice", "metadata": meta, "spec": {**spec, "devices": devices}}
    if counters:
        meta = {"name": f"{node_name}-counters"}
        yield {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": meta,
            "spec": {**spec, "sharedCounters": counters},
        }


def device_class(*expressions: str) -> JSON:
    selectors = [{"cel": {"expression": e}} for e in expressions]
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}


def claim(name: str, requests: list[JSON], constraints: list[JSON] | None = None) -> JSON:
    spec = {"devices": {"requests": requests, "constraints": constraints or []}}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def request(count: int = 1, *expressions: str, **more: Any) -> JSON:
    selectors = [{"cel": {"expression": e}} for e in expressions]
    return {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count, "selectors": selectors, **more}}


def held(name: str, node_name: str, names: list[str]) -> JSON:
    results = [{"request": "r", "driver": DRIVER, "pool": node_name, "device": d} for d in names]
    allocation = {"devices": {"results": results}, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    return {**claim(name, [request(len(names))]), "status": {"allocation": allocation}}


def pod(*claims: str, **spec: Any) -> JSON:
    entries = [{"name": c, "resourceClaimName": c} for c in claims]
    spec = {"containers": [{"name": "main"}], "resourceClaims": entries, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Pending"}}


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[cel.Device]:
    """Gets the device of each evaluation of a selector."""
    found: list[cel.Device] = []
    matches = cel.Selector.matches

    def counting(self: cel.Selector, of: cel.Device) -> bool:
        found.append(of)
        return matches(self, of)

    monkeypatch.setattr(cel.Selector, "matches", counting)
    return found


def test_selectors_are_evaluated_on_one_of_5000_nodes_with_equal_devices(evaluated: list[cel.Device]) -> None:
    names = [f"n-{i}" for i in range(5000)]
    objects = [o for n in names for o in (node(n), *slices(n, [device(n, k, "small") for k in range(2)], []))]
    found = explain(Snapshot.of([*objects, device_class(MODEL), claim("c", [request()]), pod("c")]), "p")
    assert [len(g.nodes) for g in found.groups] == [5000]
    assert found.groups[0].requests[0].devices == 10_000
    assert len(set(map(id, evaluated))) == 2
    assert len(evaluated) == 4  # by the allocator, and for the reasons


def test_an_attribute_that_a_selector_reads_separates_nodes(evaluated: list[cel.Device]) -> None:
    names = [f"n-{i}" for i in range(20)]
    objects = [o for n in names for o in (node(n), *slices(n, [device(n, 0, "small")], []))]
    serial = f'device.attributes["{DRIVER}"].serial == "none"'
    found = explain(Snapshot.of([*objects, device_class(), claim("c", [request(1, serial)]), pod("c")]), "p")
    assert [len(g.nodes) for g in found.groups] == [20]
    assert len(set(map(id, evaluated))) == 20


def test_different_claims_on_nodes_with_equal_devices_are_separate_examples() -> None:
    names = [f"n-{i}" for i in range(9)]
    objects = [o for n in names for o in (node(n), *slices(n, [device(n, 0, "small")], []))]
    holders = [held(f"c-{n}", n, [f"d-{n}-0"]) for n in names]
    found = explain(Snapshot.of([*objects, *holders, device_class(), claim("c", [request()]), pod("c")]), "p")
    [reason] = found.groups[0].requests[0].reasons
    assert reason.devices == 9
    assert len({e.detail for e in reason.examples}) == 3


def test_equal_taints_of_a_rule_and_of_the_driver_are_different_reasons() -> None:
    taint = {"key": "a", "effect": "NoSchedule"}
    rule = {
        "apiVersion": API, "kind": "DeviceTaintRule", "metadata": {"name": "repair"},
        "spec": {"deviceSelector": {"driver": DRIVER, "pool": "n-0"}, "taint": taint},
    }  # fmt: skip
    objects = [rule, device_class(), claim("c", [request()]), pod("c")]
    for i in range(2):
        published = device(f"n-{i}", 0, "small", **({"taints": [dict(taint)]} if i else {}))
        objects += [node(f"n-{i}"), *slices(f"n-{i}", [published], [])]
    found = explain(Snapshot.of(objects), "p")
    ways = ("delete DeviceTaintRule repair", "the driver has to remove the taint")
    assert {c.text: c.nodes for c in found.changes} == {
        f"the request has to tolerate a:NoSchedule, or {way}": 1 for way in ways
    }


# --- random clusters --------------------------------------------------------------------------------


def cluster(draw: random.Random) -> Iterator[JSON]:
    """Nodes of few kinds, so that many are equal but for one detail."""
    yield device_class(*draw.choice([(), (MODEL,), (f'device.driver == "{DRIVER}"',)]))
    taint = {"taints": [{"key": "a", "effect": draw.choice(["NoSchedule", "None"])}]}
    kinds: list[list[JSON]] = [
        [draw.choice([{}, {}, {}, taint, {"allowMultipleAllocations": True}]) for _ in range(draw.choice([2, 2, 3]))]
        for _ in range(2)
    ]
    partitioned = draw.random() < 0.4
    for i in range(10):
        name = f"n-{i}"
        yield node(name, **draw.choice([{}, {}, {}, {"unschedulable": True}]))
        model, links = draw.choice(["small", "large", "large"]), draw.choice(["ab", "aa", "ab", "bb"])
        devices = [device(name, k, model, **more) for k, more in enumerate(draw.choice(kinds))]
        for k, one in enumerate(devices):
            one["attributes"]["link"] = {"string": links[k % 2]}
        counters: list[JSON] = []
        if partitioned:
            counters = [{"name": f"set-{name}", "counters": {"memory": {"value": draw.choice(["80Gi", "160Gi"])}}}]
            for one in devices:
                one["consumesCounters"] = [{"counterSet": f"set-{name}", "counters": {"memory": {"value": "80Gi"}}}]
        if draw.random() < 0.05:
            devices += devices[:1]  # a pool with a name that is not unique
        yield from list(slices(name, devices, counters))[: 1 if draw.random() < 0.05 else 2]
        whole = [d["name"] for d in devices if not d.get("allowMultipleAllocations")]
        if whole and draw.random() < 0.4:
            yield held(f"c-{name}", name, whole[:1])


def asked(draw: random.Random) -> list[JSON]:
    compared = draw.choice(["", "serial", "numa", "link", "link"])
    constraints = [{"matchAttribute": f"{DRIVER}/{compared}"}] if compared else []
    selectors = draw.choice([(), (MODEL,), (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("81Gi")) > 0',)])
    one = request(draw.choice([1, 2, 2, 3]), *selectors)
    if draw.random() < 0.3:
        one["exactly"] |= {"allocationMode": "All"}
        del one["exactly"]["count"]
    return [claim("c", [one], constraints), pod("c")]


def shown(found: Explanation) -> object:
    """All of an explanation but the examples, which are of any of the nodes."""
    groups = [
        (g.nodes, g.fits, [(r.kind, r.text, r.change) for r in g.reasons], [
            (q.request, q.wanted, q.usable, q.devices, {(r.kind, r.text, r.change, r.devices) for r in q.reasons}) for q in g.requests
        ])
        for g in found.groups
    ]  # fmt: skip
    return found.state, found.summary.partition(" (")[0], groups, {(c.text, c.nodes) for c in found.changes}


@pytest.mark.parametrize("seed", range(100))
def test_an_explanation_is_the_same_as_if_each_node_were_examined(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    snapshot = Snapshot.of([*cluster(draw), *asked(draw)])
    assert not snapshot.unread
    once = explain(snapshot, "p")
    monkeypatch.setattr(DeviceKeys, "of", lambda self, node: None)
    assert shown(once) == shown(explain(snapshot, "p"))
