"""The types that describe a driver's devices: frozen, and converted to JSON only for the API.

Their constructors accept any value, because drivers read values from hardware. The framework validates each device when the driver has
returned its list: an invalid value is then a fault of its device only, see :meth:`Device.faults`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..errors import InvalidObjectError, kind_of, shown
from .amounts import Amount, Capacity, NodeResource
from .extra_fields import extra_faults
from .field_conversion import (
    COUNTERS,
    OVERHEAD,
    SIMPLE_TYPES,
    ZERO,
    Attribute,
    FieldConversion,
    attribute,
    attribute_json,
    attribute_value,
    capacity_json,
    node_resource,
    not_text,
)
from .fields import rows
from .nodes import NODE_FIELDS, Nodes
from .validation import names, slices
from .validation.common import is_attribute_name
from .validation.field_errors import FieldError

__all__ = ["Attribute", "CounterSet", "Device", "Taint", "attribute_json", "attribute_value", "device_faults"]


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint of a device: new claims do not get the device unless they tolerate the taint (KEP-5055).

    Args:
        key: a qualified name, e.g. ``example.com/broken``.
        value: a label value; may be empty.
        effect: ``NoSchedule``; ``NoExecute``, which also evicts pods that use the device; or ``None``, which only informs.
    """

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def json(self) -> dict[str, Any]:
        out = {"key": self.key, "effect": self.effect}
        return out | ({"value": self.value} if self.value else {})


@dataclass(frozen=True)
class Device:
    """One device of a pool. All arguments after the name are keywords: ``Device("gpu-0", attributes={...}, capacity={...})``.

    Args:
        name: a DNS label of at most 63 characters. A reboot must not change it, because claims refer to it.
        attributes: at most 32 together with ``capacity``. A key is a C identifier of at most 32 bytes, or
            ``domain/identifier``; keys without a domain belong to the driver's domain. Values: str (64 bytes), int, bool,
            :class:`Version`, or a list of one of these, which needs the cluster's gate DRAListTypeAttributes (off by
            default). At most 48 values, counting each list item.
        capacity: amounts; strings are Kubernetes quantities such as ``40Gi``.
        taints: at most 16.
        consumes_counters: counter set → counter → amount (KEP-4815).
        compatibility_groups: counter set → names of at most 2 groups. Devices that use a counter set at the same time
            must share a group; devices without groups are compatible only with each other (KEP-5963; Kubernetes 1.37,
            gate off by default).
        node_resources: the resources of the node that the device uses, by name (KEP-5517; Kubernetes 1.37, gate off by
            default).
        allow_multiple_allocations: several claims may share the device (KEP-5075).
        binding_conditions: conditions that must be true before the scheduler binds a pod (KEP-5007). :meth:`Driver.bind` makes
            the device ready; then the framework sets them.
        binding_failure_conditions: conditions of which one is set if ``bind`` raises :class:`PermanentError`.
        binds_to_node: whether the scheduler restricts the allocation to the node that it selected for the pod.
        nodes: the nodes where the device can be used, if they differ from the pool's nodes. The pool must not belong to
            a single node.
        extra: fields that this version does not know; sent unchanged.
        data: the driver's own object; never published, available as ``claim.devices[].data``.

    A device with an invalid value is not published. :meth:`faults` returns the reasons.
    """

    name: str
    _: KW_ONLY
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, Amount | Capacity] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    consumes_counters: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    compatibility_groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    node_resources: Mapping[str, NodeResource] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    binding_conditions: Sequence[str] = ()
    binding_failure_conditions: Sequence[str] = ()
    binds_to_node: bool = False
    nodes: Nodes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    data: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        # Thousands of devices share a few names. Interning stores each once, even if the driver computes them.
        if type(self.attributes) is dict:
            shared = {sys.intern(k) if type(k) is str else k: v for k, v in self.attributes.items()}
            object.__setattr__(self, "attributes", shared)

    def faults(self) -> list[str]:
        """Returns every reason why the API server would reject the device, each with its field; empty if it would not."""
        built, faults = self.converted()
        return faults + device_faults(built)

    def json(self) -> dict[str, Any]:
        """Returns the device in the form of resource.k8s.io/v1.

        Raises :class:`InvalidObjectError` for values that have no such form.
        """
        built, faults = self.converted()
        if faults:
            raise InvalidObjectError(f"device {shown(self.name)}: {'; '.join(faults)}")
        return built

    def converted(self) -> tuple[dict[str, Any], list[str]]:
        """Returns the device as in :meth:`json` without the values that have no such form, and a sentence about each of these.

        For the framework.
        """
        fields = FieldConversion()
        out: dict[str, Any] = {"name": fields.text(self.name)}
        mappings = {
            "attributes": fields.mapping("attributes", self.attributes, attribute, {"bool": True}),
            "capacity": fields.mapping("capacity", self.capacity, capacity_json, ZERO),
            "consumesCounters": self._consumptions(fields),
            "nodeAllocatableResources": fields.mapping("node_resources", self.node_resources, node_resource, OVERHEAD),
        }
        out |= {name: value for name, value in mappings.items() if value}
        if taints := fields.items("taints", self.taints, Taint, _not_taint):
            out["taints"] = [t.json() for t in taints]
        for attribute_name, (name, kind) in simple_fields().items():
            if value := fields.simple(attribute_name, getattr(self, attribute_name), kind):
                out[name] = value
        if self.nodes is not None:
            out |= fields.nodes(self.nodes)
        if self.extra:
            faults = extra_faults(self.extra, _own_fields())
            fields.faults += faults
            out |= {} if faults else dict(self.extra)
        if out.keys() >= {"nodeAllocatableResources", "nodeAllocatableResourceMappings"}:
            fields.faults.append(
                "node_resources and nodeAllocatableResourceMappings of extra: no release stores both, so a server that drops one of "
                "them would allocate the node's resources twice; set the one of your cluster's release (1.36: extra, 1.37: node_resources)"
            )
        return out, fields.faults

    def _consumptions(self, fields: FieldConversion) -> list[dict[str, Any]]:
        consumed = fields.mapping("consumes_counters", self.consumes_counters, fields.counters, COUNTERS)
        groups = fields.mapping("compatibility_groups", self.compatibility_groups, fields.groups, [])
        fields.faults += [
            f"compatibility_groups[{name!r}]: the device consumes no counters of this counter set"
            for name in sorted(groups.keys() - consumed.keys())
        ]
        return [
            {"counterSet": name, "counters": counters}
            | ({"compatibilityGroups": groups[name]} if groups.get(name) else {})
            for name, counters in consumed.items()
        ]


@functools.cache
def simple_fields() -> Mapping[str, tuple[str, str]]:
    """Returns the attributes of Device that have the same form in JSON, each with its name there and its type."""
    known = rows("Device")
    by_name = {camel_case(f.name): f.name for f in dataclasses.fields(Device) if f.name != "name"}
    return {by_name[n]: (n, row.type) for n, row in known.items() if n in by_name and row.type in SIMPLE_TYPES}


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _not_taint(item: object) -> str:
    """Returns why a list of taints cannot contain ``item``; empty if it can."""
    if not isinstance(item, Taint):
        return kind_of(item)
    wrong = any(map(not_text, (item.key, item.value, item.effect)))
    return "a Taint whose key, value or effect is not text" if wrong else ""


@functools.cache
def _own_fields() -> frozenset[str]:
    """Returns the fields in JSON that Device writes itself."""
    return frozenset(
        {"nodeAllocatableResources", *NODE_FIELDS, *(camel_case(f.name) for f in dataclasses.fields(Device))}
    )


@dataclass(frozen=True)
class CounterSet:
    """Counters that the partitions of one physical device share (KEP-4815).

    Args:
        name: a DNS label, unique in the pool. :class:`Device` refers to it in ``consumes_counters``.
        counters: the amounts that exist, by counter. The scheduler never allocates devices that consume more.
    """

    name: str
    counters: Mapping[str, Amount]

    def faults(self) -> list[str]:
        """Returns every reason why the API server would reject the counter set; empty if it would not."""
        built, faults = self.converted()
        return faults + counter_set_faults(built)

    def json(self) -> dict[str, Any]:
        """Returns the counter set in the form of resource.k8s.io/v1. Raises :class:`InvalidObjectError`, as :meth:`Device.json`."""
        built, faults = self.converted()
        if faults:
            raise InvalidObjectError(f"counter set {shown(self.name)}: {'; '.join(faults)}")
        return built

    def converted(self) -> tuple[dict[str, Any], list[str]]:
        """Returns the same as :meth:`Device.converted`. For the framework."""
        fields = FieldConversion()
        counters = fields.mapping("counters", self.counters, capacity_json, ZERO)
        return {"name": fields.text(self.name), "counters": counters}, fields.faults


def device_faults(built: Mapping[str, Any]) -> list[str]:
    """Returns why the API server would reject a device in the form of :meth:`Device.json`; empty if it would not.

    List attributes are validated as if their gate were on, because only the server knows whether it is.
    """
    out = []
    unusual = [
        (path, k) for path in ("attributes", "capacity") for k in built.get(path) or {} if not is_attribute_name(k)
    ]
    # 1.36 accepts more than one slash, later releases reject it.
    out += [f"{path}[{k}]: must not contain more than one slash" for path, k in unusual if k.count("/") > 1]
    # the server's own message does not name the key
    out += [f"{path}[{k}]: the name is too long" for path, k in unusual if _is_long(k)]
    per_device = any(f in built for f in NODE_FIELDS)
    return out + list(map(_sentence, slices.validate_device(built, "", per_device=per_device)))


def _is_long(name: str) -> bool:
    domain, _, identifier = name.rpartition("/")
    return len(identifier.encode()) > names.MAX_IDENTIFIER or len(domain.encode()) > names.MAX_SUBDOMAIN


def _sentence(fault: FieldError) -> str:
    where = fault.field.lstrip(".")
    return f"{where}: {fault.message}" if where else fault.message


def counter_set_faults(built: Mapping[str, Any]) -> list[str]:
    """Returns why the API server would reject a counter set in the form of :meth:`CounterSet.json`."""
    return list(map(_sentence, slices.validate_counter_set(built, "")))
