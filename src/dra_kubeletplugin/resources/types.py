"""A device as its driver describes it: frozen, checked when made, JSON only at the edge."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidObjectError
from . import quantity, slice_rules, version
from .nodes import Nodes
from .quantity import Quantity
from .version import Version

Attribute = str | int | bool | Version | Sequence[str] | Sequence[int] | Sequence[bool] | Sequence[Version]
Amount = str | int | Quantity
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Taint:
    """Keeps claims that do not tolerate it away from a device (``NoSchedule``), or evicts them (``NoExecute``)."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def json(self) -> dict[str, Any]:
        out = {"key": self.key, "effect": self.effect}
        return out | ({"value": self.value} if self.value else {})


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """An amount of something a device has. ``policy`` is a requestPolicy (KEP-5075) for devices that are shared."""

    value: Amount
    policy: Mapping[str, Any] | None = None

    def json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"value": _amount(self.value)}
        return out | ({"requestPolicy": dict(self.policy)} if self.policy else {})


@dataclass(frozen=True)
class Device:
    """One device of a node's pool.

    Args:
        name: DNS label of 63 characters, stable over reboots: claims refer to it.
        attributes: at most 32 together with ``capacity``. A key is a C identifier of 32 bytes, or ``domain/identifier``; bare
            keys are in the driver's domain. Values: str (64 bytes), int, bool, or :class:`Version`.
        capacity: amounts; strings are Kubernetes quantities such as ``40Gi``.
        taints: at most 16.
        consumes_counters: counter set → counter → amount (KEP-4815).
        allow_multiple_allocations: several claims may share the device (KEP-5075).
        binding_conditions, binding_failure_conditions, binds_to_node: KEP-5007.
        nodes: from where the device can be used, where that differs from its pool's; only in pools of no single node.
        extra: fields that this version does not know; sent as they are.
        data: the driver's own; never published, found again in ``claim.devices[].device.data``.

    Raises :class:`InvalidObjectError` for whatever the API server would refuse, with the field and the rule.
    """

    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, Amount | Capacity] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    consumes_counters: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    binding_conditions: Sequence[str] = ()
    binding_failure_conditions: Sequence[str] = ()
    binds_to_node: bool = False
    nodes: Nodes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    data: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        try:
            faults = device_faults(self.json())
        except (TypeError, ValueError) as e:
            raise InvalidObjectError(f"device {self.name!r}: {e}") from None
        if faults:
            raise InvalidObjectError(f"device {self.name!r}: {'; '.join(faults)}")
        # Thousands of devices have the same few names: each is kept once, even where the driver computes them.
        if type(self.attributes) is dict:
            object.__setattr__(self, "attributes", {sys.intern(str(k)): v for k, v in self.attributes.items()})

    def json(self) -> dict[str, Any]:
        """The device as resource.k8s.io/v1 has it."""
        out: dict[str, Any] = {"name": self.name}
        if self.attributes:
            out["attributes"] = {k: attribute_json(v, k) for k, v in self.attributes.items()}
        if self.capacity:
            out["capacity"] = {
                k: (v if isinstance(v, Capacity) else Capacity(value=v)).json() for k, v in self.capacity.items()
            }
        if self.consumes_counters:
            out["consumesCounters"] = [
                {"counterSet": s, "counters": counters_json(c)} for s, c in self.consumes_counters.items()
            ]
        if self.taints:
            out["taints"] = [t.json() for t in self.taints]
        if self.binds_to_node:
            out["bindsToNode"] = True
        if self.binding_conditions:
            out["bindingConditions"] = list(self.binding_conditions)
        if self.binding_failure_conditions:
            out["bindingFailureConditions"] = list(self.binding_failure_conditions)
        if self.allow_multiple_allocations:
            out["allowMultipleAllocations"] = True
        if self.nodes is not None:
            out |= self.nodes.of_device()
        return out | dict(self.extra)


@dataclass(frozen=True)
class CounterSet:
    """Counters that the partitions of one physical device draw from (KEP-4815)."""

    name: str
    counters: Mapping[str, Amount]

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "counters": counters_json(self.counters)}


def counters_json(counters: Mapping[str, Amount]) -> dict[str, Any]:
    return {k: {"value": _amount(v)} for k, v in counters.items()}


def attribute_json(value: Attribute, name: str = "") -> dict[str, Any]:
    """A value as a DeviceAttribute.

    Raises ``TypeError`` for kinds that Kubernetes has not.
    """
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str):
        return {"string": value}
    if isinstance(value, Version):
        return {"version": str(value)}
    if isinstance(value, Sequence) and value:
        kinds = {next(iter(attribute_json(v, name))) for v in value}
        if len(kinds) == 1:
            kind = kinds.pop()
            return {f"{kind}s": [str(v) if isinstance(v, Version) else v for v in value]}
    raise TypeError(f"attribute {name!r} is {value!r}: give str, int, bool, Version, or a list of one of them")


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    """The Python value of a DeviceAttribute."""
    if "version" in attribute:
        return version.parse(attribute["version"])
    if "versions" in attribute:
        return [version.parse(v) for v in attribute["versions"]]
    return next(iter(attribute.values()), None)


def _amount(value: Amount) -> str:
    return str(value if isinstance(value, Quantity) else quantity.parse(str(value)))


def device_faults(built: Mapping[str, Any]) -> list[str]:
    """Why the API server would refuse a device as :meth:`Device.json` gives it; nothing where it would not.

    List attributes pass: they are behind a gate that is off by default, and only the server knows.
    """
    lists = set()
    out = []
    for key, value in (built.get("attributes") or {}).items():
        if any(kind.endswith("s") for kind in value):
            lists.add(f".attributes[{key}]")
        if not _MIN_INT <= value.get("int", 0) <= _MAX_INT:
            out.append(f"attributes[{key}].int: {value['int']} does not fit into 64 bits")
    per_device = any(f in built for f in ("nodeName", "nodeSelector", "allNodes"))
    found = (f for f in slice_rules.validate_device(built, "", per_device=per_device) if f.field not in lists)
    out += [f"{f.field.lstrip('.')}: {f.message}" for f in found]
    if built.get("bindingConditions") and not built.get("bindingFailureConditions"):
        out.append("bindingFailureConditions: required with bindingConditions")
    return out


def counter_set_faults(built: Mapping[str, Any]) -> list[str]:
    """Why the API server would refuse a counter set as :meth:`CounterSet.json` gives it."""
    return [f"{f.field.lstrip('.')}: {f.message}" for f in slice_rules.validate_counter_set(built, "")]
