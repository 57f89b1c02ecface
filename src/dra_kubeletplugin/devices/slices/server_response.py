"""Interprets the API server's response to a slice: fields that it dropped, and devices that it rejected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ApiError
from ...kube import Resource
from ...kube.errors import BadRequestError, InvalidError
from ...resourceapi.conversion import GROUP, convert

JSON = dict[str, Any]
REJECTIONS = (BadRequestError, InvalidError)
"""The API server rejects the object, and would reject the same object again."""


def in_v1(obj: JSON, resource: Resource) -> JSON:
    """Converts an item of ``resource`` to v1. Raises ``ValueError`` if its version is unknown."""
    whole = {"apiVersion": resource.api_version, "kind": "ResourceSlice", **obj}
    return whole if whole["apiVersion"] == f"{GROUP}/v1" else convert(whole, "v1")


def as_sent(obj: JSON, resource: Resource) -> JSON:
    """Converts a slice in v1 to the version that the API server serves."""
    return obj if resource.version == "v1" else convert(obj, resource.version)


def lost(sent: JSON, stored: JSON) -> set[str]:
    """Returns the paths of a spec's fields that the API server dropped, with empty brackets for indexes.

    Compares only devices that differ.
    """
    pairs = zip(sent.get("devices") or [], stored.get("devices") or [], strict=False)
    found = [p for a, b in pairs if a != b for p in _dropped(a, b, "spec.devices[]")]
    rest = {k: v for k, v in sent.items() if k != "devices" or k not in stored}
    return {re.sub(r"\[\d+\]", "[]", p) for p in found + _dropped(rest, stored, "spec")}


def _dropped(sent: Any, echoed: Any, path: str = "") -> list[str]:
    """Returns the paths of fields that ``sent`` has and ``echoed`` lacks: a server with a disabled gate dropped them."""
    if isinstance(sent, Mapping) and isinstance(echoed, Mapping):
        out = []
        for key, value in sent.items():
            where = f"{path}.{key}" if path else key
            if key not in echoed:
                out += [where] if value not in (None, [], {}, "") else []
            else:
                out += _dropped(value, echoed[key], where)
        return out
    if isinstance(sent, list) and isinstance(echoed, list):
        pairs = zip(sent, echoed, strict=False)
        return [p for i, (a, b) in enumerate(pairs) for p in _dropped(a, b, f"{path}[{i}]")]
    return []


def rejected_devices(e: ApiError, obj: JSON) -> dict[str, str]:
    """Returns the devices of a slice that a rejection names, each with the reason; empty if it names none."""
    if not isinstance(e, REJECTIONS):
        return {}
    details = e.details.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    devices = obj["spec"].get("devices") or []
    out: dict[str, str] = {}
    for cause in causes if isinstance(causes, list) else []:
        field = cause.get("field") if isinstance(cause, dict) else None
        match = re.match(r"spec\.devices\[(\d{1,4})\]", field) if isinstance(field, str) else None
        if match and isinstance(field, str) and int(match[1]) < len(devices):
            name = devices[int(match[1])]["name"]
            reason = f"{field[match.end() :].lstrip('.')}: {cause.get('message')}"
            out[name] = f"{out[name]}; {reason}" if name in out else reason
    return out
