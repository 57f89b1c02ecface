"""Objects of a small cluster with GPUs, from which tests of explain and simulate build their cases."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, Gap, Snapshot, explain

DRIVER = "gpu.example.com"


MEMORY = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'


def node(name: str, **more: Any) -> JSON:
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}
    labels = {"kubernetes.io/hostname": name} | more.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": more,
        "status": status,
    }


def gpu(name: str, memory: str = "80Gi", **more: Any) -> JSON:
    return {"name": name, "attributes": {"numa": {"int": 0}}, "capacity": {"memory": {"value": memory}}} | more


def pool(name: str, *devices: JSON, generation: int = 1, count: int = 1, suffix: str = "", **more: Any) -> JSON:
    spec = {"driver": DRIVER, "nodeName": name, "devices": list(devices)}
    spec |= {"pool": {"name": name, "generation": generation, "resourceSliceCount": count}} | more
    return dra("ResourceSlice", f"{name}-slice{suffix}", spec)


def dra(kind: str, name: str, spec: JSON, **more: Any) -> JSON:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec, **more}


CLASS = dra("DeviceClass", "gpu", {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]})


def claim(name: str = "c", constraints: list[JSON] | None = None, **exactly: Any) -> JSON:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", **exactly}}
    return dra("ResourceClaim", name, {"devices": {"requests": [request], "constraints": constraints or []}})


def allocated_claim(
    name: str, node_name: str, *devices: str, users: tuple[str, ...] = ("holder",), **result: Any
) -> JSON:
    results = [{"request": "r", "driver": DRIVER, "pool": node_name, "device": d, **result} for d in devices]
    node_selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}]
    }
    allocation = {
        "devices": {"results": results},
        "nodeSelector": node_selector,
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    reserved = [{"resource": "pods", "name": u, "uid": u} for u in users]
    return claim(name) | {"status": {"allocation": allocation, "reservedFor": reserved}}


def pod(*claims: str, name: str = "p", **spec: Any) -> JSON:
    entries = [{"name": f"e{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    container = {"name": "main", "resources": spec.pop("resources", {})}
    status = spec.pop("status", {"phase": "Pending"})
    spec |= {"containers": [container], "resourceClaims": entries}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status}


def explain_objects(*objects: JSON, gaps: tuple[Gap, ...] = (), subject: str = "p") -> Explanation:
    return explain(Snapshot.of([CLASS, *objects], gaps=gaps), subject)


COUNTERS = {"sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]}


def partition(name: str, amount: str) -> JSON:
    return gpu(name, consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": amount}}}])


LABELLED = {"numa": {"int": 1}}


TEMPLATE = dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})


POD_SPEC = {
    "containers": [{"name": "main", "image": "x"}],
    "resourceClaims": [{"name": "e", "resourceClaimTemplateName": "t"}],
}


def workload(kind: str, name: str = "w", spec: JSON | None = None, **more: Any) -> JSON:
    template = {"metadata": {"labels": {"app": name}}, "spec": {**POD_SPEC, **(spec or {})}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"template": template, **more}}


def cluster(nodes: int = 2, devices: int = 2) -> list[JSON]:
    names = [f"n{i}" for i in range(nodes)]
    return [CLASS, *(node(n) for n in names), *(pool(n, *(gpu(f"g{k}") for k in range(devices))) for n in names)]
