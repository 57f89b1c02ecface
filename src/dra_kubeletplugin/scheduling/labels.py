"""Label selectors of the API: ``matchLabels`` and ``matchExpressions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = Mapping[str, Any]


def selected(labels: Mapping[str, str], selector: JSON | None) -> bool:
    """Without a selector nothing is selected, by an empty one everything. Raises ``ValueError`` for an unknown operator."""
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(labels, e) for e in selector.get("matchExpressions") or [])


def with_keys(selector: JSON | None, own: Mapping[str, str], same: list[str], other: list[str]) -> JSON | None:
    """A selector with what ``matchLabelKeys`` (``same``) and ``mismatchLabelKeys`` (``other``) add to it for a pod's labels."""
    if selector is None or not (same or other):
        return selector
    more = [{"key": k, "operator": "In", "values": [own[k]]} for k in same if k in own]
    more += [{"key": k, "operator": "NotIn", "values": [own[k]]} for k in other if k in own]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or []), *more]}


def _holds(labels: Mapping[str, str], expression: JSON) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"unknown operator {expression['operator']!r} in a label selector")
