"""Validates whole CDI specs, as the Go library container-device-interface does when a runtime loads them."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.cdi.spec import (
    VERSIONS,
    check_edits,
    check_shape,
    dropped_fields,
    least_version,
    validate_device_name,
    validate_kind,
    version_key,
)
from dra_kubeletplugin.errors import InvalidSpecError


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
