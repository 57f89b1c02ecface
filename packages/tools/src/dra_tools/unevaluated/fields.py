"""The fields of resource.k8s.io that are stored, and that the allocator of this package does not evaluate: one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dra_devkit.schemas.object_fields import fields_at
from dra_kubeletplugin.base.json_types import ReadOnlyJSON


@dataclass(frozen=True)
class UnevaluatedField:
    """One row of the table.

    Args:
        path: within an object of ``kind``, see :mod:`.object_fields`.
        feature: its name in sentences, with its number in the list of Kubernetes' enhancements.
        gate: its feature gate.
        decides: whether the feature changes which devices a pod gets.
    """

    kind: str
    path: str
    feature: str
    gate: str
    decides: bool = True


_DERIVED = "derived attributes (KEP-6080)"
_NODE_RESOURCES = "node allocatable resources (KEP-5517)"
_OF_CLAIMS = tuple(
    UnevaluatedField(
        "ResourceClaim", f"spec.devices.requests[].{where}.derivedAttributes", _DERIVED, "DRADerivedAttributes"
    )
    for where in ("exactly", "firstAvailable[]")
)
TABLE = (
    *_OF_CLAIMS,
    *(
        UnevaluatedField("ResourceSlice", f"spec.devices[].{name}", _NODE_RESOURCES, "DRANodeAllocatableResources")
        for name in ("nodeAllocatableResources", "nodeAllocatableResourceMappings")
    ),
    UnevaluatedField(
        "ResourceSlice",
        "spec.partitionTypeAttribute",
        "types of partitions (KEP-5677)",
        "DRAPartitionableDevicesType",
        decides=False,
    ),
)


def unevaluated_features(obj: ReadOnlyJSON, *, deciding: bool = False) -> Iterator[str]:
    """Yields the features that a claim, template or slice uses and that are not evaluated, each once.

    Args:
        deciding: only features that change which devices a pod gets.
    """
    kind, inner = str(obj.get("kind")), obj
    if kind == "ResourceClaimTemplate":
        kind, inner = "ResourceClaim", obj.get("spec") or {}
    rows = [row for row in TABLE if row.kind == kind and (row.decides or not deciding)]
    used = (row.feature for row in rows if any(parent[key] for parent, key, _ in fields_at(inner, row.path)))
    yield from dict.fromkeys(used)


def with_device(sl: ReadOnlyJSON, device: str) -> ReadOnlyJSON:
    """Returns a slice with only one of its devices."""
    spec = sl["spec"]
    return {**sl, "spec": {**spec, "devices": [d for d in spec.get("devices") or [] if d["name"] == device]}}
