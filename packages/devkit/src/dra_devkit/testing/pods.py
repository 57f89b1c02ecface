"""Builds the objects that tests apply, with defaults for fields that tests rarely change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import GROUP

from .claims import ClaimSpec

RestartPolicy = Literal["Always", "OnFailure", "Never"]


def device_class(name: str, driver: str) -> JSON:
    """Returns a DeviceClass that selects all devices of ``driver``."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]},
    }


def template(name: str, spec: ClaimSpec) -> JSON:
    """Returns a ResourceClaimTemplate."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec.to_json()},
    }


def claim(name: str, spec: ClaimSpec) -> JSON:
    """Returns a ResourceClaim, which several pods may share."""
    return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec.to_json()}


def pod(
    name: str, *, templates: Sequence[str] = (), claims: Sequence[str] = (), restart_policy: RestartPolicy = "Never"
) -> JSON:
    """Returns a pod with one container, ``main``, that uses claims from ``templates`` and the existing ``claims``."""
    entries = [{"name": f"t{i}", "resourceClaimTemplateName": t} for i, t in enumerate(templates)]
    entries += [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    container: JSON = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"]}
    container["resources"] = {"claims": [{"name": e["name"]} for e in entries]}
    spec = {"restartPolicy": restart_policy, "resourceClaims": entries, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
