"""Which labels a selector selects: ``matchLabels``, and the expressions that node selectors have too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = Mapping[str, Any]


def selected(labels: Mapping[str, str], selector: JSON | None) -> bool:
    """Without a selector nothing is selected, by an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(holds(labels, e) for e in selector.get("matchExpressions") or [])


def with_keys(selector: JSON | None, own: Mapping[str, str], same: list[str], other: list[str]) -> JSON | None:
    """A selector with what ``matchLabelKeys`` (``same``) and ``mismatchLabelKeys`` (``other``) add to it for a pod's labels."""
    if selector is None or not (same or other):
        return selector
    more = [{"key": k, "operator": "In", "values": [own[k]]} for k in same if k in own]
    more += [{"key": k, "operator": "NotIn", "values": [own[k]]} for k in other if k in own]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or []), *more]}


def holds(labels: Mapping[str, str], expression: JSON) -> bool:
    """One expression of a label or node selector. An operator that there is not selects nothing: the API server refuses it."""
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
        case "Gt" | "Lt" as operator:  # node selectors alone have these
            return _compares(operator, value, values)
    return False


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    try:
        number, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound
