"""What the API server accepts as a ResourceSlice (v1, as of 1.36 with its default feature gates).

The plugin checks devices by the same rules before it sends them, so that an author sees the fault in a test and
not in a cluster. Functions take objects as :func:`schema.decode` gives them and return every fault. List attributes are judged as by a
server that has their gate on; one that has not drops them before it looks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from . import names, quantity, version
from .fields import FieldError, duplicate, forbidden, invalid, invalids, required, too_long, too_many
from .metadata_rules import metadata, updated_metadata
from .rules import (
    driver_name,
    entry,
    is_attribute_name,
    items,
    node_selector,
    pool_name,
    qualified_name,
    taint_effect,
    taint_key,
)

MAX_DEVICES = 128
MAX_DEVICES_WITH_EXTRAS = 64  # taints, consumed counters, list attributes
MAX_COUNTER_SETS = 8
MAX_COUNTERS_PER_SET = 32
MAX_CONSUMPTIONS = 2
MAX_CONSUMED_COUNTERS = 2048
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_VALUES = 48  # scalars, and the items of lists
MAX_TAINTS = 16
MAX_BINDING_CONDITIONS = 4
MAX_VALUE_BYTES = 64
MAX_POLICY_OPTIONS = 10
LIST_ATTRIBUTES = ("ints", "bools", "strings", "versions")
_LISTS = frozenset(LIST_ATTRIBUTES)
_MAX_KEY = names.MAX_DOMAIN + 1 + names.MAX_IDENTIFIER

JSON = Mapping[str, Any]


def validate(obj: JSON, old: JSON | None = None) -> list[FieldError]:
    """Every fault of a ResourceSlice; of an update where there is an ``old`` one."""
    if old is None:
        return metadata(obj["metadata"]) + validate_spec(obj["spec"], "spec")
    spec, before = obj["spec"], old["spec"]
    out = updated_metadata(obj["metadata"], wholly=False) + validate_spec(spec, "spec", before)
    for path, new, was in (
        ("driver", spec["driver"], before["driver"]),
        ("pool.name", spec["pool"]["name"], before["pool"]["name"]),
        ("nodeName", spec.get("nodeName"), before.get("nodeName")),
    ):
        if new != was:
            out.append(invalid(f"spec.{path}", new, "field is immutable"))
    return out


def validate_spec(spec: JSON, path: str, old: JSON | None = None) -> list[FieldError]:
    known = {d["name"]: d for d in (old or {}).get("devices") or []}
    out = driver_name(spec["driver"], f"{path}.driver") + _pool(spec["pool"], f"{path}.pool")
    out += _node_choice(spec, path)
    sets, devices = spec.get("sharedCounters"), spec.get("devices")
    if sets is not None and devices is not None:
        out.append(invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
    limit = max_devices(devices or [])
    per_device = bool(spec.get("perDeviceNodeSelection"))

    def check(device: JSON, where: str) -> list[FieldError]:
        return validate_device(device, where, per_device=per_device, old=known.get(device["name"]))

    out += items(devices, limit, check, f"{path}.devices", lambda d: d["name"])
    return out + items(sets, MAX_COUNTER_SETS, validate_counter_set, f"{path}.sharedCounters", lambda s: s["name"])


def max_devices(devices: list[Any]) -> int:
    """How many of such devices fit one slice."""
    for d in devices:
        if d.get("taints") or d.get("consumesCounters"):
            return MAX_DEVICES_WITH_EXTRAS
        if not all(map(_LISTS.isdisjoint, (d.get("attributes") or {}).values())):
            return MAX_DEVICES_WITH_EXTRAS
    return MAX_DEVICES


def _pool(pool: JSON, path: str) -> list[FieldError]:
    out = pool_name(pool["name"], f"{path}.name")
    if pool["resourceSliceCount"] <= 0:
        out.append(invalid(f"{path}.resourceSliceCount", pool["resourceSliceCount"], "must be greater than zero"))
    if pool["generation"] < 0:
        out.append(invalid(f"{path}.generation", pool["generation"], "must be greater than or equal to zero"))
    return out


def _node_choice(spec: JSON, path: str) -> list[FieldError]:
    empty = "must be either unset or set to a non-empty string"
    rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    flags = ("allNodes", "perDeviceNodeSelection")
    return _exactly_one_place(spec, path, flags, empty, rule, one_term=True)


def _exactly_one_place(
    owner: JSON, path: str, flags: tuple[str, ...], empty: str, rule: str, *, one_term: bool = False
) -> list[FieldError]:
    """A node's name, a selector, or one of some flags: where a slice, or a device of it, is."""
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


def validate_device(device: JSON, path: str, *, per_device: bool = False, old: JSON | None = None) -> list[FieldError]:
    """Every fault of one device of a slice; capacity and taints that are as before are not looked at again."""
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
        out += _capacity(capacity[key], entry(f"{path}.capacity", key, _MAX_KEY), multiple=multiple)
    taints, consumed = device.get("taints") or [], device.get("consumesCounters") or []
    if taints and (old is None or taints != (old.get("taints") or [])):
        out += items(taints, MAX_TAINTS, validate_taint, f"{path}.taints")
    if consumed:
        out += items(consumed, MAX_CONSUMPTIONS, _consumption, f"{path}.consumesCounters", lambda c: c["counterSet"])
    out += bindings(device, path)
    return out + _device_nodes(device, path, per_device=per_device)


def _attributes(attributes: JSON, path: str) -> list[FieldError]:
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


def _is_plain(key: str, value: JSON) -> bool:
    """Whether an attribute is one of the many of which it is quickly seen that nothing is wrong."""
    if len(value) != 1 or not is_attribute_name(key):
        return False
    ((kind, given),) = value.items()
    if kind == "string":
        return type(given) is str and given.isascii() and len(given) <= MAX_VALUE_BYTES
    return kind in {"int", "bool"} and given is not None


def _count(attribute: JSON) -> int:
    for kind, value in attribute.items():
        if kind in LIST_ATTRIBUTES and value:
            return len(value)
    return 1


def _attribute(value: JSON, path: str) -> list[FieldError]:
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


def _capacity(value: JSON, path: str, *, multiple: bool) -> list[FieldError]:
    policy = value.get("requestPolicy")
    if policy is None:
        return []
    where = f"{path}.requestPolicy"
    if not multiple:
        return [forbidden(where, "allowMultipleAllocations must be true")]
    return _policy(quantity.parse(value["value"]), policy, where)


def _policy(limit: quantity.Quantity, policy: JSON, path: str) -> list[FieldError]:
    values, span = policy.get("validValues") or [], policy.get("validRange")
    default = quantity.parse(policy["default"]) if policy.get("default") is not None else None
    if values and span is not None:
        rule = "exactly one policy can be specified, cannot specify `validValues` and `validRange` at the same time"
        return [forbidden(path, rule)]
    if span is not None:
        if default is None:
            return [required(f"{path}.default", "required when validRange is defined")]
        return _valid_range(default, limit, span, f"{path}.validRange")
    if values:
        if default is None:
            return [required(f"{path}.default", "required when validValues is defined")]
        return _valid_values(default, limit, values, f"{path}.validValues")
    return []


def _valid_values(
    default: quantity.Quantity, limit: quantity.Quantity, values: list[str], path: str
) -> list[FieldError]:
    options = [quantity.parse(v) for v in values]
    out: list[FieldError] = []
    for i, (option, following) in enumerate(itertools.pairwise(options), 1):
        if option > following:
            out.append(invalid(f"{path}[{i}]", values[i], "values must be sorted in ascending order"))

    def check(text: str, where: str) -> list[FieldError]:
        larger = quantity.parse(text) > limit
        return [invalid(where, text, f"option is larger than capacity value: {limit}")] if larger else []

    # The server tells options apart by whole numbers, rounded up.
    out += items(values, MAX_POLICY_OPTIONS, check, path, lambda v: str(quantity.parse(v).rounded_up))
    if len(values) > MAX_POLICY_OPTIONS or default not in options:
        out.append(invalid(path, str(default), "default value is not valid according to the requestPolicy"))
    return out


def _valid_range(default: quantity.Quantity, limit: quantity.Quantity, span: JSON, path: str) -> list[FieldError]:
    low, high, step = (quantity.parse(span[k]) if span.get(k) is not None else None for k in ("min", "max", "step"))
    if low is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    out: list[FieldError] = []
    if default < low:
        out.append(invalid(f"{path}.min", str(default), f"default is less than min: {low}"))
    if low > limit:
        out.append(invalid(f"{path}.min", str(low), f"min is larger than capacity value: {limit}"))
    if high is not None:
        if low > high:
            out.append(invalid(f"{path}.max", str(low), f"min is larger than max: {high}"))
        if high > limit:
            out.append(invalid(f"{path}.max", str(high), f"max is larger than capacity value: {limit}"))
        if default > high:
            out.append(invalid(f"{path}.max", str(default), f"default is more than max: {high}"))
    if step is not None:
        if low + step > limit:
            out.append(
                invalid(f"{path}.step", str(step), f"one step {low + step} is larger than capacity value: {limit}")
            )
        # A real 1.36 server panics on a step of zero; ours says what is wrong. Steps are counted in whole numbers, rounded up.
        if not step.rounded_up:
            return [*out, invalid(f"{path}.step", str(step), "must be greater than zero")]
        for value in (default, high):
            if value is not None and (value.rounded_up - low.rounded_up) % step.rounded_up:
                rule = f"value is not a multiple of a given step ({step}) from ({low})"
                out.append(invalid(f"{path}.step", str(value), rule))
    return out


def _counters(counters: JSON | None, path: str) -> list[FieldError]:
    if not counters:
        return [required(path)]
    out: list[FieldError] = []
    if len(counters) > MAX_COUNTERS_PER_SET:
        return [too_many(path, len(counters), MAX_COUNTERS_PER_SET)]
    for key in sorted(counters):
        if not names.is_label(key):
            out += invalids(path, key, names.label(key))
    return out


def validate_counter_set(counter_set: JSON, path: str) -> list[FieldError]:
    """Every fault of one set of shared counters."""
    out = _label_or_required(counter_set["name"], f"{path}.name")
    return out + _counters(counter_set.get("counters"), f"{path}.counters")


def _consumption(consumption: JSON, path: str) -> list[FieldError]:
    out = _label_or_required(consumption["counterSet"], f"{path}.counterSet")
    return out + _counters(consumption.get("counters"), f"{path}.counters")


def _label_or_required(value: str, path: str) -> list[FieldError]:
    return invalids(path, value, names.label(value)) if value else [required(path)]


def validate_taint(taint: JSON, path: str) -> list[FieldError]:
    """Every fault of one device taint."""
    out = taint_key(taint["key"], f"{path}.key")
    if value := taint.get("value"):
        out += invalids(f"{path}.value", value, names.label_value(value))
    return out + taint_effect(taint["effect"], f"{path}.effect")


def bindings(owner: JSON, path: str) -> list[FieldError]:
    """Every fault of the binding conditions of a device, or of an allocation's result: both kinds, or none."""
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


def _device_nodes(device: JSON, path: str, *, per_device: bool) -> list[FieldError]:
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
    return _exactly_one_place(device, path, ("allNodes",), "must not be empty", rule)
