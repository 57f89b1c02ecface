"""Devices as slices have them, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .types import Capacity, Device, Taint, attribute_value

JSON = Mapping[str, Any]


def read_device(raw: JSON) -> Device:
    """The device that ``raw`` (resource.k8s.io/v1) describes, without its nodes, the times of its taints, and ``data``.

    Raises :class:`InvalidObjectError`, ``AttributeError``, ``KeyError``, ``TypeError`` or ``ValueError`` for what this version
    does not understand.
    """
    return Device(
        raw["name"],
        attributes={k: attribute_value(v) for k, v in (raw.get("attributes") or {}).items()},
        capacity={k: _capacity(v) for k, v in (raw.get("capacity") or {}).items()},
        taints=[Taint(key=t["key"], value=t.get("value", ""), effect=t["effect"]) for t in raw.get("taints") or ()],
        consumes_counters={
            c["counterSet"]: {n: v["value"] for n, v in c["counters"].items()}
            for c in raw.get("consumesCounters") or ()
        },
        allow_multiple_allocations=bool(raw.get("allowMultipleAllocations")),
        binding_conditions=raw.get("bindingConditions") or (),
        binding_failure_conditions=raw.get("bindingFailureConditions") or (),
        binds_to_node=bool(raw.get("bindsToNode")),
    )


def _capacity(raw: JSON) -> Capacity:
    return Capacity(value=raw["value"], policy=raw.get("requestPolicy"))
