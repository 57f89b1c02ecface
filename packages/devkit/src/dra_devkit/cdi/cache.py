"""Finds CDI devices in spec folders and injects them into an OCI spec, as the Go library container-device-interface 1.1.0 does."""

from __future__ import annotations

import copy
import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..hosts import tree
from .reader import SpecFileError, read_spec
from .spec_validation import spec_faults

SUFFIXES = (".json", ".yaml")  # of the files that runtimes read
DEFAULT_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))


class CdiInjectError(Exception):
    """Devices cannot be injected. ``unresolved`` contains the names that were not found."""

    def __init__(self, message: str, unresolved: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.unresolved = list(unresolved)


class CdiCache:
    """The usable devices of some folders. ``dirs`` begins with the lowest priority. The folders are read once, at creation.

    ``errors`` has the faults of each file, as the Go library reports them. The files in ``conflicting`` are valid, but have a device that
    another file of the same folder has too.
    """

    def __init__(self, dirs: Sequence[Path] = DEFAULT_DIRS) -> None:
        self.errors: dict[str, list[str]] = {}
        self.conflicting: set[str] = set()
        self.devices: dict[str, tuple[Path, Mapping[str, Any], Mapping[str, Any]]] = {}
        self._priority: dict[str, int] = {}
        conflicts: set[str] = set()
        for priority, folder in enumerate(dirs):
            for path in sorted(folder.iterdir()) if folder.is_dir() else []:
                if path.name.endswith(SUFFIXES) and (path.is_symlink() or not path.is_dir()):
                    self._load(path, priority, conflicts)
        for name in conflicts:
            self.devices.pop(name, None)

    @property
    def listed(self) -> list[str]:
        return sorted(self.devices)

    def _load(self, path: Path, priority: int, conflicts: set[str]) -> None:
        try:
            spec = read_spec(path)
        except (SpecFileError, OSError) as e:
            self._fault(
                path, f'failed to load CDI Spec failed to parse CDI Spec "{path}": failed to unmarshal CDI Spec: {e}'
            )
            return
        if fault := spec_faults(spec):
            self._fault(path, f"failed to load CDI Spec invalid CDI Spec: {fault}")
            return
        for device in spec["devices"]:
            name = f"{spec['kind']}={device['name']}"
            if name in self.devices and self._priority[name] == priority:
                other = self.devices[name][0]
                message = f'conflicting device "{name}" (specs "{path}", "{other}")'
                self._fault(path, message)
                self._fault(other, message)
                self.conflicting |= {str(path), str(other)}
                conflicts.add(name)
                continue
            self.devices[name] = (path, spec, device)
            self._priority[name] = priority

    def _fault(self, path: Path, message: str) -> None:
        self.errors.setdefault(str(path), []).append(message)

    def inject(self, oci: Mapping[str, Any] | None, names: Sequence[str], dev: Path = Path("/dev")) -> dict[str, Any]:
        """Returns a copy of ``oci`` with the devices' edits applied.

        Args:
            oci: an OCI spec, or None for an empty one.
            names: CDI device ids.
            dev: the folder that contains the host's device nodes; tests use another folder than ``/dev``.

        Raises :class:`CdiInjectError` if a name is unknown. If the spec omits the type or numbers of a device node, raises it also
        if the host has no such node, or one of another type.
        """
        unresolved = [n for n in names if n not in self.devices]
        if unresolved:
            raise CdiInjectError(f"unresolvable CDI devices {', '.join(unresolved)}", unresolved)
        out: dict[str, Any] = copy.deepcopy(dict(oci or {"ociVersion": ""}))
        edits: list[Mapping[str, Any]] = []
        seen: set[Path] = set()
        for name in names:
            path, spec, device = self.devices[name]
            if path not in seen:
                seen.add(path)
                edits.append(spec.get("containerEdits") or {})
            edits.append(device["containerEdits"])
        try:
            _apply(out, edits, dev)
        except CdiInjectError as e:
            raise CdiInjectError(f"failed to inject devices: {e}") from None
        return out


def _process(oci: dict[str, Any]) -> dict[str, Any]:
    process: dict[str, Any] = oci.setdefault("process", {"user": {"uid": 0, "gid": 0}, "cwd": ""})
    return process


def _apply(oci: dict[str, Any], all_edits: Sequence[Mapping[str, Any]], dev: Path) -> None:
    def all_items(key: str) -> list[Any]:
        return [item for edits in all_edits for item in edits.get(key) or []]

    if entries := all_items("env"):
        _add_env(_process(oci).setdefault("env", []), entries)
    for node in all_items("deviceNodes"):
        _add_node(oci, node, dev)
    for net in all_items("netDevices"):
        oci.setdefault("linux", {}).setdefault("netDevices", {})[net["hostInterfaceName"]] = {"name": net["name"]}
    if mounts := all_items("mounts"):
        _add_mounts(oci, mounts)
    for hook in all_items("hooks"):
        entry = {k: hook[k] for k in ("path", "args", "env", "timeout") if hook.get(k) not in (None, [])}
        oci.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(entry)
    for edits in all_edits:
        if edits.get("intelRdt") is not None:
            rdt = {k: v for k, v in edits["intelRdt"].items() if v not in ("", False, None, [])}
            oci.setdefault("linux", {})["intelRdt"] = rdt
    for gid in all_items("additionalGids"):
        if gid:
            gids = _process(oci)["user"].setdefault("additionalGids", [])
            if gid not in gids:
                gids.append(gid)


def _add_env(env: list[str], entries: Sequence[str]) -> None:
    """Appends variables.

    As in the Go library, a later device replaces variables of earlier devices, but not the container's own.
    """
    places = {entry: i for i, entry in enumerate(env)}
    for entry in entries:
        name = entry.partition("=")[0]
        if name in places:
            env[places[name]] = entry
        else:
            places[name] = len(env)
            env.append(entry)


def _place(items: Sequence[Mapping[str, Any]], key: str, value: str) -> int | None:
    """Returns the index of the first item with this value."""
    return next((i for i, item in enumerate(items) if item[key] == value), None)


def _add_mounts(oci: dict[str, Any], mounts: Sequence[Mapping[str, Any]]) -> None:
    existing: list[dict[str, Any]] = oci.setdefault("mounts", [])
    for mount in mounts:
        # As in the Go library, only the first mount with the same destination is replaced.
        if (i := _place(existing, "destination", mount["containerPath"])) is not None:
            del existing[i]
        entry = {"destination": mount["containerPath"], "type": mount.get("type", ""), "source": mount["hostPath"]}
        entry["options"] = mount.get("options") or []
        existing.append({k: v for k, v in entry.items() if v})
    # Parents before children: sorted by the number of path components, otherwise in order.
    existing.sort(key=lambda m: posixpath.normpath(m["destination"]).count("/"))


def _add_node(oci: dict[str, Any], node: Mapping[str, Any], dev: Path) -> None:
    filled = _fill(node, dev)
    device: dict[str, Any] = {"path": filled["path"], "type": filled["type"]}
    device |= {"major": filled.get("major", 0), "minor": filled.get("minor", 0)}
    if filled.get("fileMode") is not None:
        device["fileMode"] = filled["fileMode"]
    user = (oci.get("process") or {}).get("user") or {}
    for key in ("uid", "gid"):
        if filled.get(key) is not None:
            device[key] = filled[key]
        elif user.get(key):
            device[key] = user[key]
    linux = oci.setdefault("linux", {})
    devices = linux.setdefault("devices", [])
    if (i := _place(devices, "path", device["path"])) is not None:
        del devices[i]
    if (i := _place(devices, "path", device["path"])) is not None:
        devices[i] = device
    else:
        devices.append(device)
    if device["type"] in {"b", "c"}:
        rule = {"allow": True, "type": device["type"], "major": device["major"], "minor": device["minor"]}
        rule["access"] = filled.get("permissions") or "rwm"
        linux.setdefault("resources", {}).setdefault("devices", []).append(rule)


def _fill(node: Mapping[str, Any], dev: Path) -> dict[str, Any]:
    """Returns the device node with the type, numbers and mode of the host's node, if the spec omits them."""
    out = dict(node)
    complete = bool(out.get("type") and (out.get("major") or out["type"] == "p"))
    source = out.get("hostPath") or out["path"]
    try:
        kind, major, minor, mode = _on_host(source, dev)
    except OSError as e:
        if complete:
            return out
        why = (e.strerror or str(e)).lower()
        raise CdiInjectError(f'failed to stat CDI host device "{source}": {why}') from None
    if out.get("fileMode") is None and mode is not None:
        out["fileMode"] = mode
    if complete:
        return out
    if out.get("type") and out["type"] != kind:
        raise CdiInjectError(f'CDI device ("{out["path"]}", "{source}"), host type mismatch ({out["type"]}, {kind})')
    out["type"] = kind
    if kind != "p" and not out.get("major"):
        out["major"], out["minor"] = major, minor
    return out


def _on_host(source: str, dev: Path) -> tuple[str, int, int, int | None]:
    """Returns type, major, minor and mode of a device node; the node of a described host has no mode.

    Raises ``OSError`` if there is no device node. A link to a device node does not count.
    """
    seen = dev / source.removeprefix("/dev/") if source.startswith("/dev/") else Path(source)
    if dev != Path("/dev") and (numbers := tree.device_numbers(seen)):
        return *numbers, None
    found = seen.lstat()
    kinds = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}
    kind = kinds.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        raise OSError("not a device node")
    return kind, os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode)
