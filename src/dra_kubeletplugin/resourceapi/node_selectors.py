"""Evaluates node selectors, as the scheduler does."""

from __future__ import annotations

from collections.abc import Mapping

from ..base.json_types import ReadOnlyJSON


def matches(node: ReadOnlyJSON, name: str | None, everywhere: bool | None, selector: ReadOnlyJSON | None) -> bool:
    """Returns whether a slice or device with these three fields is for ``node``.

    Args:
        name: ``nodeName``.
        everywhere: ``allNodes``.
        selector: ``nodeSelector``.
    """
    if name:
        return bool(node["metadata"]["name"] == name)
    if everywhere:
        return True
    return selector is not None and selector_matches(node, selector)


def needs_labels(selector: ReadOnlyJSON | None) -> bool:
    """Returns whether :func:`matches` needs a node's labels, and not only its name."""
    return any(term.get("matchExpressions") for term in (selector or {}).get("nodeSelectorTerms") or [])


def selector_matches(node: ReadOnlyJSON, selector: ReadOnlyJSON) -> bool:
    return any(_term(node, term) for term in selector.get("nodeSelectorTerms") or [])


def _term(node: ReadOnlyJSON, term: ReadOnlyJSON) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False  # an empty term selects nothing
    labels = node["metadata"].get("labels") or {}
    return all(holds(labels, e) for e in expressions) and all(
        holds({"metadata.name": node["metadata"]["name"]}, e) for e in fields
    )


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
