"""The types of PodGroup, for :mod:`.server_types`. PodGroup is alpha, so the published schemas do not contain them.

Source: the Go types of scheduling.k8s.io, v1alpha2 of 1.36 and v1beta1 of 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "format": "int32"}
_EMPTY: Schema = {"type": "object", "properties": {}}


def _struct(*required: str, **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


def _list(item: Schema, key: str = "") -> Schema:
    out: dict[str, Any] = {"type": "array", "items": item, "x-kubernetes-list-type": "map" if key else "atomic"}
    if key:
        out |= {"x-kubernetes-list-map-keys": [key], "x-kubernetes-patch-merge-key": key}
        out["x-kubernetes-patch-strategy"] = "merge" if key == "type" else "merge,retainKeys"
    return out


def _both(at: str) -> Iterator[tuple[str, Schema]]:
    """Yields the types that are equal in both versions."""
    meta: Schema = {"$ref": "apis.meta.v1.ObjectMeta", "default": {}}
    spec, status = ({"$ref": f"{at}PodGroup{part}", "default": {}} for part in ("Spec", "Status"))
    yield "PodGroup", _struct("spec", apiVersion=_TEXT, kind=_TEXT, metadata=meta, spec=spec, status=status)
    conditions = _list({"$ref": "apis.meta.v1.Condition"}, "type")
    statuses = _list({"$ref": f"{at}PodGroupResourceClaimStatus"}, "name")
    yield "PodGroupStatus", _struct(conditions=conditions, resourceClaimStatuses=statuses)
    yield "PodGroupResourceClaimStatus", _struct("name", name=_TEXT, resourceClaimName=_TEXT)
    yield (
        "PodGroupResourceClaim",
        _struct("name", name=_TEXT, resourceClaimName=_TEXT, resourceClaimTemplateName=_TEXT),
    )
    yield "GangSchedulingPolicy", _struct("minCount", minCount=_NUMBER)
    yield "BasicSchedulingPolicy", _EMPTY
    policy = {p: {"$ref": f"{at}{p.title()}SchedulingPolicy"} for p in ("basic", "gang")}
    yield "PodGroupSchedulingPolicy", _struct(**policy)
    yield "PodGroupSchedulingConstraints", _struct(topology=_list({"$ref": f"{at}TopologyConstraint"}))
    yield "TopologyConstraint", _struct("key", key=_TEXT)


def _spec(at: str, **fields: Schema) -> Schema:
    claims = _list({"$ref": f"{at}PodGroupResourceClaim"}, "name")
    constraints, policy = ({"$ref": f"{at}PodGroupScheduling{part}"} for part in ("Constraints", "Policy"))
    known = {"schedulingPolicy": policy, "schedulingConstraints": constraints, "resourceClaims": claims}
    return _struct("schedulingPolicy", **known, priorityClassName={**_TEXT, "go": ""}, priority=_NUMBER, **fields)


def _alpha(at: str) -> Iterator[tuple[str, Schema]]:
    yield from _both(at)
    template: Schema = {"$ref": f"{at}PodGroupTemplateReference"}
    yield "PodGroupSpec", _spec(at, podGroupTemplateRef=template, disruptionMode=_TEXT)
    yield "PodGroupTemplateReference", _struct(workload={"$ref": f"{at}WorkloadPodGroupTemplateReference"})
    names = ("workloadName", "podGroupTemplateName")
    yield "WorkloadPodGroupTemplateReference", _struct(*names, **dict.fromkeys(names, _TEXT))


def _beta(at: str) -> Iterator[tuple[str, Schema]]:
    yield from _both(at)
    references = {"workloadRef": {"$ref": f"{at}WorkloadReference"}, "disruptionMode": {"$ref": f"{at}DisruptionMode"}}
    yield "PodGroupSpec", _spec(at, **references, preemptionPolicy=_TEXT, parentCompositePodGroupName=_TEXT)
    names = ("workloadName", "templateName")
    yield "WorkloadReference", _struct(*names, **dict.fromkeys(names, _TEXT))
    yield "DisruptionMode", _struct(single=_EMPTY, all=_EMPTY)


def kinds_and_types() -> tuple[dict[str, str], dict[str, Schema]]:
    """Returns the kinds and the types that are added."""
    versions = {"v1alpha2": _alpha, "v1beta1": _beta}
    types = {f"scheduling.{v}.{name}": s for v, of in versions.items() for name, s in of(f"scheduling.{v}.")}
    return {f"scheduling.k8s.io/{v}/PodGroup": f"scheduling.{v}.PodGroup" for v in versions}, types
