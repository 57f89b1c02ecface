"""Devices and counters as slices have them, read back. What a server has accepted is not judged again: it may be a newer one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import quantity
from .types import Capacity, Device, RequestPolicy, Taint, attribute_value

JSON = Mapping[str, Any]


def read_device(raw: JSON) -> Device:
    """The device that ``raw`` (resource.k8s.io/v1) describes, without its nodes, the times of its taints, and ``data``.

    Raises ``AttributeError``, ``KeyError``, ``TypeError`` or ``ValueError`` for what cannot be read as one.
    """
    if not isinstance(raw["name"], str):
        raise TypeError("its name is no text")
    device = Device("device")
    fields: dict[str, Any] = {
        "name": raw["name"],
        "attributes": {str(k): attribute_value(v) for k, v in (raw.get("attributes") or {}).items()},
        "capacity": {str(k): _capacity(v) for k, v in (raw.get("capacity") or {}).items()},
        "taints": [
            Taint(key=str(t["key"]), value=str(t.get("value") or ""), effect=str(t["effect"]))
            for t in raw.get("taints") or ()
        ],
        "consumes_counters": {
            str(c["counterSet"]): read_counters(c["counters"]) for c in raw.get("consumesCounters") or ()
        },
        "allow_multiple_allocations": bool(raw.get("allowMultipleAllocations")),
        "binding_conditions": [str(c) for c in raw.get("bindingConditions") or ()],
        "binding_failure_conditions": [str(c) for c in raw.get("bindingFailureConditions") or ()],
        "binds_to_node": bool(raw.get("bindsToNode")),
    }
    for name, value in fields.items():
        object.__setattr__(device, name, value)
    device.json()  # whatever asks for it later finds it well
    return device


def read_counters(raw: JSON) -> dict[str, str]:
    """Counter → amount, as quantities that can be read. Raises as :func:`read_device`."""
    return {str(name): _amount(counter["value"]) for name, counter in raw.items()}


def _capacity(raw: JSON) -> Capacity:
    value = _amount(raw["value"])
    policy = raw.get("requestPolicy")
    return Capacity(value, None if policy is None else _policy(policy, value))


def _policy(raw: JSON, whole: str) -> RequestPolicy:
    """Fields that we do not know are passed over. Without a default a claim gets the whole capacity, as from the scheduler."""
    span = raw.get("validRange") or {}
    known = {k: span[k] for k in ("min", "max", "step") if span.get(k) is not None}
    default = whole if raw.get("default") is None else raw["default"]
    return RequestPolicy.from_json(
        {"default": default, "validValues": raw.get("validValues") or [], "validRange": known}
    )


def _amount(value: object) -> str:
    text = str(value)
    quantity.parse(text)
    return text
