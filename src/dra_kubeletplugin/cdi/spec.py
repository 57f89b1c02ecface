"""Validates CDI specs in JSON form with the strict checks of the Go library, which runtimes use to load specs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..base.json_types import ReadOnlyJSON
from ..errors import InvalidSpecError

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
OLDEST, NEWEST = "0.3.0", VERSIONS[-1]
_DIGITS = tuple("0123456789")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_DEVICE_NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

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
_RDT = "containerEdits.intelRdt"
SINCE: Mapping[str, str] = {
    "annotations": "0.6.0",
    "devices.annotations": "0.6.0",
    "containerEdits.deviceNodes.hostPath": "0.5.0",
    "containerEdits.netDevices": "1.1.0",
    "containerEdits.mounts.type": "0.4.0",
    _RDT: "0.7.0",
    f"{_RDT}.schemata": "1.1.0",
    f"{_RDT}.enableMonitoring": "1.1.0",
    "containerEdits.additionalGids": "0.7.0",
}
"""The first CDI version of each field that the oldest version lacks. ``containerEdits`` are the edits of a spec and of a device.

Sources: SPEC.md, "Released versions", and specs-go/version.go and config.go of container-device-interface.
"""
LAST_WITH = {"enableCMT": "1.0.0", "enableMBM": "1.0.0"}
"""The last CDI version of each field of ``intelRdt`` that the newest version lacks."""
_TYPES: dict[str, type] = {"s": str, "i": int, "u": int, "b": bool, "m": dict}
_RANGES = {"i": (-(2**63), 2**63 - 1), "u": (0, 2**32 - 1)}


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(p) for p in version.removeprefix("v").split("."))


def version_to_declare(spec: ReadOnlyJSON) -> str:
    """Returns the lowest CDI version that has all fields of a spec. Every library with this version accepts the spec.

    Raises :class:`InvalidSpecError` if no version has all fields.
    """
    least = least_version(spec, spec.get("devices") or [])
    for place, name, last in dropped_fields(spec):
        if version_key(last) < version_key(least):
            raise InvalidSpecError(
                f"no CDI version has all fields: {last} is the last version with {name} in {place}, and another field needs {least}"
            )
    return least


def dropped_fields(spec: ReadOnlyJSON) -> Iterator[tuple[str, str, str]]:
    """Yields the fields that a later CDI version dropped: where the field is, its name, and the last version that has it.

    A library of a later version rejects a spec with such a field, whatever version the spec declares.
    """
    owners = [(f"spec.devices[{i}]", device) for i, device in enumerate(spec.get("devices") or [])]
    for place, owner in (*owners, ("spec", spec)):
        for name in (owner.get("containerEdits") or {}).get("intelRdt") or ():
            if last := LAST_WITH.get(name):
                yield f"{place}.containerEdits.intelRdt", name, last


def least_version(spec: ReadOnlyJSON, checked_devices: Sequence[ReadOnlyJSON]) -> str:
    """Returns the lowest CDI version that a spec needs. Considers mount types and host paths of ``checked_devices`` only."""
    used = [OLDEST]
    vendor, _, class_name = str(spec.get("kind", "")).partition("/")
    if vendor and "." in class_name:
        used.append("0.6.0")
    if spec.get("annotations"):
        used.append(SINCE["annotations"])
    devices = spec.get("devices") or []
    for device in devices:
        if device.get("name", "")[:1] in _DIGITS:
            used.append("0.5.0")
        if device.get("annotations"):
            used.append(SINCE["devices.annotations"])
    for owner in (*checked_devices, spec):
        used += _older_versions(owner.get("containerEdits") or {})
    for owner in (*devices, spec):
        used += _edits_versions(owner.get("containerEdits") or {})
    return max(used, key=VERSIONS.index)


def _older_versions(edits: ReadOnlyJSON) -> list[str]:
    out = []
    for mount in edits.get("mounts") or ():
        if mount.get("type"):
            out.append(SINCE["containerEdits.mounts.type"])
    for node in edits.get("deviceNodes") or ():
        if node.get("hostPath"):
            out.append(SINCE["containerEdits.deviceNodes.hostPath"])
    return out


def _edits_versions(edits: ReadOnlyJSON) -> list[str]:
    out = []
    rdt = edits.get("intelRdt")
    if rdt is not None:
        out.append(SINCE[_RDT])
        if rdt.get("schemata") is not None:
            out.append(SINCE[f"{_RDT}.schemata"])
        if rdt.get("enableMonitoring"):
            out.append(SINCE[f"{_RDT}.enableMonitoring"])
    for name in ("additionalGids", "netDevices"):
        if edits.get(name):
            out.append(SINCE[f"containerEdits.{name}"])
    return out


def validate_kind(kind: str) -> None:
    """Checks ``vendor/class``: both names begin with a letter, end with a letter or digit, and have [A-Za-z0-9_.-] between.

    Raises :class:`InvalidSpecError`.
    """
    vendor, slash, name = kind.partition("/")
    if not slash or not vendor or not name:
        raise InvalidSpecError("invalid vendor. empty name")
    for what, value in (("vendor", vendor), ("class", name)):
        if not (value[0].isascii() and value[0].isalpha()):
            raise InvalidSpecError(f'invalid {what}. "{value}", should start with letter')
        for c in value[1:-1]:
            if not (c.isascii() and (c.isalnum() or c in "_.-")):
                raise InvalidSpecError(f"invalid {what}. invalid character '{c}' in name \"{value}\"")
        if not (value[-1].isascii() and value[-1].isalnum()):
            raise InvalidSpecError(f'invalid {what}. "{value}", should end with a letter or digit')


def validate_device_name(name: str) -> None:
    """Checks a device name: it begins and ends with a letter or digit, with [A-Za-z0-9_.:-] between.

    Raises :class:`InvalidSpecError`.
    """
    if _DEVICE_NAME.fullmatch(name):
        return
    if not name:
        raise InvalidSpecError("invalid (empty) device name")
    if not (name[0].isascii() and name[0].isalnum()):
        raise InvalidSpecError(f'invalid class "{name}", should start with a letter or digit')
    for c in name[1:-1]:
        if not (c.isascii() and (c.isalnum() or c in "_.:-")):
            raise InvalidSpecError(f"invalid character '{c}' in device name \"{name}\"")
    if not (name[-1].isascii() and name[-1].isalnum()):
        raise InvalidSpecError(f'invalid name "{name}", should end with a letter or digit')


def check_types(edits: Any) -> None:
    """Raises :class:`InvalidSpecError` if container edits have an unknown field or a wrong type."""
    _strict(edits, EDITS_SHAPE, ("edits",))


def check_edits(edits: ReadOnlyJSON) -> None:
    """Applies the Go library's rules to container edits whose types are valid. Raises :class:`InvalidSpecError`."""
    for env in edits.get("env") or []:
        _check_env(env, "invalid container edits: ")
    for node in edits.get("deviceNodes") or []:
        _check_node(node)
    for hook in edits.get("hooks") or []:
        name = hook.get("hookName", "")
        if name not in HOOKS:
            raise InvalidSpecError(f'invalid hook name "{name}"')
        if not hook.get("path"):
            raise InvalidSpecError(f'invalid hook "{name}" with empty path')
        for env in hook.get("env") or []:
            _check_env(env, f'invalid hook "{name}": ')
    for mount in edits.get("mounts") or []:
        for key, word in (("hostPath", "host"), ("containerPath", "container")):
            if not mount.get(key):
                raise InvalidSpecError(f"invalid mount, empty {word} path")
    rdt = edits.get("intelRdt")
    if rdt is not None:
        clos = rdt.get("closID", "")
        # "/" is the root group; other groups are folder names.
        if clos != "/" and (len(clos.encode()) >= 4096 or clos in {".", ".."} or "/" in clos or "\n" in clos):
            raise InvalidSpecError("invalid ClosID")
    _check_net(edits.get("netDevices") or [])


def _check_env(value: str, prefix: str) -> None:
    if not value.partition("=")[0] or "=" not in value:
        raise InvalidSpecError(f'{prefix}invalid environment variable "{value}"')


def _check_node(node: ReadOnlyJSON) -> None:
    path = node.get("path", "")
    if not path:
        raise InvalidSpecError("invalid (empty) device path")
    if node.get("type", "") not in {"", "b", "c", "u", "p"}:
        raise InvalidSpecError(f'device "{path}": invalid type "{node["type"]}"')
    permissions = node.get("permissions", "")
    if any(c not in "rwm" for c in permissions):
        raise InvalidSpecError(f'device "{path}": invalid permissions "{permissions}"')


def _check_net(devices: list[ReadOnlyJSON]) -> None:
    by_host: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for device in devices:
        host, name = device.get("hostInterfaceName", ""), device.get("name", "")
        if not host:
            raise InvalidSpecError("invalid linux net device, empty HostInterfaceName")
        if not name:
            raise InvalidSpecError("invalid linux net device, empty Name")
        what = "invalid linux net device, duplicate"
        if host in by_host:
            raise InvalidSpecError(f'{what} HostInterfaceName "{host}" with names "{name}" and "{by_host[host]}"')
        if name in by_name:
            raise InvalidSpecError(f'{what} Name "{name}" with HostInterfaceName "{host}" and "{by_name[name]}"')
        by_host[host], by_name[name] = name, host


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
