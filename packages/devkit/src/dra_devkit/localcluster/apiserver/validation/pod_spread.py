"""Validates topology spread constraints. Source: the validation package of the core API group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)

from .label_selectors import label_selector

_MUST = "DoNotSchedule"
_ALLOWED = (_MUST, "ScheduleAnyway")
_POLICIES = ("Honor", "Ignore")


def validate_spread(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns all errors of ``topologySpreadConstraints``."""
    out: list[FieldError] = []
    seen: set[tuple[Any, Any]] = set()
    for i, constraint in enumerate(spec.get("topologySpreadConstraints") or []):
        where = f"{path}.topologySpreadConstraints[{i}]"
        out += _constraint(constraint, where)
        pair = (constraint.get("topologyKey"), constraint.get("whenUnsatisfiable"))
        if pair in seen:
            out.append(duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {pair[1]}}}"))
        seen.add(pair)
    return out


def _constraint(constraint: ReadOnlyJSON, where: str) -> Iterator[FieldError]:
    if constraint.get("maxSkew", 0) <= 0:
        yield invalid(f"{where}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
    if not constraint.get("topologyKey"):
        yield required(f"{where}.topologyKey", "can not be empty")
    when = constraint.get("whenUnsatisfiable")
    if not when:
        yield required(f"{where}.whenUnsatisfiable")
    elif when not in _ALLOWED:
        yield unsupported(f"{where}.whenUnsatisfiable", when, _ALLOWED)
    minimum = constraint.get("minDomains")
    if minimum is not None and minimum <= 0:
        yield invalid(f"{where}.minDomains", minimum, "must be greater than zero")
    elif minimum is not None and when != _MUST:
        rule = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
        yield invalid(f"{where}.minDomains", minimum, rule)
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(field)
        if policy is not None and policy not in _POLICIES:
            yield unsupported(f"{where}.{field}", policy, _POLICIES)
    if constraint.get("matchLabelKeys") and constraint.get("labelSelector") is None:
        yield forbidden(f"{where}.matchLabelKeys", "must not be specified when labelSelector is not set")
    yield from label_selector(constraint.get("labelSelector") or {}, f"{where}.labelSelector")
