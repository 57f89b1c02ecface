"""Decides how a device is published if the API server drops one of its fields, by the rows of :mod:`.fields`.

A server silently drops a field if its feature gate is off or its version does not know the field. The safe reaction
differs. A partition without its counters would be allocated together with overlapping partitions, so it must not be
published. A shareable device without its policy is a device for one claim, so it may be published.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from ..base.json_types import ReadOnlyJSON
from .fields import ApiField, FieldRow, fields_of, on_since, table

_DEVICE = "spec.devices[]."


class Gate(StrEnum):
    """A feature gate of the API server that fields of devices depend on. It equals its name in Kubernetes."""

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


@dataclass
class _Node:
    """A step of the paths to fields with a gate: the field at this step, if it has a gate, and the next steps."""

    gated: ApiField | None = None
    steps: dict[str, _Node] = field(default_factory=dict)


@functools.cache
def _paths() -> _Node:
    """Returns the paths of a device's fields with a gate. ``*`` is each key."""
    # Ranges with fractions (DRAFractionalCapacityRange) are not here, because no field is dropped. A scheduler without the
    # gate rounds requests up to whole numbers: it may allocate too much, but never the same amount twice.
    root = _Node()
    for found in fields_of("ResourceSlice"):
        if found.row.gate and found.path.startswith(_DEVICE):
            node = root
            for step in found.path.removeprefix(_DEVICE).replace("[]", "").split("."):
                node = node.steps.setdefault(step, _Node())
            node.gated = found
    return root


def _used(value: Any, node: _Node) -> Iterator[tuple[ApiField, Any]]:
    """Yields each field with a gate that is set, and its value."""
    if isinstance(value, list):
        for item in value:
            yield from _used(item, node)
    elif isinstance(value, dict):
        each = node.steps.get("*")
        if each and not each.gated and each.steps.keys().isdisjoint(chain.from_iterable(value.values())):
            return  # the usual case of attributes and capacities, of which a device has dozens
        for name, inner in value.items():
            step = each or node.steps.get(name)
            if step is not None:
                if step.gated is not None and inner not in (None, [], {}, ""):
                    yield step.gated, inner
                if step.steps:
                    yield from _used(inner, step)


def _without(value: Any, node: _Node, off: Collection[str]) -> Any:
    """Returns a copy without the fields whose gate is off. An object that loses its only field is left out too."""
    if isinstance(value, list):
        return [_without(item, node, off) for item in value]
    if not isinstance(value, Mapping):
        return value
    out = {}
    for name, inner in value.items():
        step = node.steps.get(name) or node.steps.get("*")
        if step is None:
            out[name] = inner
        elif step.gated is None or step.gated.row.gate not in off:
            kept = _without(inner, step, off) if step.steps else inner
            if kept or not inner:
                out[name] = kept
    return out


def gates_of(device: ReadOnlyJSON) -> frozenset[str]:
    """Returns the gates that a device, in its JSON form, depends on."""
    return frozenset(gated.row.gate for gated, _ in _used(device, _paths()))


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    gated = (found for found in fields_of("ResourceSlice") if found.row.gate)
    return tuple((re.compile(re.escape(f.path).replace(r"\*", ".*")), f.row.gate) for f in gated)


def gate_of(path: str) -> str:
    """Returns the gate that is off if the field at ``path`` was dropped; empty for other fields.

    Args:
        path: within a slice, with empty brackets instead of indices.
    """
    return next((gate for pattern, gate in _patterns() if pattern.fullmatch(path)), "")


def slice_gates() -> tuple[str, ...]:
    """Returns the gates that fields of slices depend on."""
    return tuple(dict.fromkeys(gate for _, gate in _patterns()))


def pool_row(name: str) -> FieldRow:
    """Returns the row of a field that applies to all devices of a pool."""
    return next(found.row for found in fields_of("ResourceSlice") if found.path == f"spec.{name}")


def gates_of_options(options: ReadOnlyJSON) -> frozenset[str]:
    """Returns the gates that a pool's options for all its devices depend on."""
    return frozenset(pool_row(name).gate for name in options)


def options_without(options: ReadOnlyJSON, off: Collection[str], *, of_this_node: bool) -> ReadOnlyJSON | str:
    """Returns a pool's options as they are published while the gates ``off`` are off, or why the pool must not be
    published.

    With the gate DRAOptionalNodeOperations off, the kubelet waits for a plugin to prepare the devices. A pool of this node
    has such a plugin. Other pools may have none, so they must not be published.
    """
    dropped = {name: row for name in options if (row := pool_row(name)).gate in off}
    for row in dropped.values():
        if row.refuse_remote and not of_this_node:
            return f"{is_off(row.gate)}, and {row.refuse_remote}"
    return {name: value for name, value in options.items() if name not in dropped}


def removed_fields(device: ReadOnlyJSON, published: ReadOnlyJSON) -> list[str]:
    """Returns the fields and attributes of a device that :func:`without` removed."""
    removed = [
        f"attributes[{n}]" for n in device.get("attributes") or {} if n not in (published.get("attributes") or {})
    ]
    return removed + [f for f in device if f not in published and f != "attributes"]


def without(device: ReadOnlyJSON, off: Collection[str]) -> ReadOnlyJSON | str:
    """Returns a device as it is published while the gates ``off`` are off, or why it must not be published."""
    for gated, value in _used(device, _paths()):
        row = gated.row
        if row.gate in off and row.refuse:
            for item in value if isinstance(value, list) else [value]:
                if not row.harmless or any(item.get(name) != value for name, value in row.harmless.items()):
                    reason = row.refuse.format_map(item) if isinstance(item, Mapping) else row.refuse
                    return f"{is_off(row.gate, gated)}, and {reason}"
    published: ReadOnlyJSON = _without(device, _paths(), off)
    return published


def is_off(gate: str, of: ApiField | None = None) -> str:
    """Returns the clause that a gate is off, with the release in which it is on by default.

    Args:
        of: the dropped field. A server with the gate also drops the field if its release is too old or too new for it.
    """
    on = on_since(gate)
    default = f" (on by default since Kubernetes {on})" if on else ""
    other = ""
    if of is not None and of.since and of.since != next(iter(table().gates[gate].stages)):
        other = f", or Kubernetes is older than {of.since}"
    if of is not None and of.until:
        other += f", or Kubernetes is newer than {of.until}"
    return f"the API server's feature gate {gate}{default} is off{other}"
