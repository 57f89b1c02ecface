"""Validates topology spread constraints. Source: the validation package of the core API group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, duplicate, forbidden, invalid, required

from .checks import choice, label_selector, optional_choice, positive

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
    yield from positive({"maxSkew": 0, **constraint}, where, "maxSkew", "must be greater than zero")
    if not constraint.get("topologyKey"):
        yield required(f"{where}.topologyKey", "can not be empty")
    when, minimum = constraint.get("whenUnsatisfiable"), constraint.get("minDomains")
    yield from choice(when, f"{where}.whenUnsatisfiable", _ALLOWED)
    yield from positive(constraint, where, "minDomains", "must be greater than zero")
    if minimum is not None and minimum > 0 and when != _MUST:
        rule = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
        yield invalid(f"{where}.minDomains", minimum, rule)
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        yield from optional_choice(constraint.get(field), f"{where}.{field}", _POLICIES)
    if constraint.get("matchLabelKeys") and constraint.get("labelSelector") is None:
        yield forbidden(f"{where}.matchLabelKeys", "must not be specified when labelSelector is not set")
    yield from label_selector(constraint.get("labelSelector"), f"{where}.labelSelector")
