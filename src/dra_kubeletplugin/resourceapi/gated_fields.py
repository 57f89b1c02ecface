"""Decides how a device is published if the API server drops one of its fields: one table, by field.

A server silently drops a field if its feature gate is off or its version does not know the field. The safe reaction
differs. A partition without its counters would be allocated together with overlapping partitions, so it must not be
published. A shareable device without its policy is a device for one claim, so it may be published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from ..base.json_types import ReadOnlyJSON
from .nodes import NODE_FIELDS

_LISTS = ("ints", "bools", "strings", "versions")
_BLOCKING_EFFECTS = {"NoSchedule", "NoExecute"}


class Gate(Enum):
    """A feature gate of the API server that fields of devices depend on. The value is its name in Kubernetes."""

    PARTITIONS = "DRAPartitionableDevices"
    """Counters (KEP-4815), and the nodes of each device."""
    TAINTS = "DRADeviceTaints"
    """Taints of devices (KEP-5055)."""
    SHARING = "DRAConsumableCapacity"
    """Devices that several claims share, and request policies (KEP-5075)."""
    BINDING = "DRADeviceBindingConditions"
    """Conditions that a controller sets before a pod is bound (KEP-5007)."""
    LISTS = "DRAListTypeAttributes"
    """Attributes with several values (KEP-5491)."""
    COMPATIBILITY = "DRADeviceCompatibilityGroups"
    """Groups of devices that may use the same counters at the same time (KEP-5963)."""
    NODE_RESOURCES = "DRANodeAllocatableResources"
    """Devices that use a node's own cpu and memory (KEP-5517)."""
    PARTITION_TYPES = "DRAPartitionableDevicesType"
    """The attribute that distinguishes the types of partitions of a pool (KEP-5677)."""
    NODE_OPERATIONS = "DRAOptionalNodeOperations"
    """Devices that no plugin needs to prepare (KEP-5945)."""


@dataclass(frozen=True)
class _Row:
    """One row of the table: the fields that depend on a gate, and the reaction if it is off.

    Args:
        uses: whether a device has such a field.
        without: returns the device as it may be published, or why it must not be published.
    """

    gate: Gate
    paths: str  # of the dropped fields, as a regular expression
    uses: Callable[[ReadOnlyJSON], bool]
    without: Callable[[ReadOnlyJSON], ReadOnlyJSON | str]


def _drop(device: ReadOnlyJSON, *fields: str) -> ReadOnlyJSON:
    return {k: v for k, v in device.items() if k not in fields}


def _without_taints(device: ReadOnlyJSON) -> ReadOnlyJSON | str:
    blocking = [t["key"] for t in device["taints"] if t.get("effect") in _BLOCKING_EFFECTS]
    if blocking:
        return f"its taint {blocking[0]} would have no effect"
    return _drop(device, "taints")


def _uses_sharing(device: ReadOnlyJSON) -> bool:
    return "allowMultipleAllocations" in device or any(
        "requestPolicy" in c for c in (device.get("capacity") or {}).values()
    )


def _without_sharing(device: ReadOnlyJSON) -> ReadOnlyJSON:
    out = _drop(device, "allowMultipleAllocations", "capacity")
    if capacity := device.get("capacity"):
        out = {**out, "capacity": {k: _drop(v, "requestPolicy") for k, v in capacity.items()}}
    return out


def _without_lists(device: ReadOnlyJSON) -> ReadOnlyJSON:
    return {**device, "attributes": {k: v for k, v in device["attributes"].items() if not any(x in v for x in _LISTS)}}


def _incompatible(device: ReadOnlyJSON) -> ReadOnlyJSON | str:
    return "it would be allocated together with incompatible devices of the same hardware"


def _has_groups(device: ReadOnlyJSON) -> bool:
    return any(c.get("compatibilityGroups") for c in device.get("consumesCounters") or ())


_NODE_RESOURCES = ("nodeAllocatableResources", "nodeAllocatableResourceMappings")


def _without_node_resources(device: ReadOnlyJSON) -> ReadOnlyJSON | str:
    mapped = [k for k, r in (device.get(_NODE_RESOURCES[0]) or {}).items() if r.get("mapping")]
    if mapped or (mapped := list(device.get(_NODE_RESOURCES[1]) or ())):
        return (
            f"the node's {mapped[0]} would be allocated twice: once with the devices, and once for the requests of pods"
        )
    # The overhead of pods is then not counted, as with drivers that do not publish it.
    return _drop(device, *_NODE_RESOURCES)


def _without_binding(device: ReadOnlyJSON) -> ReadOnlyJSON | str:
    if device.get("bindingConditions"):
        return "pods would start before its binding conditions are true"
    return _drop(device, "bindsToNode")


_TABLE = (
    _Row(
        Gate.PARTITIONS,
        r"spec\.(sharedCounters|perDeviceNodeSelection|devices\[\]\.(consumesCounters|nodeName|nodeSelector|allNodes))",
        lambda d: "consumesCounters" in d or any(f in d for f in NODE_FIELDS),
        lambda d: (
            "without counters it would be allocated together with overlapping devices of the same hardware"
            if "consumesCounters" in d
            else "the server cannot store its nodes"
        ),
    ),
    _Row(Gate.TAINTS, r"spec\.devices\[\]\.taints", lambda d: bool(d.get("taints")), _without_taints),
    _Row(
        Gate.SHARING,
        r"spec\.devices\[\]\.(allowMultipleAllocations|capacity\..*\.requestPolicy)",
        _uses_sharing,
        _without_sharing,
    ),
    _Row(
        Gate.BINDING,
        r"spec\.devices\[\]\.(bindingConditions|bindingFailureConditions|bindsToNode)",
        lambda d: any(f in d for f in ("bindingConditions", "bindingFailureConditions", "bindsToNode")),
        _without_binding,
    ),
    _Row(
        Gate.LISTS,
        rf"spec\.devices\[\]\.attributes\..*\.({'|'.join(_LISTS)})",
        lambda d: any(x in a for a in (d.get("attributes") or {}).values() for x in _LISTS),
        _without_lists,
    ),
    _Row(
        Gate.COMPATIBILITY, r"spec\.devices\[\]\.consumesCounters\[\]\.compatibilityGroups", _has_groups, _incompatible
    ),
    _Row(
        Gate.NODE_RESOURCES,
        rf"spec\.devices\[\]\.({'|'.join(_NODE_RESOURCES)})",
        lambda d: any(d.get(f) for f in _NODE_RESOURCES),
        _without_node_resources,
    ),
)
# Ranges with fractions (DRAFractionalCapacityRange) have no row, because no field is dropped. A scheduler without the
# gate rounds requests up to whole numbers: it may allocate too much, but never the same amount twice.

_OPTIONS = {"partitionTypeAttribute": Gate.PARTITION_TYPES, "skipNodeOperations": Gate.NODE_OPERATIONS}


_PLAIN = frozenset({"name", "attributes", "capacity"})
_LIST_KINDS = frozenset(_LISTS)
_NONE: frozenset[Gate] = frozenset()
_ONLY_LISTS = frozenset({Gate.LISTS})


def gates_of(device: ReadOnlyJSON) -> frozenset[Gate]:
    """Returns the gates that a device, in its JSON form, depends on."""
    # The fast path: nearly all devices have only these fields, and then only list attributes depend on a gate.
    if _PLAIN.issuperset(device) and "capacity" not in device:
        return _NONE if all(map(_LIST_KINDS.isdisjoint, (device.get("attributes") or {}).values())) else _ONLY_LISTS
    return frozenset(row.gate for row in _TABLE if row.uses(device))


def gate_of(path: str) -> Gate | None:
    """Returns the gate that is off if the field at ``path`` was dropped, or None for other fields.

    Args:
        path: within a slice, with empty brackets instead of indices.
    """
    if path.startswith("spec.") and path[5:] in _OPTIONS:
        return _OPTIONS[path[5:]]
    return next((row.gate for row in _TABLE if re.fullmatch(row.paths, path)), None)


def gates_of_options(options: ReadOnlyJSON) -> frozenset[Gate]:
    """Returns the gates that a pool's options for all its devices depend on."""
    return frozenset(_OPTIONS[name] for name in options)


def options_without(options: ReadOnlyJSON, off: Collection[Gate], *, of_this_node: bool) -> ReadOnlyJSON | str:
    """Returns a pool's options as they are published while the gates ``off`` are off, or why the pool must not be
    published.

    With the gate DRAOptionalNodeOperations off, the kubelet waits for a plugin to prepare the devices. A pool of this node
    has such a plugin. Other pools may have none, so they must not be published.
    """
    if "skipNodeOperations" in options and Gate.NODE_OPERATIONS in off and not of_this_node:
        gate = Gate.NODE_OPERATIONS.value
        return f"the API server's feature gate {gate} is off, and pods would wait on their nodes for a plugin to prepare the pool's devices"
    return {name: value for name, value in options.items() if _OPTIONS[name] not in off}


def removed_fields(device: ReadOnlyJSON, published: ReadOnlyJSON) -> list[str]:
    """Returns the fields and attributes of a device that :func:`without` removed."""
    removed = [
        f"attributes[{n}]" for n in device.get("attributes") or {} if n not in (published.get("attributes") or {})
    ]
    return removed + [f for f in device if f not in published and f != "attributes"]


def without(device: ReadOnlyJSON, off: Collection[Gate]) -> ReadOnlyJSON | str:
    """Returns a device as it is published while the gates ``off`` are off, or why it must not be published."""
    for row in _TABLE:
        if row.gate in off and row.uses(device):
            found = row.without(device)
            if isinstance(found, str):
                return f"the API server's feature gate {row.gate.value} is off, and {found}"
            device = found
    return device
