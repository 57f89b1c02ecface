"""Converts events between the core group and events.k8s.io, in which the same fields have different names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

# the name of a field in the core group, and in events.k8s.io
_NAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)
_TO_CORE = {new: old for old, new in _NAMES}
_FROM_CORE = dict(_NAMES)


def to_core(event: Mapping[str, Any]) -> JSON:
    out = {_TO_CORE.get(k, k): v for k, v in event.items()}
    out.setdefault("involvedObject", {})
    return out


def from_core(event: Mapping[str, Any]) -> JSON:
    return {_FROM_CORE.get(k, k): v for k, v in event.items()}


def core_name(field: str) -> str:
    """Returns the name of a field in the core group."""
    return _TO_CORE.get(field, field)
