"""Small valid objects of the resource API, which a test changes."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import JSON


def a_slice(**spec: Any) -> JSON:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    whole = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "a"}]} | spec
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": whole}


def device(**fields: Any) -> JSON:
    return a_slice(devices=[{"name": "a"} | fields])


def policy(capacity: str = "10", **fields: Any) -> JSON:
    entry = {"value": capacity, "requestPolicy": fields}
    return device(capacity={"bw": entry}, allowMultipleAllocations=True)


def claim(*requests: JSON, **devices: Any) -> JSON:
    spec = {"devices": {"requests": list(requests)} | devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}


def request(name: str = "a", **fields: Any) -> JSON:
    return {"name": name, "exactly": {"deviceClassName": "gpu"} | fields}


def template(**metadata: Any) -> JSON:
    inner = {"metadata": metadata, "spec": claim(request())["spec"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": inner,
    }
