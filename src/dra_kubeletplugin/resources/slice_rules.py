"""What the API server accepts as a ResourceSlice (v1, as of 1.36 with its default feature gates).

The plugin checks devices by the same rules before it sends them, so that an author sees the fault in a test and
not in a cluster. Functions take objects in stored form (:func:`schema.decode`) and return every fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import names, quantity, version
from .fields import FieldError, duplicate, forbidden, invalid, invalids, required, too_long, too_many
from .rules import driver_name, items, node_selector, object_name, pool_name, qualified_name, taint_effect, taint_key

MAX_DEVICES = 128
MAX_DEVICES_WITH_EXTRAS = 64  # taints, consumed counters, list attributes
MAX_COUNTER_SETS = 8
MAX_COUNTERS_PER_SET = 32
MAX_CONSUMPTIONS = 2
MAX_CONSUMED_COUNTERS = 2048
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_TAINTS = 16
MAX_BINDING_CONDITIONS = 4
MAX_VALUE_BYTES = 64
MAX_POLICY_OPTIONS = 10

JSON = Mapping[str, Any]


def validate(obj: JSON) -> list[FieldError]:
    """Every fault of a ResourceSlice."""
    return object_name(obj["metadata"]) + validate_spec(obj["spec"], "spec")


def validate_spec(spec: JSON, path: str) -> list[FieldError]:
    out = driver_name(spec["driver"], f"{path}.driver") + _pool(spec["pool"], f"{path}.pool")
    out += _node_choice(spec, path)
    devices = spec.get("devices") or []
    limit = max_devices(devices)
    per_device = bool(spec.get("perDeviceNodeSelection"))

    def check(device: JSON, where: str) -> list[FieldError]:
        return validate_device(device, where, per_device=per_device)

    out += items(devices, limit, check, f"{path}.devices", lambda d: d["name"], ".name")
    sets = spec.get("sharedCounters") or []
    out += items(sets, MAX_COUNTER_SETS, validate_counter_set, f"{path}.sharedCounters", lambda s: s["name"])
    if devices and sets:
        out.append(
            invalid(path, "{`sharedCounters`, `devices`}", "only one of `sharedCounters` or `devices` is allowed")
        )
    return out


def max_devices(devices: list[Any]) -> int:
    """How many of such devices fit one slice."""
    for d in devices:
        if d.get("taints") or d.get("consumesCounters"):
            return MAX_DEVICES_WITH_EXTRAS
        if any(k in v for v in (d.get("attributes") or {}).values() for k in ("ints", "bools", "strings", "versions")):
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
    return _exactly_one_place(spec, path, ("allNodes", "perDeviceNodeSelection"), empty, rule)


def _exactly_one_place(owner: JSON, path: str, flags: tuple[str, ...], empty: str, rule: str) -> list[FieldError]:
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
        out += node_selector(selector, f"{path}.nodeSelector")
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


def validate_device(device: JSON, path: str, *, per_device: bool = False) -> list[FieldError]:
    """Every fault of one device of a slice."""
    out = invalids(f"{path}.name", device["name"], names.label(device["name"]))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > MAX_ATTRIBUTES_AND_CAPACITIES:
        rule = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}"
        out.append(invalid(path, total, rule))
    for key in sorted(attributes):
        out += qualified_name(key, f"{path}.attributes")
        out += _attribute(attributes[key], f"{path}.attributes[{key}]")
    multiple = bool(device.get("allowMultipleAllocations"))
    for key in sorted(capacity):
        out += qualified_name(key, f"{path}.capacity")
        out += _capacity(capacity[key], f"{path}.capacity[{key}]", multiple=multiple)
    out += items(device.get("taints"), MAX_TAINTS, validate_taint, f"{path}.taints")
    out += items(
        device.get("consumesCounters"),
        MAX_CONSUMPTIONS,
        _consumption,
        f"{path}.consumesCounters",
        lambda c: c["counterSet"],
    )
    out += _bindings(device, path)
    return out + _device_nodes(device, path, per_device=per_device)


def _attribute(value: JSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    kinds = [k for k in ("int", "bool", "string", "version") if k in value]
    if len(kinds) != 1:
        go = {"IntValue": value.get("int"), "BoolValue": value.get("bool"), "StringValue": value.get("string")}
        go |= {"VersionValue": value.get("version"), "IntValues": None, "BoolValues": None}
        go |= {"StringValues": None, "VersionValues": None}
        return [invalid(path, go if kinds else "", "exactly one value must be specified")]
    if "string" in value and len(value["string"].encode()) > MAX_VALUE_BYTES:
        out.append(too_long(f"{path}.string", MAX_VALUE_BYTES))
    if "version" in value:
        where = f"{path}.version"
        if len(value["version"].encode()) > MAX_VALUE_BYTES:
            out.append(too_long(where, MAX_VALUE_BYTES))
        try:
            version.parse(value["version"])
        except version.VersionError:
            out.append(invalid(where, value["version"], "must be a string compatible with semver.org spec 2.0.0"))
    return out


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
    out: list[FieldError] = []
    seen: set[quantity.Quantity] = set()
    found = False

    def check(text: str, where: str) -> list[FieldError]:
        nonlocal found
        value = quantity.parse(text)
        found = found or value == default
        faults = []
        if value > limit:
            faults.append(invalid(where, text, f"option is larger than capacity value: {limit}"))
        if value in seen:
            faults.append(duplicate(where, text))
        seen.add(value)
        return faults

    out += items(values, MAX_POLICY_OPTIONS, check, path)
    if len(values) <= MAX_POLICY_OPTIONS and not found:
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
        # A real 1.36 server panics on a step of zero; ours says what is wrong.
        if step.value <= 0:
            return [*out, invalid(f"{path}.step", str(step), "must be greater than zero")]
        if low.value + step.value > limit.value:
            first = quantity.Quantity(low.value + step.value, low.format)
            out.append(invalid(f"{path}.step", str(step), f"one step {first} is larger than capacity value: {limit}"))
        for value in (default, high):
            if value is not None and (value.value - low.value) % step.value:
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


def _bindings(device: JSON, path: str) -> list[FieldError]:
    conditions, failures = device.get("bindingConditions") or [], device.get("bindingFailureConditions") or []

    def check(value: str, where: str) -> list[FieldError]:
        return invalids(where, value, names.qualified(value))

    where = f"{path}.bindingConditions"
    out = items(conditions, MAX_BINDING_CONDITIONS, check, where, str)
    out += items(failures, MAX_BINDING_CONDITIONS, check, f"{path}.bindingFailureConditions", str)
    if failures and not conditions:
        out.append(invalid(where, None, "bindingConditions are required to use bindingFailureConditions"))
    for i, value in enumerate(failures):
        if value in conditions:
            rule = "bindingFailureConditions must not overlap with bindingConditions"
            out.append(invalid(f"{path}.bindingFailureConditions[{i}]", value, rule))
    return out


def _device_nodes(device: JSON, path: str, *, per_device: bool) -> list[FieldError]:
    given = [f for f in ("nodeName", "nodeSelector", "allNodes") if device.get(f) is not None]
    if not per_device:
        rule = "can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
        return [invalid(f"{path}.{f}", device[f], rule) for f in given]
    rule = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` "
        "is set to true in the ResourceSlice spec"
    )
    return _exactly_one_place(device, path, ("allNodes",), "must not be empty", rule)
