"""Objects that tests apply, with what they rarely change filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..resources.convert import GROUP

JSON = dict[str, Any]


def device_class(name: str, driver: str) -> JSON:
    """A DeviceClass of all devices of ``driver``."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]},
    }


def claim_spec(
    class_name: str,
    *,
    count: int = 1,
    selector: str = "",
    parameters: Mapping[str, Any] | None = None,
    driver: str = "",
    admin: bool = False,
) -> JSON:
    exactly: JSON = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    if admin:
        exactly["adminAccess"] = True
    devices: JSON = {"requests": [{"name": "device", "exactly": exactly}]}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": driver, "parameters": dict(parameters)}}]
    return {"devices": devices}


def template(name: str, spec: Mapping[str, Any]) -> JSON:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": dict(spec)},
    }


def claim(name: str, spec: Mapping[str, Any]) -> JSON:
    return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": dict(spec)}


def pod(name: str, *, templates: Sequence[str] = (), claims: Sequence[str] = ()) -> JSON:
    """A pod with one container that uses claims made from ``templates`` and existing ``claims``."""
    entries: list[JSON] = [{"name": f"t{i}", "resourceClaimTemplateName": t} for i, t in enumerate(templates)]
    entries += [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    container = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"]}
    container["resources"] = {"claims": [{"name": e["name"]} for e in entries]}  # type: ignore[assignment]
    spec = {"restartPolicy": "Never", "resourceClaims": entries, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
