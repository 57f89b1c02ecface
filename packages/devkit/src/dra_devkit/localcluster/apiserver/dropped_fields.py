"""Drops fields that the simulated release does not know, or whose feature gate is off.

If the stored object already uses the fields of a gate, they stay. Otherwise, an unrelated update could break a running workload.
Source: the strategies of Kubernetes, ``dropDisabledFields``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dra_kubeletplugin.base.json_types import JSON

from ...kubernetes_releases import Features
from ...schemas.object_fields import fields_at
from .kinds import ServedKind

_DEVICE = "spec.devices[]."
_RESULT = "status.allocation.devices.results[]."
_REQUESTS = ("devices.requests[].exactly.", "devices.requests[].firstAvailable[].")


def _requests(*fields: str) -> tuple[str, ...]:
    """Returns the paths of these fields in a claim's spec: in a request, and in the alternatives of a request."""
    return tuple(f"spec.{where}{field}" for where in _REQUESTS for field in fields)


_SLICE: Mapping[str, tuple[str, ...]] = {
    "DRADeviceTaints": (f"{_DEVICE}taints",),
    "DRAPartitionableDevices": (
        "spec.sharedCounters",
        "spec.perDeviceNodeSelection",
        *(f"{_DEVICE}{f}" for f in ("consumesCounters", "nodeName", "nodeSelector", "allNodes")),
    ),
    "DRADeviceBindingConditions": tuple(
        f"{_DEVICE}{f}" for f in ("bindingConditions", "bindingFailureConditions", "bindsToNode")
    ),
    "DRAConsumableCapacity": (f"{_DEVICE}allowMultipleAllocations", f"{_DEVICE}capacity.*.requestPolicy"),
    "DRANodeAllocatableResources": (f"{_DEVICE}nodeAllocatableResourceMappings", f"{_DEVICE}nodeAllocatableResources"),
    "DRAListTypeAttributes": tuple(f"{_DEVICE}attributes.*.{f}" for f in ("ints", "bools", "strings", "versions")),
    "DRAPartitionableDevicesType": ("spec.partitionTypeAttribute",),
    "DRAOptionalNodeOperations": ("spec.skipNodeOperations",),
    "DRADeviceCompatibilityGroups": (f"{_DEVICE}consumesCounters[].compatibilityGroups",),
}
_CLAIM: Mapping[str, tuple[str, ...]] = {
    "DRAPrioritizedList": ("spec.devices.requests[].firstAvailable",),
    "DRAAdminAccess": ("spec.devices.requests[].exactly.adminAccess", f"{_RESULT}adminAccess"),
    "DRADeviceTaints": (*_requests("tolerations"), f"{_RESULT}tolerations"),
    "DRAConsumableCapacity": (
        *_requests("capacity"),
        "spec.devices.constraints[].distinctAttribute",
        f"{_RESULT}shareID",
        f"{_RESULT}consumedCapacity",
        "status.devices[].shareID",
    ),
    "DRADeviceBindingConditions": (
        f"{_RESULT}bindingConditions",
        f"{_RESULT}bindingFailureConditions",
        "status.allocation.allocationTimestamp",
    ),
    "DRAResourceClaimDeviceStatus": ("status.devices",),
    "DRADerivedAttributes": _requests("derivedAttributes"),
    "DRAOptionalNodeOperations": (f"{_RESULT}skipNodeOperations",),
}
_CONTAINERS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_GATED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ResourceSlice": _SLICE,
    "ResourceClaim": _CLAIM,
    "ResourceClaimTemplate": {
        gate: tuple(p.replace("spec.", "spec.spec.", 1) for p in paths if p.startswith("spec."))
        for gate, paths in _CLAIM.items()
    },
    "PodGroup": {"DRAWorkloadResourceClaims": ("spec.resourceClaims", "status.resourceClaimStatuses")},
    "DeviceClass": {"DRAExtendedResource": ("spec.extendedResourceName",)},
    "Pod": {
        "DRAExtendedResource": ("status.extendedResourceClaimStatus",),
        "GenericWorkload": ("spec.schedulingGroup",),
        "ResourceHealthStatus": tuple(f"status.{c}[].allocatedResourcesStatus" for c in _CONTAINERS),
    },
}
_ALWAYS_OFF: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("PodGroup", "1.36"): tuple(
        f"spec.{f}" for f in ("schedulingConstraints", "disruptionMode", "priorityClassName", "priority")
    ),
    ("PodGroup", "1.37"): tuple(
        f"spec.{f}" for f in ("schedulingConstraints", "preemptionPolicy", "parentCompositePodGroupName")
    ),
}
"""Fields of gates that are off by default and that the local cluster cannot switch on.

The gates are TopologyAwareWorkloadScheduling, WorkloadAwarePreemption, PodGroupPreemptionPolicy and CompositePodGroup.
"""
_GATE_RELEASES: Mapping[str, str] = {
    "DRAListTypeAttributes": "1.36",
    "DRANodeAllocatableResources": "1.36",
    "DRAPartitionableDevicesType": "1.37",
    "DRAOptionalNodeOperations": "1.37",
    "DRADerivedAttributes": "1.37",
    "DRADeviceCompatibilityGroups": "1.37",
}
"""The first release with the fields of a gate. The fields of all other gates exist in every supported release."""
_FIELD_RELEASES = {"nodeAllocatableResourceMappings": ("1.36", "1.36"), "nodeAllocatableResources": ("1.37", "")}
"""Fields that exist only in some releases: the first and the last release. The last is empty if the newest release has the field."""


def without_unknown(kind: ServedKind, obj: JSON, features: Features) -> tuple[JSON, list[str]]:
    """Removes fields that the release does not know, as its decoder does.

    Args:
        obj: an object in v1; it is not changed.

    Returns:
        The object without these fields, and their paths.
    """
    removed: list[str] = []
    for path in _occurring(obj, [p for g, p in _paths(kind) if not _knows(features, g, p)]):
        obj = obj if removed else copy.deepcopy(obj)
        for owner, key, where in list(fields_at(obj, path)):
            del owner[key]
            removed.append(where)
    return obj, removed


def _paths(kind: ServedKind) -> Iterator[tuple[str, str]]:
    return ((gate, path) for gate, paths in _GATED.get(kind.kind, {}).items() for path in paths)


def _occurring(obj: JSON, paths: Sequence[str]) -> list[str]:
    """Returns the paths whose last name occurs in the object's JSON text, because a text search is faster than reading all devices."""
    if not paths:
        return []
    text = msgspec.json.encode(obj)
    return [p for p in paths if f'"{p.rpartition(".")[2]}":'.encode() in text]


def releases_of(kind: ServedKind, path: str) -> tuple[str, str]:
    """Returns the first and the last release with a field; empty if it exists in all supported releases before or after."""
    name = path.rpartition(".")[2]
    return next((_releases(gate, p) for gate, p in _paths(kind) if p.rpartition(".")[2] == name), ("", ""))


def _releases(gate: str, path: str) -> tuple[str, str]:
    return _FIELD_RELEASES.get(path.rpartition(".")[2], (_GATE_RELEASES.get(gate, ""), ""))


def _knows(features: Features, gate: str, path: str) -> bool:
    first, last = _releases(gate, path)
    return (not first or features.is_at_least(first)) and (not last or features.release <= last)


def drop(kind: ServedKind, obj: JSON, old: JSON | None, features: Features) -> list[tuple[str, str]]:
    """Removes fields of disabled gates in place, unless the old object already uses the gate's fields.

    Returns:
        The path and the gate of each removed field; the gate is empty if the cluster cannot switch it on.
    """
    dropped: list[tuple[str, str]] = []
    off = _ALWAYS_OFF.get((kind.kind, features.release), ())
    occurring = set(_occurring(obj, [*off, *(p for g, p in _paths(kind) if not features.has(g))]))
    for gate, paths in (*_GATED.get(kind.kind, {}).items(), *(("", (p,)) for p in off)):
        if occurring.isdisjoint(paths) or (old is not None and any(_is_used(old, p) for p in paths)):
            continue
        for path in occurring.intersection(paths):
            for owner, key, where in list(fields_at(obj, path)):
                del owner[key]
                dropped.append((where, gate))
    return dropped


def _is_used(obj: JSON, path: str) -> bool:
    return any(owner[key] not in (None, [], {}, "") for owner, key, _ in fields_at(obj, path))
