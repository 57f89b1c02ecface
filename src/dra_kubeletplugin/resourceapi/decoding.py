"""Reads devices and counters back from slices.

Values are not validated, because a newer server may have accepted newer values.
"""

from __future__ import annotations

from typing import Any

from ..base.json_types import ReadOnlyJSON
from .amounts import Capacity, NodeResource
from .quantity import Quantity
from .types import Device, Taint, attribute_value, simple_fields


def read_device(raw: ReadOnlyJSON) -> Device:
    """Reads a device in the form of resource.k8s.io/v1, without its nodes, the times of its taints, and ``data``.

    Raises ``AttributeError``, ``KeyError``, ``TypeError`` or ``ValueError`` if it is malformed.
    """
    if not isinstance(raw["name"], str):
        raise TypeError("the device's name is not text")
    device = Device("device")
    fields: dict[str, Any] = {
        "name": raw["name"],
        "attributes": {str(k): attribute_value(v) for k, v in (raw.get("attributes") or {}).items()},
        "capacity": {str(k): _capacity(v) for k, v in (raw.get("capacity") or {}).items()},
        # An empty list becomes (), the default value, so that equal devices compare equal.
        "taints": [
            Taint(key=str(t["key"]), value=str(t.get("value") or ""), effect=str(t["effect"]))
            for t in raw.get("taints") or ()
        ]
        or (),
        "consumes_counters": {
            str(c["counterSet"]): read_counters(c["counters"]) for c in raw.get("consumesCounters") or ()
        },
        "compatibility_groups": {
            str(c["counterSet"]): [str(g) for g in c["compatibilityGroups"]]
            for c in raw.get("consumesCounters") or ()
            if c.get("compatibilityGroups")
        },
        "node_resources": {
            str(name): _node_resource(r) for name, r in (raw.get("nodeAllocatableResources") or {}).items()
        },
    }
    for attribute, (name, kind) in simple_fields().items():
        value = raw.get(name)
        if kind == "[]string":
            fields[attribute] = [str(item) for item in value or ()] or ()
        else:
            fields[attribute] = bool(value) if kind == "bool" else str(value or "")
    for name, value in fields.items():
        object.__setattr__(device, name, value)
    device.json()  # raises now instead of at a later use
    return device


def read_counters(raw: ReadOnlyJSON) -> dict[str, str]:
    """Returns the amount of each counter as text, by the counter's name. Raises the same exceptions as :func:`read_device`."""
    return {str(name): _amount(counter["value"]) for name, counter in raw.items()}


def _node_resource(raw: ReadOnlyJSON) -> NodeResource:
    mapping, overhead = raw.get("mapping") or {}, raw.get("overhead") or {}
    return NodeResource(
        per_device=mapping.get("deviceMultiplier"),
        capacity=str(mapping.get("capacityKey") or ""),
        per_unit=mapping.get("capacityMultiplier"),
        per_pod=overhead.get("perPod"),
        per_container=overhead.get("perContainer"),
    )


def _capacity(raw: ReadOnlyJSON) -> Capacity:
    try:
        return Capacity.from_json(raw)
    except ValueError:
        # The policy is of a newer version. It is not needed: the server has already rounded the consumed amounts.
        return Capacity(_amount(raw["value"]))


def _amount(value: object) -> str:
    return str(Quantity(str(value)))
