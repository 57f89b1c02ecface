"""Validates the request policy of a capacity (KEP-5075).

Since 1.37, a range with fractions is validated in thousandths (gate DRAFractionalCapacityRange). Before, its amounts
are rounded up to whole numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from decimal import Decimal

from ...base.json_types import ReadOnlyJSON
from ..quantity import Quantity, parse
from .common import items
from .field_errors import FieldError, forbidden, invalid, required

MAX_POLICY_OPTIONS = 10
_MAX_MILLI = Decimal(2**63 - 1) / 1000
_SPAN = ("min", "max", "step")


def capacity(value: ReadOnlyJSON, path: str, *, multiple: bool, fractions: bool) -> list[FieldError]:
    """Returns all errors of one capacity of a device. ``multiple`` is True if several claims may share the device."""
    policy = value.get("requestPolicy")
    if policy is None:
        return []
    where = f"{path}.requestPolicy"
    if not multiple:
        return [forbidden(where, "allowMultipleAllocations must be true")]
    return _policy(parse(value["value"]), policy, where, fractions=fractions)


def has_fractions(policy: ReadOnlyJSON) -> bool:
    """Returns whether a policy has a range, and a bound, the step or the default is not a whole number."""
    span = policy.get("validRange")
    given = [policy.get("default"), *((span.get(k) for k in _SPAN) if span else ())]
    return span is not None and any(v is not None and not _is_whole(parse(v).value) for v in given)


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()


def _policy(limit: Quantity, policy: ReadOnlyJSON, path: str, *, fractions: bool) -> list[FieldError]:
    values, span = policy.get("validValues") or [], policy.get("validRange")
    default = parse(policy["default"]) if policy.get("default") is not None else None
    if values and span is not None:
        rule = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(path, rule)]
    if span is not None:
        if default is None:
            return [required(f"{path}.default", "required when validRange is defined")]
        return _valid_range(default, limit, span, f"{path}.validRange", milli=fractions and has_fractions(policy))
    if values:
        if default is None:
            return [required(f"{path}.default", "required when validValues is defined")]
        return _valid_values(default, limit, values, f"{path}.validValues", fractions=fractions)
    return []


def _valid_values(
    default: Quantity, limit: Quantity, values: list[str], path: str, *, fractions: bool
) -> list[FieldError]:
    options = [parse(v) for v in values]
    out: list[FieldError] = []
    for i, (option, following) in enumerate(itertools.pairwise(options), 1):
        if option > following:
            out.append(invalid(f"{path}[{i}]", values[i], "values must be sorted in ascending order"))

    def check(text: str, where: str) -> list[FieldError]:
        larger = parse(text) > limit
        return [invalid(where, text, f"option is larger than capacity value: {limit}")] if larger else []

    def identity(text: str) -> str:
        # Two values are duplicates if they are equal; before 1.37, if they are equal after rounding up.
        found = parse(text)
        return str(found.rounded_up) if not fractions or _is_whole(found.value) else f"{found.value.normalize():f}"

    out += items(values, MAX_POLICY_OPTIONS, check, path, identity)
    if len(values) > MAX_POLICY_OPTIONS or default not in options:
        out.append(invalid(path, str(default), "default value is not valid according to the requestPolicy"))
    return out


def _valid_range(default: Quantity, limit: Quantity, span: ReadOnlyJSON, path: str, *, milli: bool) -> list[FieldError]:
    low, high, step = (parse(span[k]) if span.get(k) is not None else None for k in _SPAN)
    if low is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    if milli and (out := _not_milli({"default": default, "min": low, "max": high, "step": step}, path)):
        return out
    out = []
    if low > limit:
        out.append(invalid(f"{path}.min", str(low), f"min is larger than capacity value: {limit}"))
    if default < low:
        out.append(invalid(f"{path}.min", str(default), f"default is less than min: {low}"))
    if high is not None:
        if low > high:
            out.append(invalid(f"{path}.max", str(low), f"min is larger than max: {high}"))
        if high > limit:
            out.append(invalid(f"{path}.max", str(high), f"max is larger than capacity value: {limit}"))
        if default > high:
            out.append(invalid(f"{path}.max", str(default), f"default is more than max: {high}"))
    if step is None:
        return out
    return out + _steps(low, step, (default, high), limit, f"{path}.step", milli=milli)


def _steps(
    low: Quantity, step: Quantity, values: Iterable[Quantity | None], limit: Quantity, path: str, *, milli: bool
) -> list[FieldError]:
    out: list[FieldError] = []
    if low + step > limit:
        out.append(invalid(path, str(step), f"one step {low + step} is larger than capacity value: {limit}"))
    # A real 1.36 server panics on a step of zero; this one returns an error.
    if not step.rounded_up:
        return [*out, invalid(path, str(step), "must be greater than zero")]
    for value in values:
        if value is not None and not _is_multiple(value, low, step, milli=milli):
            out.append(invalid(path, str(value), f"value is not a multiple of a given step ({step}) from ({low})"))
    return out


def _is_multiple(value: Quantity, low: Quantity, step: Quantity, *, milli: bool) -> bool:
    if milli:
        return not (value.value - low.value) % step.value
    return not (value.rounded_up - low.rounded_up) % step.rounded_up


def _not_milli(values: Mapping[str, Quantity | None], path: str) -> list[FieldError]:
    rule = "value cannot be represented as a milli value"
    return [
        invalid(f"{path}.{name}", str(q), rule)
        for name, q in values.items()
        if q is not None and (abs(q.value) > _MAX_MILLI or not _is_whole(q.value * 1000))
    ]
