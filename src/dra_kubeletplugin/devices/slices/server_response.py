"""Interprets the API server's response to a slice: fields that it dropped, and devices that it rejected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...base.json_types import JSON
from ...driver.health import INFORMATIONAL
from ...errors import ApiError
from ...kube import Resource
from ...kube.errors import BadRequestError, InvalidError
from ...resourceapi.conversion import GROUP, convert

REJECTIONS = (BadRequestError, InvalidError)
"""Errors with which the API server rejects an object. It would reject the same object again."""


def in_v1(obj: JSON, resource: Resource) -> JSON:
    """Converts an item of ``resource`` to v1. Raises ``ValueError`` if its version is unknown."""
    whole = {"apiVersion": resource.api_version, "kind": "ResourceSlice", **obj}
    return whole if whole["apiVersion"] == f"{GROUP}/v1" else convert(whole, "v1")


def as_sent(obj: JSON, resource: Resource) -> JSON:
    """Converts a slice in v1 to the version that the API server serves."""
    return obj if resource.version == "v1" else convert(obj, resource.version)


def dropped_by_server(sent: Any, stored: Any, path: str = "spec") -> set[str]:
    """Returns the paths of a spec's fields that the API server dropped, such as ``spec.devices[].taints``."""
    if sent == stored:  # true for nearly all devices, so that few are compared field by field
        return set()
    out: set[str] = set()
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        for key, value in sent.items():
            if key in stored:
                out |= dropped_by_server(value, stored[key], f"{path}.{key}")
            elif value not in (None, [], {}, ""):
                out.add(f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(stored, list):
        for a, b in zip(sent, stored, strict=False):
            out |= dropped_by_server(a, b, f"{path}[]")
    return out


def rejected_devices(e: ApiError, obj: JSON) -> dict[str, str]:
    """Returns the devices of a slice that an error names, each with the reason; empty if the error names no device."""
    out: dict[str, str] = {}
    for device, field, message in _causes(e, obj):
        name, reason = device["name"], f"{field}: {message}"
        out[name] = f"{out[name]}; {reason}" if name in out else reason
    return out


def with_rejected_information(e: ApiError, obj: JSON) -> set[str]:
    """Returns the devices that an error names only because of informational taints: Kubernetes 1.34 does not have their effect."""
    named: dict[str, bool] = {}
    for device, field, _ in _causes(e, obj):
        match = re.fullmatch(r"taints\[(\d{1,2})\]\.effect", field)
        taints = device.get("taints") or []
        of_information = match and int(match[1]) < len(taints) and taints[int(match[1])]["effect"] == INFORMATIONAL
        named[device["name"]] = bool(of_information) and named.get(device["name"], True)
    return {name for name, only_information in named.items() if only_information}


def _causes(e: ApiError, obj: JSON) -> Iterator[tuple[JSON, str, object]]:
    """Yields each cause of an error about a device of a slice: the device, the path within the device, and the message."""
    if not isinstance(e, REJECTIONS):
        return
    details = e.details.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    devices = obj["spec"].get("devices") or []
    for cause in causes if isinstance(causes, list) else []:
        field = cause.get("field") if isinstance(cause, dict) else None
        match = re.match(r"spec\.devices\[(\d{1,4})\]", field) if isinstance(field, str) else None
        if match and isinstance(field, str) and int(match[1]) < len(devices):
            yield devices[int(match[1])], field[match.end() :].lstrip("."), cause.get("message")
