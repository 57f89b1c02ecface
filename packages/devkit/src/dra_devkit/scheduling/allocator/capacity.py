"""Consumable capacity (KEP-5075): computes how much of a device a request consumes."""

from __future__ import annotations

from collections.abc import Mapping

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Format, Quantity, parse
from dra_kubeletplugin.resourceapi.validation.capacity import has_fractions

_MAX_STEPPED = 2**63 - 1  # a device never satisfies a request for more, if its range has fractional steps
_NANO = 9  # decimal places: a billionth is the smallest amount in Kubernetes


def consumed(
    device: ReadOnlyJSON, requested: ReadOnlyJSON | None, *, fractions: bool = False
) -> dict[str, Quantity] | None:
    """Returns the amount that a request consumes from each capacity of ``device``, or None if the device cannot satisfy
    it.

    Args:
        requested: the request's ``capacity``.
        fractions: compute fractional steps of ranges exactly (gate DRAFractionalCapacityRange).
    """
    capacities = device.get("capacity") or {}
    wanted = {k: parse(str(v)) for k, v in ((requested or {}).get("requests") or {}).items()}
    if any(name not in capacities for name in wanted):
        return None
    out: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        amount = _amount(wanted.get(name), capacity, fractions=fractions)
        if amount is None or amount > parse(capacity["value"]):
            return None
        out[name] = amount
    return out


def fits(device: ReadOnlyJSON, requested: ReadOnlyJSON | None) -> bool:
    """Returns whether a device that is allocated as a whole is large enough for ``requested``."""
    capacities = device.get("capacity") or {}
    for name, value in ((requested or {}).get("requests") or {}).items():
        if name not in capacities or parse(str(value)) > parse(capacities[name]["value"]):
            return False
    return True


def _amount(wanted: Quantity | None, capacity: ReadOnlyJSON, *, fractions: bool) -> Quantity | None:
    """Returns the amount that a request consumes of one capacity, or None if the policy allows no amount that large.

    A requested amount is rounded up to the next one that the policy allows. Without a requested amount, the policy's
    default is consumed.
    """
    policy = capacity.get("requestPolicy")
    if policy is None:
        return wanted if wanted is not None else parse(capacity["value"])
    if wanted is None:
        return parse(policy["default"]) if policy.get("default") is not None else parse(capacity["value"])
    if values := policy.get("validValues"):
        fitting = [v for v in sorted(parse(v) for v in values) if v >= wanted]
        return fitting[0] if fitting else None
    span = policy.get("validRange")
    if span is None:
        return wanted
    low = parse(span["min"]) if span.get("min") is not None else Quantity(0)
    if wanted < low:
        return low
    amount = wanted
    if span.get("step") is not None and (step := parse(span["step"])).rounded_up:
        if fractions and has_fractions(policy):
            if wanted.value > _MAX_STEPPED:
                return None
            amount = _stepped(wanted, low, step)
        else:  # without the gate, Kubernetes counts steps in whole numbers and writes a binary quantity
            steps = -(-(wanted.rounded_up - low.rounded_up) // step.rounded_up)
            amount = Quantity(low.rounded_up + steps * step.rounded_up, Format.BINARY)
    if span.get("max") is not None and amount > parse(span["max"]):
        return None
    return amount


def largest(capacity: ReadOnlyJSON, limit: Quantity) -> Quantity | None:
    """Returns the largest amount up to ``limit`` that a capacity's policy allows; None if it allows no amount that small."""
    policy = capacity.get("requestPolicy") or {}
    if values := policy.get("validValues"):
        return max((v for v in map(parse, values) if v <= limit), default=None)
    span = policy.get("validRange") or {}
    if span.get("max") is not None:
        limit = min(limit, parse(span["max"]))
    low = parse(span["min"]) if span.get("min") is not None else Quantity(0)
    if limit < low:
        return None
    if span.get("step") is None or not (step := parse(span["step"]).rounded_up):
        return limit
    steps = (int(limit.value) - low.rounded_up) // step
    return Quantity(low.rounded_up + steps * step, Format.BINARY)


def _stepped(wanted: Quantity, low: Quantity, step: Quantity) -> Quantity:
    """Returns the smallest amount not below ``wanted`` that is a whole number of steps above ``low``."""
    missing, each = (int(q.value.scaleb(_NANO)) for q in (wanted - low, step))
    return Quantity(low.value + step.value * -(-missing // each))


def texts_of(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: q.text for name, q in amounts.items()}
