"""What becomes of a device where the API server drops a field of it: decided by field, in one table.

A server whose feature gate is off, or whose version does not know a field, drops it silently. What is then safe differs: a
partition without its counters would be given away beside its neighbours, a share without its policy is just a whole device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

JSON = Mapping[str, Any]
_LISTS = ("ints", "bools", "strings", "versions")
_NODES = ("nodeName", "nodeSelector", "allNodes")
_KEEPS_AWAY = {"NoSchedule", "NoExecute"}


class Gate(Enum):
    """A feature gate of the API server that fields of devices depend on; the value is its name there."""

    PARTITIONS = "DRAPartitionableDevices"
    """Counters (KEP-4815), and nodes said device by device."""
    TAINTS = "DRADeviceTaints"
    """Taints of devices (KEP-5055)."""
    SHARING = "DRAConsumableCapacity"
    """Devices for several claims, and request policies (KEP-5075)."""
    BINDING = "DRADeviceBindingConditions"
    """Conditions that a controller sets before a pod is bound (KEP-5007)."""
    LISTS = "DRAListTypeAttributes"
    """Attributes with several values (KEP-5491)."""
    COMPATIBILITY = "DRADeviceCompatibilityGroups"
    """Groups of devices that may draw from the same counters at once (KEP-5963)."""
    NODE_RESOURCES = "DRANodeAllocatableResources"
    """Devices that take of a node's own cpu and memory (KEP-5517)."""
    PARTITION_TYPES = "DRAPartitionableDevicesType"
    """The attribute that tells the kinds of partitions of a pool apart (KEP-5677)."""
    NODE_OPERATIONS = "DRAOptionalNodeOperations"
    """Devices that no plugin has to prepare (KEP-5945)."""


@dataclass(frozen=True)
class _Row:
    """One line of the table: which paths of a spec depend on a gate, and what is done where it is off.

    ``without`` answers the device as it may be published then, or why it must not be.
    """

    gate: Gate
    paths: str  # of what is dropped, as a pattern
    uses: Callable[[JSON], bool]
    without: Callable[[JSON], JSON | str]


def _drop(device: JSON, *fields: str) -> JSON:
    return {k: v for k, v in device.items() if k not in fields}


def _untainted(device: JSON) -> JSON | str:
    kept_away = [t["key"] for t in device["taints"] if t.get("effect") in _KEEPS_AWAY]
    if kept_away:
        return f"its taint {kept_away[0]} would keep nobody away"
    return _drop(device, "taints")


def _uses_sharing(device: JSON) -> bool:
    return "allowMultipleAllocations" in device or any(
        "requestPolicy" in c for c in (device.get("capacity") or {}).values()
    )


def _exclusive(device: JSON) -> JSON:
    out = _drop(device, "allowMultipleAllocations", "capacity")
    if capacity := device.get("capacity"):
        out = {**out, "capacity": {k: _drop(v, "requestPolicy") for k, v in capacity.items()}}
    return out


def _without_lists(device: JSON) -> JSON:
    return {**device, "attributes": {k: v for k, v in device["attributes"].items() if not any(x in v for x in _LISTS)}}


def _mixed(device: JSON) -> JSON | str:
    return "it would be given away together with devices of the same hardware that exclude it"


def _has_groups(device: JSON) -> bool:
    return any(c.get("compatibilityGroups") for c in device.get("consumesCounters") or ())


_NODE_RESOURCES = ("nodeAllocatableResources", "nodeAllocatableResourceMappings")


def _unaccounted(device: JSON) -> JSON | str:
    mapped = [k for k, r in (device.get(_NODE_RESOURCES[0]) or {}).items() if r.get("mapping")]
    if mapped or (mapped := list(device.get(_NODE_RESOURCES[1]) or ())):
        return f"the node's {mapped[0]} would be given away twice: by device, and by what pods request"
    return _drop(device, *_NODE_RESOURCES)  # what pods cost beside the device is not counted, as without a driver


def _unbound(device: JSON) -> JSON | str:
    if device.get("bindingConditions"):
        return "pods would start before its binding conditions are true"
    return _drop(device, "bindsToNode")


_TABLE = (
    _Row(
        Gate.PARTITIONS,
        r"spec\.(sharedCounters|perDeviceNodeSelection|devices\[\]\.(consumesCounters|nodeName|nodeSelector|allNodes))",
        lambda d: "consumesCounters" in d or any(f in d for f in _NODES),
        lambda d: (
            "without counters it would be given away together with others of the same hardware"
            if "consumesCounters" in d
            else "the server cannot say on which nodes it is"
        ),
    ),
    _Row(Gate.TAINTS, r"spec\.devices\[\]\.taints", lambda d: bool(d.get("taints")), _untainted),
    _Row(
        Gate.SHARING,
        r"spec\.devices\[\]\.(allowMultipleAllocations|capacity\..*\.requestPolicy)",
        _uses_sharing,
        _exclusive,
    ),
    _Row(
        Gate.BINDING,
        r"spec\.devices\[\]\.(bindingConditions|bindingFailureConditions|bindsToNode)",
        lambda d: any(f in d for f in ("bindingConditions", "bindingFailureConditions", "bindsToNode")),
        _unbound,
    ),
    _Row(
        Gate.LISTS,
        rf"spec\.devices\[\]\.attributes\..*\.({'|'.join(_LISTS)})",
        lambda d: any(x in a for a in (d.get("attributes") or {}).values() for x in _LISTS),
        _without_lists,
    ),
    _Row(Gate.COMPATIBILITY, r"spec\.devices\[\]\.consumesCounters\[\]\.compatibilityGroups", _has_groups, _mixed),
    _Row(
        Gate.NODE_RESOURCES,
        rf"spec\.devices\[\]\.({'|'.join(_NODE_RESOURCES)})",
        lambda d: any(d.get(f) for f in _NODE_RESOURCES),
        _unaccounted,
    ),
)
# Ranges with fractions (DRAFractionalCapacityRange) are no row: nothing is dropped, and a scheduler without the gate rounds what a
# claim asks for up to whole numbers. It gives too much away, never twice.

_OPTIONS = {"partitionTypeAttribute": Gate.PARTITION_TYPES, "skipNodeOperations": Gate.NODE_OPERATIONS}


_PLAIN = frozenset({"name", "attributes", "capacity"})
_LIST_KINDS = frozenset(_LISTS)
_NONE: frozenset[Gate] = frozenset()
_ONLY_LISTS = frozenset({Gate.LISTS})


def gates_of(device: JSON) -> frozenset[Gate]:
    """The gates that a device as it would be sent depends on."""
    if _PLAIN.issuperset(device) and "capacity" not in device:  # nearly all are: only lists are left to look for
        return _NONE if all(map(_LIST_KINDS.isdisjoint, (device.get("attributes") or {}).values())) else _ONLY_LISTS
    return frozenset(row.gate for row in _TABLE if row.uses(device))


def gate_of(path: str) -> Gate | None:
    """The gate that is off where ``path`` of a slice, with empty brackets for indexes, was dropped; None for other fields."""
    if path.startswith("spec.") and path[5:] in _OPTIONS:
        return _OPTIONS[path[5:]]
    return next((row.gate for row in _TABLE if re.fullmatch(row.paths, path)), None)


def gates_of_options(options: JSON) -> frozenset[Gate]:
    """The gates that what a pool says of all its devices at once depends on."""
    return frozenset(_OPTIONS[name] for name in options)


def options_without(options: JSON, off: Collection[Gate], *, of_this_node: bool) -> JSON | str:
    """What a pool says of all its devices, as it is published while gates are ``off``; a sentence where the pool must not be.

    The plugin of a node prepares what it would be spared; nobody does for a pool that is not a node's own.
    """
    if "skipNodeOperations" in options and Gate.NODE_OPERATIONS in off and not of_this_node:
        gate = Gate.NODE_OPERATIONS.value
        return f"the API server's feature gate {gate} is off, and pods would wait on their nodes for a plugin to prepare its devices"
    return {name: value for name, value in options.items() if _OPTIONS[name] not in off}


def lost(device: JSON, published: JSON) -> list[str]:
    """Fields and attributes of a device that :func:`without` took away."""
    gone = [f"attributes[{n}]" for n in device.get("attributes") or {} if n not in (published.get("attributes") or {})]
    return gone + [f for f in device if f not in published and f != "attributes"]


def without(device: JSON, off: Collection[Gate]) -> JSON | str:
    """A device as it is published while gates are ``off``; a sentence where it must not be."""
    for row in _TABLE:
        if row.gate in off and row.uses(device):
            found = row.without(device)
            if isinstance(found, str):
                return f"the API server's feature gate {row.gate.value} is off, and {found}"
            device = found
    return device
