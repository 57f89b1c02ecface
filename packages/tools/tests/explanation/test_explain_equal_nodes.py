"""Explain examines only one of several nodes that are equal for a pod. The explanation equals that of an examination of each node."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, Snapshot, explain

DRIVER = "gpu.example.com"
API = "resource.k8s.io/v1"
MODEL = f'device.attributes["{DRIVER}"].model == "large"'


def node(name: str, **spec: Any) -> JSON:
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status}


def device(node_name: str, number: int, model: str, **more: Any) -> JSON:
    """Returns a device with a unique name and serial number."""
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


def allocated_claim(name: str, node_name: str, names: list[str]) -> JSON:
    results = [{"request": "r", "driver": DRIVER, "pool": node_name, "device": d} for d in names]
    allocation = {"devices": {"results": results}, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    return {**claim(name, [request(len(names))]), "status": {"allocation": allocation}}


def pod(*claims: str, **spec: Any) -> JSON:
    entries = [{"name": c, "resourceClaimName": c} for c in claims]
    spec = {"containers": [{"name": "main"}], "resourceClaims": entries, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Pending"}}


def with_unequal_devices(objects: Iterable[JSON]) -> list[JSON]:
    """Returns the objects with a capacity of another amount on each device, which no request reads: each node is examined itself."""
    out = copy.deepcopy(list(objects))
    devices = (d for o in out if o["kind"] == "ResourceSlice" for d in o["spec"].get("devices") or ())
    for number, one in enumerate(devices):
        one["capacity"]["unread"] = {"value": str(number)}
    return out


def test_claims_on_nodes_with_equal_devices_are_separate_examples() -> None:
    names = [f"n-{i}" for i in range(9)]
    objects = [o for n in names for o in (node(n), *slices(n, [device(n, 0, "small")], []))]
    holders = [allocated_claim(f"c-{n}", n, [f"d-{n}-0"]) for n in names]
    found = explain(Snapshot.of([*objects, *holders, device_class(), claim("c", [request()]), pod("c")]), "p")
    [reason] = found.groups[0].requests[0].reasons
    assert reason.devices == 9
    assert len({e.detail for e in reason.examples}) == 3


def test_lists_with_a_common_item_differ_from_lists_without_one() -> None:
    objects = [device_class(), claim("c", [request(2)], [{"matchAttribute": f"{DRIVER}/links"}]), pod("c")]
    for name, other in (("n-0", "z"), ("n-1", "b")):
        devices = [device(name, 0, "small"), device(name, 1, "small")]
        for one, links in zip(devices, (["a", "b"], [other, "c"]), strict=True):
            one["attributes"]["links"] = {"strings": links}
        objects += [node(name), *slices(name, devices, [])]
    assert explain(Snapshot.of(objects), "p").nodes == ("n-1",)


@pytest.mark.parametrize(
    "selectors", [(), (f'"card" in device.attributes["{DRIVER}"] || true',)], ids=["unread", "read"]
)
def test_the_name_of_an_attribute_with_and_without_the_domain_is_compared(selectors: tuple[str, ...]) -> None:
    objects = [device_class(), claim("c", [request(2, *selectors)], [{"matchAttribute": f"{DRIVER}/card"}]), pod("c")]
    for name, other in (("n-0", "b"), ("n-1", "a")):
        own, foreign = device(name, 0, "small"), device(name, 1, "small")
        own["attributes"]["card"] = {"string": "a"}
        foreign["attributes"][f"{DRIVER}/card"] = {"string": other}
        pool = {"name": f"{name}-other", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "nic.example.com", "nodeName": name, "pool": pool, "devices": [foreign]}
        nic = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{name}-nic"}, "spec": spec}
        objects += [node(name), *slices(name, [own], []), nic]
    assert explain(Snapshot.of(objects), "p").nodes == ("n-1",)


def test_a_device_with_a_share_without_capacity_differs_from_a_free_device() -> None:
    objects = [device_class(), claim("c", [request(1, "!device.allowMultipleAllocations")]), pod("c")]
    for name in ("n-0", "n-1"):
        uses = {"consumesCounters": [{"counterSet": "set", "counters": {"memory": {"value": "80Gi"}}}]}
        shared = device(name, 0, "small", allowMultipleAllocations=True, **uses)
        del shared["capacity"]
        counters = [{"name": "set", "counters": {"memory": {"value": "80Gi"}}}]
        objects += [node(name), *slices(name, [shared, device(name, 1, "small", **uses)], counters)]
    holder = allocated_claim("holder", "n-0", ["d-n-0-0"])
    holder["status"]["allocation"]["devices"]["results"][0]["shareID"] = "2b7b1ff0-7f3a-4b8e-9b0e-0f5d5e1f2a3b"
    assert explain(Snapshot.of([*objects, holder]), "p").nodes == ("n-1",)


def test_equal_taints_of_a_rule_and_of_the_driver_are_separate_reasons() -> None:
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
    """Yields nodes of few kinds, so that many are equal except for one detail."""
    of_devices = device_class(*draw.choice([(), (MODEL,), (f'device.driver == "{DRIVER}"',)]))
    if draw.random() < 0.5:
        of_devices["spec"]["extendedResourceName"] = "example.com/plugin"
    yield of_devices
    taint = {"taints": [{"key": "a", "effect": draw.choice(["NoSchedule", "None"])}]}
    kinds: list[list[JSON]] = [
        [draw.choice([{}, {}, {}, taint, {"allowMultipleAllocations": True}]) for _ in range(draw.choice([2, 2, 3]))]
        for _ in range(2)
    ]
    partitioned, varied = draw.random() < 0.4, draw.random() < 0.5
    cpus = {"nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": draw.choice("13")}}}}
    of_node = draw.choice([{}, {}, cpus])
    for i in range(10):
        name = f"n-{i}"
        yield _node(draw, name) if varied else node(name)
        model, links = draw.choice(["small", "large", "large"]), draw.choice(["ab", "aa", "ab", "bb"])
        devices = [device(name, k, model, **more, **of_node) for k, more in enumerate(draw.choice(kinds))]
        for k, one in enumerate(devices):
            one["attributes"]["link"] = {"string": links[k % 2]}
        counters: list[JSON] = []
        if partitioned:
            counters = [{"name": f"set-{name}", "counters": {"memory": {"value": draw.choice(["80Gi", "160Gi"])}}}]
            for one in devices:
                one["consumesCounters"] = [{"counterSet": f"set-{name}", "counters": {"memory": {"value": "80Gi"}}}]
        if draw.random() < 0.05:
            devices += devices[:1]  # a pool with a duplicate device name
        yield from list(slices(name, devices, counters))[: 1 if draw.random() < 0.05 else 2]
        whole = [d["name"] for d in devices if not d.get("allowMultipleAllocations")]
        if whole and draw.random() < 0.4:
            yield allocated_claim(f"c-{name}", name, whole[:1])
        for k in range(draw.choice([0, 0, 1, 2]) if varied else 0):
            yield _placed(draw, f"p-{i}-{k}", name)


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
    compared = draw.choice(["", "serial", "numa", "link", "link"])
    constraints = [{"matchAttribute": f"{DRIVER}/{compared}"}] if compared else []
    selectors = draw.choice([(), (MODEL,), (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("81Gi")) > 0',)])
    one = request(draw.choice([1, 2, 2, 3]), *selectors)
    if draw.random() < 0.3:
        one["exactly"] |= {"allocationMode": "All"}
        del one["exactly"]["count"]
    yield claim("c", [one], constraints)


def comparable(found: Explanation) -> object:
    """Returns the explanation in comparable form, without the examples, because each node of a group can be the example."""
    groups = [
        (g.nodes, g.fits, [(r.kind, r.text, r.change) for r in g.reasons], [
            (q.request, q.wanted, q.usable, q.devices, {(r.kind, r.text, r.change, r.devices) for r in q.reasons}) for q in g.requests
        ])
        for g in found.groups
    ]  # fmt: skip
    return found.state, found.summary.partition(" (")[0], groups, {(c.text, c.nodes) for c in found.changes}


@pytest.mark.parametrize("seed", range(150))
def test_an_explanation_equals_one_that_examines_each_node(seed: int) -> None:
    draw = random.Random(seed)
    objects = [*cluster(draw), *_waiting(draw)]
    explanation = explain(Snapshot.of(objects), "p")
    assert comparable(explanation) == comparable(explain(Snapshot.of(with_unequal_devices(objects)), "p"))
