"""Evaluates label selectors: ``matchLabels`` and ``matchExpressions``. Node selectors use the same kind of expressions."""

from __future__ import annotations

from collections.abc import Mapping

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.node_selectors import holds


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
