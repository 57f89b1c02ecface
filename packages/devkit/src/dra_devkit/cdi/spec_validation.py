"""Validates whole CDI specs, as the Go library container-device-interface does when a runtime loads them."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.cdi.spec import (
    VERSIONS,
    check_edits,
    dropped_fields,
    least_version,
    validate_device_name,
    validate_kind,
    version_key,
)
from dra_kubeletplugin.errors import InvalidSpecError

# Types of fields: s text, i 64-bit integer, u unsigned 32-bit integer, b bool, m map of texts.
_STRING_LIST = ["s"]
EDITS_SHAPE = {
    "env": _STRING_LIST,
    "deviceNodes": [
        {
            "path": "s",
            "hostPath": "s",
            "type": "s",
            "major": "i",
            "minor": "i",
            "fileMode": "u",
            "permissions": "s",
            "uid": "u",
            "gid": "u",
        }
    ],
    "netDevices": [{"hostInterfaceName": "s", "name": "s"}],
    "hooks": [{"hookName": "s", "path": "s", "args": _STRING_LIST, "env": _STRING_LIST, "timeout": "i"}],
    "mounts": [{"hostPath": "s", "containerPath": "s", "options": _STRING_LIST, "type": "s"}],
    "intelRdt": {
        "closID": "s",
        "l3CacheSchema": "s",
        "memBwSchema": "s",
        "schemata": _STRING_LIST,
        "enableCMT": "b",
        "enableMBM": "b",
        "enableMonitoring": "b",
    },
    "additionalGids": ["u"],
}
SPEC_SHAPE = {
    "cdiVersion": "s",
    "kind": "s",
    "annotations": "m",
    "devices": [{"name": "s", "annotations": "m", "containerEdits": EDITS_SHAPE}],
    "containerEdits": EDITS_SHAPE,
}
_TYPES: dict[str, type] = {"s": str, "i": int, "u": int, "b": bool, "m": dict}
_RANGES = {"i": (-(2**63), 2**63 - 1), "u": (0, 2**32 - 1)}


def minimum_version(spec: ReadOnlyJSON) -> str:
    """Returns the lowest CDI version that the Go library 1.1.0 accepts for a spec, based on its fields.

    The library considers the mount types and host paths of the last device only.
    """
    return least_version(spec, (spec.get("devices") or [])[-1:])


def spec_faults(spec: Any) -> str:
    """Returns why a runtime rejects ``spec``, or "" if it accepts it."""
    try:
        validate_spec(spec)
    except InvalidSpecError as e:
        return str(e)
    return ""


def validate_spec(spec: Any) -> None:
    """Validates a spec. Raises :class:`InvalidSpecError` with the Go library's text for the first error."""
    check_shape(spec)
    version = str(spec.get("cdiVersion", "")).removeprefix("v")
    for place, name, last in dropped_fields(spec):
        if version not in VERSIONS or version_key(version) > version_key(last):
            raise InvalidSpecError(f'unknown field "{name}" in {place}: the last CDI version with it is {last}')
    if version not in VERSIONS:
        raise InvalidSpecError(f'invalid version "{spec.get("cdiVersion", "")}"')
    least = minimum_version(spec)
    if version_key(version) < version_key(least):
        raise InvalidSpecError(f"the spec version must be at least v{least}")
    validate_kind(spec.get("kind", ""))
    check_edits(spec.get("containerEdits") or {})
    seen: set[str] = set()
    for device in spec.get("devices") or []:
        name = device.get("name", "")
        try:
            validate_device_name(name)
            edits = device.get("containerEdits") or {}
            if not any(v is not None and v != [] for v in edits.values()):
                raise InvalidSpecError("invalid device, empty device edits")
            try:
                check_edits(edits)
            except InvalidSpecError as e:
                raise InvalidSpecError(f'invalid device "{name}": {e}') from None
        except InvalidSpecError as e:
            raise InvalidSpecError(f'failed add device "{name}": {e}') from None
        if name in seen:
            raise InvalidSpecError(f'invalid spec, multiple device "{name}"')
        seen.add(name)
    if not seen:
        raise InvalidSpecError("invalid spec, no devices")


def check_shape(spec: Any) -> None:
    """Raises :class:`InvalidSpecError` if a field has a wrong type, or if a field is unknown."""
    _strict(spec, SPEC_SHAPE, ("spec",))


def _strict(value: Any, shape: Any, path: _Path) -> None:
    """Rejects wrong types and unknown fields, as the Go library's decoder does."""
    if value is None:
        return
    if isinstance(shape, str):
        _scalar(value, shape, path)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise InvalidSpecError(f"{_shown(path)} must be a list")
        for i, item in enumerate(value):
            if item is None:
                raise InvalidSpecError(f"{_shown(path)}[{i}] is empty")
            _strict(item, shape[0], (path, "[", i, "]"))
    else:
        if not isinstance(value, dict):
            raise InvalidSpecError(f"{_shown(path)} must be an object")
        for key, item in value.items():
            if key not in shape:
                raise InvalidSpecError(f'unknown field "{key}" in {_shown(path)}')
            _strict(item, shape[key], (path, ".", key))


# The path of the parent, then texts to append. It is joined only if an error is reported, which saves time.
_Path = tuple[object, ...]


def _shown(path: _Path) -> str:
    return "".join(_shown(part) if isinstance(part, tuple) else str(part) for part in path)


def _scalar(value: Any, kind: str, path: _Path) -> None:
    if not isinstance(value, _TYPES[kind]) or (kind in _RANGES and isinstance(value, bool)):
        raise InvalidSpecError(f"{_shown(path)} has the wrong type {type(value).__name__}")
    if isinstance(value, dict) and not all(isinstance(v, str) or v is None for v in value.values()):
        raise InvalidSpecError(f"{_shown(path)} has a value that is not text")
    least, most = _RANGES.get(kind, (0, 0))
    if isinstance(value, int) and kind in _RANGES and not least <= value <= most:
        raise InvalidSpecError(f"{_shown(path)} {value} is out of range")
