"""Validates ResourceSlices (v1, as of 1.34 to 1.37).

The plugin validates devices with the same rules before it sends them, so that a test finds errors before a cluster
does. Functions take objects from :mod:`dra_devkit.schemas.decoding` and return every error. Gated fields are validated as if their
gate were on, because a server without the gate drops them before validation. :class:`Dialect` has the other
differences between releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...base.json_types import ReadOnlyJSON
from .. import version
from . import names
from .capacity import capacity as capacity_faults
from .common import (
    TAINT_EFFECTS,
    entry,
    is_attribute_name,
    items,
    node_selector,
    qualified_name,
    taint_effect,
    taint_key,
)
from .field_errors import FieldError, duplicate, invalid, invalids, required, too_long, too_many, unsupported
from .node_resources import node_resources

MAX_DEVICES_IN_SLICE = 128
MAX_DEVICES_WITH_EXTRAS = 64  # extras: taints, consumed counters, list attributes
MAX_COUNTER_SETS = 8
MAX_COUNTERS_PER_SET = 32
MAX_CONSUMPTIONS = 2
MAX_CONSUMED_COUNTERS = 2048
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_VALUES = 48  # scalars, and the items of lists
MAX_TAINTS = 16
MAX_BINDING_CONDITIONS = 4
MAX_VALUE_BYTES = 64
MAX_COMPATIBILITY_GROUPS = 2
SKIPPED_OPERATIONS = ("*", "NodePrepareResources", "NodeUnprepareResources")
LIST_ATTRIBUTES = ("ints", "bools", "strings", "versions")
_LISTS = frozenset(LIST_ATTRIBUTES)
_MAX_KEY = names.MAX_DOMAIN + 1 + names.MAX_IDENTIFIER


@dataclass(frozen=True)
class Dialect:
    """The differences in validation between releases. The defaults are the rules of the newest release.

    Attributes:
        fractions: ranges of capacities are validated in thousandths (gate DRAFractionalCapacityRange).
        effects: the allowed effects of taints; the effect ``None`` is allowed since 1.35.
        separate_slices: a slice must not have both counter sets and devices (since 1.35).
    """

    fractions: bool = True
    effects: tuple[str, ...] = TAINT_EFFECTS
    separate_slices: bool = True


NEWEST = Dialect()


def slice_options(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of the fields that apply to all devices of a slice, as of 1.37."""
    out: list[FieldError] = []
    attribute = spec.get("partitionTypeAttribute")
    if attribute is not None:
        where = f"{path}.partitionTypeAttribute"
        out += qualified_name(attribute, where)
        if "/" not in attribute:
            out.append(invalid(where, attribute, "must include the domain: DOMAIN/IDENTIFIER"))
    skipped, where = spec.get("skipNodeOperations") or [], f"{path}.skipNodeOperations"

    def check(operation: str, at: str) -> list[FieldError]:
        return [] if operation in SKIPPED_OPERATIONS else [unsupported(at, operation, SKIPPED_OPERATIONS)]

    out += items(skipped, len(SKIPPED_OPERATIONS), check, where, str)
    if "NodePrepareResources" in skipped and not {"*", "NodeUnprepareResources"}.intersection(skipped):
        rule = "NodePrepareResources can only be skipped together with NodeUnprepareResources"
        out.append(invalid(where, skipped, rule))
    return out


def max_devices(devices: list[Any]) -> int:
    """Returns the maximum number of devices in one slice that contains these devices."""
    for d in devices:
        if d.get("taints") or d.get("consumesCounters"):
            return MAX_DEVICES_WITH_EXTRAS
        if not all(map(_LISTS.isdisjoint, (d.get("attributes") or {}).values())):
            return MAX_DEVICES_WITH_EXTRAS
    return MAX_DEVICES_IN_SLICE


def exactly_one_place(
    owner: ReadOnlyJSON, path: str, flags: tuple[str, ...], empty: str, rule: str, *, one_term: bool = False
) -> list[FieldError]:
    """Validates the nodes of a slice or device: exactly one of node name, node selector and ``flags`` must be set."""
    out: list[FieldError] = []
    given = []
    if (node := owner.get("nodeName")) is not None:
        if node:
            given.append("`nodeName`")
            out += invalids(f"{path}.nodeName", node, names.subdomain(node))
        else:
            out.append(invalid(f"{path}.nodeName", "", empty))
    if (selector := owner.get("nodeSelector")) is not None:
        given.append("`nodeSelector`")
        out += node_selector(selector, f"{path}.nodeSelector", one_term=one_term)
    for flag in flags:
        if (value := owner.get(flag)) is not None:
            if value:
                given.append(f"`{flag}`")
            else:
                out.append(invalid(f"{path}.{flag}", False, "must be either unset or set to true"))
    if not given:
        out.append(required(path, rule))
    elif len(given) > 1:
        out.append(invalid(path, "{" + ", ".join(given) + "}", rule))
    return out


def validate_device(
    device: ReadOnlyJSON,
    path: str,
    *,
    per_device: bool = False,
    old: ReadOnlyJSON | None = None,
    dialect: Dialect = NEWEST,
) -> list[FieldError]:
    """Returns every error of one device of a slice.

    Capacity and taints that equal the ``old`` device's are not validated again.
    """
    out = invalids(f"{path}.name", device["name"], names.label(device["name"]))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > MAX_ATTRIBUTES_AND_CAPACITIES:
        rule = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}"
        out.append(invalid(path, total, rule))
    if not all(map(_is_plain, attributes, attributes.values())) or total > MAX_ATTRIBUTE_VALUES:
        out += _attributes(attributes, path)
    multiple = bool(device.get("allowMultipleAllocations"))
    for key in sorted(capacity) if old is None or capacity != (old.get("capacity") or {}) else ():
        if not is_attribute_name(key):
            out += qualified_name(key, f"{path}.capacity")
        where = entry(f"{path}.capacity", key, _MAX_KEY)
        out += capacity_faults(capacity[key], where, multiple=multiple, fractions=dialect.fractions)
    taints, consumed = device.get("taints") or [], device.get("consumesCounters") or []
    if taints and (old is None or taints != (old.get("taints") or [])):
        out += items(taints, MAX_TAINTS, lambda t, at: validate_taint(t, at, dialect), f"{path}.taints")
    if consumed:
        out += items(consumed, MAX_CONSUMPTIONS, _consumption, f"{path}.consumesCounters", lambda c: c["counterSet"])
    if device.get("nodeAllocatableResources") or device.get("nodeAllocatableResourceMappings"):
        out += node_resources(device, path)
    out += bindings(device, path)
    return out + _device_nodes(device, path, per_device=per_device)


def _attributes(attributes: ReadOnlyJSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    values = sum(map(_count, attributes.values()))
    if values > MAX_ATTRIBUTE_VALUES:
        rule = f"the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}"
        out.append(invalid(path, values, rule))
    for key in sorted(attributes):
        if not is_attribute_name(key):
            out += qualified_name(key, f"{path}.attributes")
        out += _attribute(attributes[key], entry(f"{path}.attributes", key, _MAX_KEY))
    return out


def _is_plain(key: str, value: ReadOnlyJSON) -> bool:
    """Returns whether an attribute is valid and of a common kind, which is quick to check."""
    if len(value) != 1 or not is_attribute_name(key):
        return False
    ((kind, given),) = value.items()
    if kind == "string":
        return type(given) is str and given.isascii() and len(given) <= MAX_VALUE_BYTES
    return kind in {"int", "bool"} and given is not None


def _count(attribute: ReadOnlyJSON) -> int:
    for kind, value in attribute.items():
        if kind in LIST_ATTRIBUTES and value:
            return len(value)
    return 1


def _attribute(value: ReadOnlyJSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    kinds = [kind for kind, given in value.items() if given is not None]
    for kind in kinds:
        given, where = value[kind], f"{path}.{kind}"
        listed = kind in LIST_ATTRIBUTES
        if listed and not given:
            out.append(invalid(where, given, "must not be empty if specified"))
        if kind.startswith(("string", "version")):
            for i, text in enumerate(given if listed else [given]):
                out += _text(text, f"{where}[{i}]" if listed else where, version_text=kind.startswith("version"))
    if len(kinds) != 1:
        go = {f"{k.capitalize().removesuffix('s')}Value{'s' * k.endswith('s')}": value.get(k) for k in kinds}
        out.append(invalid(path, go or "", "exactly one value must be specified"))
    return out


def _text(value: str, path: str, *, version_text: bool) -> list[FieldError]:
    out: list[FieldError] = []
    if version_text and not version.is_semantic(value):
        out.append(invalid(path, value, "must be a string compatible with semver.org spec 2.0.0"))
    return out + ([too_long(path, MAX_VALUE_BYTES)] if len(value.encode()) > MAX_VALUE_BYTES else [])


def _counters(counters: ReadOnlyJSON | None, path: str) -> list[FieldError]:
    if not counters:
        return [required(path)]
    out: list[FieldError] = []
    if len(counters) > MAX_COUNTERS_PER_SET:
        return [too_many(path, len(counters), MAX_COUNTERS_PER_SET)]
    for key in sorted(counters):
        if not names.is_label(key):
            out += invalids(path, key, names.label(key))
    return out


def validate_counter_set(counter_set: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of one set of shared counters."""
    out = _label_or_required(counter_set["name"], f"{path}.name")
    return out + _counters(counter_set.get("counters"), f"{path}.counters")


def _consumption(consumption: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = _label_or_required(consumption["counterSet"], f"{path}.counterSet")
    out += _counters(consumption.get("counters"), f"{path}.counters")
    groups = consumption.get("compatibilityGroups")

    def check(group: str, at: str) -> list[FieldError]:
        return [] if group else [required(at)]

    return out + items(groups, MAX_COMPATIBILITY_GROUPS, check, f"{path}.compatibilityGroups", str)


def _label_or_required(value: str, path: str) -> list[FieldError]:
    return invalids(path, value, names.label(value)) if value else [required(path)]


def validate_taint(taint: ReadOnlyJSON, path: str, dialect: Dialect = NEWEST) -> list[FieldError]:
    """Returns every error of one device taint."""
    out = taint_key(taint["key"], f"{path}.key")
    if value := taint.get("value"):
        out += invalids(f"{path}.value", value, names.label_value(value))
    return out + taint_effect(taint["effect"], f"{path}.effect", dialect.effects)


def bindings(owner: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of the binding conditions of a device or of an allocation's result. Both kinds must be set, or none."""
    conditions, failures = owner.get("bindingConditions") or [], owner.get("bindingFailureConditions") or []
    if not conditions and not failures:
        return []
    where, failing = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"

    def check(value: str, at: str) -> list[FieldError]:
        return invalids(at, value, names.qualified(value))

    out = items(conditions, MAX_BINDING_CONDITIONS, check, where)
    out += items(failures, MAX_BINDING_CONDITIONS, check, failing)
    out += [duplicate(f"{where}[{i}]", c) for i, c in enumerate(conditions) if c in conditions[:i]]
    for i, value in enumerate(failures):
        if value in failures[:i]:
            out.append(duplicate(f"{failing}[{i}]", value))
        if value in conditions:
            rule = "bindingFailureConditions must not overlap with bindingConditions"
            out.append(invalid(f"{failing}[{i}]", value, rule))
    if failures and not conditions:
        out.append(invalid(where, None, "bindingConditions are required to use bindingFailureConditions"))
    if conditions and not failures:
        out.append(invalid(failing, None, "bindingFailureConditions are required to use bindingConditions"))
    return out


def _device_nodes(device: ReadOnlyJSON, path: str, *, per_device: bool) -> list[FieldError]:
    if not per_device:
        if all(device.get(f) is None for f in ("nodeName", "nodeSelector", "allNodes")):
            return []
        rule = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "
            "ResourceSlice spec"
        )
        return [invalid(path, None, rule)]
    rule = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` "
        "is set to true in the ResourceSlice spec"
    )
    return exactly_one_place(device, path, ("allNodes",), "must not be empty", rule)
