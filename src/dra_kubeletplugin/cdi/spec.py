"""The rules of the Go library with which runtimes load CDI specs: names, values of container edits, and the versions of fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..base.json_types import ReadOnlyJSON
from ..errors import InvalidSpecError

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
OLDEST, NEWEST = "0.3.0", VERSIONS[-1]
_DIGITS = tuple("0123456789")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_DEVICE_NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

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
