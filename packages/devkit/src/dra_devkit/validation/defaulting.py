"""The API server's defaults: allocation mode and count of requests, operator of tolerations, the time a taint was added."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.defaulting import now


def apply(obj: dict[str, Any], kind: str, time: str = "") -> dict[str, Any]:
    """Fills in the defaults. Modifies ``obj`` in place and returns it.

    Args:
        time: set as ``timeAdded`` of taints that have none; by default the present time.
    """
    if kind == "ResourceSlice":
        tainted = [d for d in obj["spec"].get("devices") or () if d.get("taints")]
        for device in tainted:
            _taints(device, time or now())
    elif kind == "ResourceClaim":
        _claim_spec(obj["spec"])
        for result in results_of(obj):
            _tolerations(result)
    elif kind == "ResourceClaimTemplate":
        _claim_spec(obj["spec"]["spec"])
    return obj


def _taints(device: dict[str, Any], time: str) -> None:
    for taint in device.get("taints") or []:
        taint.setdefault("timeAdded", time)


def _claim_spec(spec: dict[str, Any]) -> None:
    for request in (spec.get("devices") or {}).get("requests") or []:
        for concrete in (request.get("exactly"), *(request.get("firstAvailable") or [])):
            if concrete is None:
                continue
            concrete["allocationMode"] = concrete.get("allocationMode") or "ExactCount"
            if concrete["allocationMode"] == "ExactCount":
                concrete.setdefault("count", 1)
            _tolerations(concrete)


def _tolerations(owner: dict[str, Any]) -> None:
    for toleration in owner.get("tolerations") or []:
        toleration.setdefault("operator", "Equal")
