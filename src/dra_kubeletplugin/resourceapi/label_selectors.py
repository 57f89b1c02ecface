"""Evaluates label selectors: ``matchLabels`` and ``matchExpressions``. Node selectors use the same kind of expressions."""

from __future__ import annotations

from collections.abc import Mapping

from ..base.json_types import ReadOnlyJSON


def selected(labels: Mapping[str, str], selector: ReadOnlyJSON | None) -> bool:
    """Returns whether a selector matches labels.

    No selector (None) matches nothing, an empty selector matches everything.
    """
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(holds(labels, e) for e in selector.get("matchExpressions") or [])


def with_keys(
    selector: ReadOnlyJSON | None, own: Mapping[str, str], same: list[str], other: list[str]
) -> ReadOnlyJSON | None:
    """Returns a selector extended by a pod's ``matchLabelKeys`` and ``mismatchLabelKeys``.

    Args:
        own: the pod's labels.
        same: ``matchLabelKeys``.
        other: ``mismatchLabelKeys``.
    """
    if selector is None or not (same or other):
        return selector
    more = [{"key": k, "operator": "In", "values": [own[k]]} for k in same if k in own]
    more += [{"key": k, "operator": "NotIn", "values": [own[k]]} for k in other if k in own]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or []), *more]}


def holds(labels: Mapping[str, str], expression: ReadOnlyJSON) -> bool:
    """Evaluates one expression of a label or node selector.

    An unknown operator, which the API server rejects, matches nothing.
    """
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
        case "Gt" | "Lt" as operator:  # only in node selectors
            return _compares(operator, value, values)
    return False


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    try:
        number, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound
