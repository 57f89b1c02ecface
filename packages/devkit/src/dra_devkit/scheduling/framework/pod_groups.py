"""PodGroups: decides which claims their pods share, and for which pod or group a claim is created and reserved.

A claim belongs to the group if its entry in the pod's ``resourceClaims`` equals an entry of the group in all fields.
Source: KEP-5729; k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

GROUP, RESOURCE, KIND = "scheduling.k8s.io", "podgroups", "PodGroup"
_FIELDS = ("name", "resourceClaimName", "resourceClaimTemplateName")


def name_of(pod: Mapping[str, Any]) -> str:
    """Returns the name of the pod's PodGroup, which is in the pod's namespace, or ""."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def key_of(pod: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the index keys of the pod's PodGroup: one (namespace, name); none if the pod has no group."""
    name = name_of(pod)
    return ((pod["metadata"]["namespace"], name),) if name else ()


def shares(group: Mapping[str, Any] | None, entry: Mapping[str, Any]) -> bool:
    """Returns whether an entry of a pod's ``resourceClaims`` refers to its group's claim."""
    entries = (group["spec"].get("resourceClaims") or []) if group is not None else []
    return any(all(e.get(f) == entry.get(f) for f in _FIELDS) for e in entries)


def pod_reference(pod: Mapping[str, Any]) -> JSON:
    """Returns the entry of ``reservedFor`` for a pod."""
    meta = pod["metadata"]
    return {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}


def group_reference(group: Mapping[str, Any]) -> JSON:
    """Returns the entry of ``reservedFor`` for a PodGroup."""
    meta = group["metadata"]
    return {"apiGroup": GROUP, "resource": RESOURCE, "name": meta["name"], "uid": meta["uid"]}


def is_group(reference: Mapping[str, Any]) -> bool:
    """Returns whether an entry of ``reservedFor`` is a PodGroup."""
    return reference.get("apiGroup") == GROUP and reference.get("resource") == RESOURCE


def is_for(reference: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Returns whether an entry of ``reservedFor`` lets a pod use the claim.

    A group is compared by name only: it cannot be deleted while it has pods, so no other group can have its name.
    """
    if is_group(reference):
        return bool(name := name_of(pod)) and reference.get("name") == name
    return bool(reference["uid"] == pod["metadata"]["uid"])


def made_for(claim: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Returns whether a claim was created from a template for a pod, or for its group.

    The group's API version does not matter.
    """
    owner = next((o for o in claim["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
    if owner is None:
        return False
    if owner.get("kind") == KIND and str(owner.get("apiVersion")).startswith(f"{GROUP}/"):
        return bool(name := name_of(pod)) and owner["name"] == name
    return bool(owner["uid"] == pod["metadata"]["uid"])
