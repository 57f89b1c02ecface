"""The types that describe a driver's devices: frozen, validated at creation, and converted to JSON only for the API."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import InvalidObjectError, describe, printable, shown
from .amounts import Amount, Capacity, NodeResource
from .nodes import NODE_FIELDS, Nodes
from .quantity import Quantity
from .validation import names, slices
from .validation.common import is_attribute_name
from .validation.field_errors import FieldError
from .version import Version

Attribute = str | int | bool | Version | Sequence[str] | Sequence[int] | Sequence[bool] | Sequence[Version]
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


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
    """One device of a pool.

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
        data: the driver's own object; never published, available as ``claim.devices[].device.data``.

    Raises :class:`InvalidObjectError` with field and rule for everything that the API server would reject.
    """

    name: str
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
    _checked: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            if isinstance(self.taints, Iterator):
                object.__setattr__(self, "taints", tuple(self.taints))  # a generator can be consumed only once
            built = self.json()
            faults = self.faults(built)
            shape = hash(msgspec.json.encode(built))
        except Exception as e:  # the values come from the driver and may have any type
            why = next(_wrong_types(self), "") or "; ".join(_extra_faults(self.extra, alone=True))
            why = why or (str(e) if isinstance(e, TypeError | ValueError) else describe(e))
            raise InvalidObjectError(f"device {shown(self.name)}: {why}") from None
        listed = self.binding_conditions or self.binding_failure_conditions or self.compatibility_groups
        if faults or listed or self.node_resources:
            if wrong := next(_wrong_types(self), ""):
                raise InvalidObjectError(f"device {shown(self.name)}: {wrong}")
        if faults:
            raise InvalidObjectError(f"device {shown(self.name)}: {'; '.join(faults)}")
        # Thousands of devices share a few names. Interning stores each once, even if the driver computes them.
        if type(self.attributes) is dict:
            object.__setattr__(self, "attributes", {sys.intern(str(k)): v for k, v in self.attributes.items()})
        object.__setattr__(self, "_checked", shape)

    def faults(self, built: Mapping[str, Any]) -> list[str]:
        """Returns why the API server would reject ``built``, the device's present JSON; empty if it would not."""
        return (_extra_faults(self.extra, alone=False) if self.extra else []) or device_faults(built)

    def was_checked(self, encoded: bytes) -> bool:
        """Returns whether ``encoded``, the device's present JSON text, equals the validated text.

        It may differ, because the device can contain mutable objects.
        """
        return self._checked == hash(encoded)

    def json(self) -> dict[str, Any]:
        """Returns the device in the form of resource.k8s.io/v1."""
        out: dict[str, Any] = {"name": self.name}
        if self.attributes:
            out["attributes"] = {k: attribute_json(v, k) for k, v in self.attributes.items()}
        if self.capacity:
            out["capacity"] = {k: _capacity_json(v, f"capacity[{k!r}]") for k, v in self.capacity.items()}
        if self.consumes_counters:
            out["consumesCounters"] = [self._consumption(s, c) for s, c in self.consumes_counters.items()]
        if self.node_resources:
            out["nodeAllocatableResources"] = {k: r.json() for k, r in self.node_resources.items()}
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

    def _consumption(self, counter_set: str, counters: Mapping[str, Amount]) -> dict[str, Any]:
        groups = list(self.compatibility_groups.get(counter_set, ()))
        consumption = {"counterSet": counter_set, "counters": counters_json(counters)}
        return consumption | ({"compatibilityGroups": groups} if groups else {})


def _has_names(value: object) -> bool:
    """Returns whether all keys of mappings are text, as JSON requires."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(inner) for key, inner in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_names, value))


def _extra_faults(extra: Mapping[str, Any], *, alone: bool) -> list[str]:
    """Returns why the API server cannot decode these fields, which would make it reject the whole slice.

    Args:
        alone: also returns why the API server would reject a device that has only these fields.
    """
    if "name" in extra:
        return ["extra: set `name` in Device(name=...), not in extra"]
    if not _has_names(extra):
        return ["extra: the name of a field is not text"]
    from .schemas import decoding, shapes  # imported only here, because the tables take memory

    try:
        slice_ = {"spec": {"devices": [{"name": "device", **extra}]}}
        read = decoding.decode(slice_, shapes.dra_shape("ResourceSlice"), [])
        return device_faults(read["spec"]["devices"][0]) if alone else []
    except decoding.DecodeError as e:
        return [f"extra: {e}"]
    except Exception as e:
        return [f"extra: {describe(e)}"]


_MAPPINGS = {
    "attributes": "names to values, {'model': 'x1'}",
    "capacity": "names to amounts, {'memory': '80Gi'}",
    "consumes_counters": "counter sets to counters with amounts, {'card': {'memory': '10Gi'}}",
    "compatibility_groups": "counter sets to lists of groups, {'card': ['x']}",
    "node_resources": "names of resources to NodeResource",
    "extra": "names of fields to JSON",
}


def _wrong_types(device: Device) -> Iterator[str]:
    """Yields fields whose type is wrong. Without this check, text would be treated as a list of letters."""
    if not isinstance(device.name, str):
        yield f"its name is {_kind(device.name)}, not text"
    for name, what in _MAPPINGS.items():
        if not isinstance(value := getattr(device, name), Mapping):
            yield f"{name} is {_kind(value)}: use a mapping of {what}"
        else:
            yield from _wrong_names(value, name)
    yield from _wrong_counters(device.consumes_counters)
    yield from _wrong_groups(device)
    kinds = {"taints": Taint, "binding_conditions": str, "binding_failure_conditions": str}
    for name, kind in kinds.items():
        value = getattr(device, name)
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | Set):
            yield f"{name} is {_kind(value)}: use a list of {kind.__name__}"
            continue
        for item in value:
            if not isinstance(item, kind):
                yield f"{name} has {_kind(item)}: use a list of {kind.__name__}"
            elif isinstance(item, Taint) and not all(isinstance(t, str) for t in (item.key, item.value, item.effect)):
                yield f"{name} has a Taint whose key, value or effect is not text"
    if device.nodes is not None and not isinstance(device.nodes, Nodes):
        yield f"nodes is {_kind(device.nodes)}: use Nodes.named('node-1') or another constructor of Nodes"


def _wrong_counters(consumed: object) -> Iterator[str]:
    for set_name, counters in consumed.items() if isinstance(consumed, Mapping) else ():
        if isinstance(counters, Mapping):
            yield from _wrong_names(counters, f"consumes_counters[{set_name!r}]")
        else:
            yield f"consumes_counters[{set_name!r}] is {_kind(counters)}: use counters with their amounts"


def _wrong_groups(device: Device) -> Iterator[str]:
    for set_name, groups in device.compatibility_groups.items():
        if isinstance(groups, str | bytes | Mapping) or not isinstance(groups, Sequence):
            yield f"compatibility_groups[{set_name!r}] is {_kind(groups)}: use a list of str"
        elif not all(isinstance(g, str) for g in groups):
            yield f"compatibility_groups[{set_name!r}] has a group that is not text"
        elif set_name not in device.consumes_counters:
            yield f"compatibility_groups[{set_name!r}]: the device consumes no counters of this counter set"
    for name, resource in device.node_resources.items():
        if not isinstance(resource, NodeResource):
            yield f"node_resources[{name!r}] is {_kind(resource)}: use a NodeResource"


def _wrong_names(value: Mapping[Any, Any], where: str) -> Iterator[str]:
    for key in value:
        if not isinstance(key, str):
            yield f"{where} has a name that is {_kind(key)}, not text"


def _kind(value: object) -> str:
    return printable(type(value).__name__)


@dataclass(frozen=True)
class CounterSet:
    """Counters that the partitions of one physical device share (KEP-4815).

    Args:
        name: a DNS label, unique in the pool. :class:`Device` refers to it in ``consumes_counters``.
        counters: the amounts that exist, by counter. The scheduler never allocates devices that consume more.
    """

    name: str
    counters: Mapping[str, Amount]

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "counters": counters_json(self.counters)}


def counters_json(counters: Mapping[str, Amount]) -> dict[str, Any]:
    return {k: _capacity_json(v, f"counters[{k!r}]") for k, v in counters.items()}


def _capacity_json(amount: Amount | Capacity, where: str) -> dict[str, Any]:
    try:
        value = amount.value if isinstance(amount, Capacity) else Quantity(amount)
        if Quantity(value).value < 0:  # the API server accepts it, but no claim could ever be allocated
            raise ValueError(f"{value} is below zero: amounts of a device must be 0 or more")
        return amount.json() if isinstance(amount, Capacity) else {"value": Quantity(amount).text}
    except (TypeError, ValueError) as e:
        raise ValueError(f"{where}: {e}") from None


def attribute_json(value: Attribute, name: str = "") -> dict[str, Any]:
    """Returns a value as a DeviceAttribute.

    Raises ``TypeError`` for a type that Kubernetes does not have.
    """
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, str):
        return {"string": value}
    if isinstance(value, Version):
        return {"version": str(value)}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview) and value:
        kinds = {next(iter(attribute_json(v, name))) for v in value}
        if len(kinds) == 1 and not kinds.intersection(slices.LIST_ATTRIBUTES):  # a list cannot contain lists
            kind = kinds.pop()
            return {f"{kind}s": [str(v) if isinstance(v, Version) else v for v in value]}
    raise TypeError(
        f"attributes[{name!r}] is {shown(value)}: use str, int, bool, Version, or a list of one of them"
        f"{_as_attribute(value)}"
    )


def _as_attribute(value: object) -> str:
    """Returns a hint for a value whose type attributes do not have."""
    if value is None:
        return " (leave out attributes without a value)"
    if isinstance(value, float):
        return " (for a float, use text, or an integer in a smaller unit)"
    if isinstance(value, bytes | bytearray):
        return " (for bytes, use value.hex() or value.decode())"
    return ""


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    """Returns the Python value of a DeviceAttribute."""
    if "version" in attribute:
        return Version(attribute["version"])
    if "versions" in attribute:
        return [Version(v) for v in attribute["versions"]]
    return next(iter(attribute.values()), None)


def device_faults(built: Mapping[str, Any]) -> list[str]:
    """Returns why the API server would reject a device in the form of :meth:`Device.json`; empty if it would not.

    List attributes are validated as if their gate were on, because only the server knows whether it is.
    """
    out = []
    for key, value in (built.get("attributes") or {}).items():
        for number in (value["int"],) if "int" in value else value.get("ints", ()):
            if not _MIN_INT <= number <= _MAX_INT:
                out.append(f"attributes[{key}]: {number} does not fit into 64 bits")
    # More than one slash in a key: 1.36 accepts it, later releases reject it.
    for path in ("attributes", "capacity"):
        deep = [key for key in built.get(path) or {} if not is_attribute_name(key) and key.count("/") > 1]
        out += [f"{path}[{key}]: must not contain more than one slash" for key in deep]
    for path in ("attributes", "capacity"):  # the server's own message does not name the key
        out += [f"{path}[{k}]: the name is too long" for k in built.get(path) or {} if _is_long(k)]
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
