"""Minimal Kubernetes objects for tests of the local cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_devkit.testing import pods
from dra_kubeletplugin.base.json_types import JSON

DRIVER = "toy.example.com"
_API = "resource.k8s.io/v1"


def device_class(name: str = "devices", driver: str = DRIVER) -> JSON:
    return pods.device_class(name, driver)


def claim_spec(*, admin: bool = False, count: int = 1, name: str = "device", device_class: str = "devices") -> JSON:
    exactly: JSON = {"deviceClassName": device_class, "count": count} | ({"adminAccess": True} if admin else {})
    return {"devices": {"requests": [{"name": name, "exactly": exactly}]}}


def template(name: str = "t", spec: JSON | None = None) -> JSON:
    inner = {"spec": spec or claim_spec()}
    return {"apiVersion": _API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": inner}


def claim(name: str = "c", spec: JSON | None = None) -> JSON:
    return {"apiVersion": _API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec or claim_spec()}


def slice_of(node: str, devices: Sequence[str | JSON], driver: str = DRIVER, name: str = "") -> JSON:
    device_objects = [{"name": d} if isinstance(d, str) else d for d in devices]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": device_objects}
    return {"apiVersion": _API, "kind": "ResourceSlice", "metadata": {"name": name or f"s-{node}"}, "spec": spec}


def pod(
    name: str, *, templates: Sequence[str] = (), claims: Sequence[str] = (), used: bool = True, **spec: Any
) -> JSON:
    """Returns a pod with one container, ``main``, that uses all claims of the pod (or none). They are named t0, t1 ... and c0, c1 ..."""
    body = pods.pod(name, templates=templates, claims=claims)
    if not used or not (templates or claims):
        del body["spec"]["containers"][0]["resources"]
    return {**body, "spec": body["spec"] | spec}
