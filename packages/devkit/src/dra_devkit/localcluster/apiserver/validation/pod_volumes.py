"""Validates a pod's volumes and their use by its containers. Source: the validation package of the core API group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, required

from .checks import missing, no_parents, optional_choice, quantity, unique_label
from .pod_references import validate_references

_HOST_PATHS = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
_BLOCK = {"persistentVolumeClaim", "ephemeral"}
# The required fields of volume sources, for sources without further checks.
_NAMED = {
    "persistentVolumeClaim": ("claimName",),
    "csi": ("driver",),
    "nfs": ("server", "path"),
    "image": ("reference",),
    "ephemeral": ("volumeClaimTemplate",),
}
_MIN_TOKEN_LIFETIME = 600  # minimum lifetime of a projected service account token, in seconds


def validate_volumes(volumes: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    """Returns all errors of ``spec.volumes``."""
    out: list[FieldError] = []
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        where = f"{path}[{i}]"
        name = volume.get("name", "")
        out += unique_label(f"{where}.name", name, seen)
        kinds = [k for k, v in volume.items() if k != "name" and v is not None]
        for extra in kinds[1:]:
            out.append(forbidden(f"{where}.{extra}", "may not specify more than 1 volume type"))
        if kinds:
            out += _source(kinds[0], volume[kinds[0]], f"{where}.{kinds[0]}")
    return out


def _source(kind: str, source: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    match kind:
        case "hostPath":
            yield from _host_path(source, path)
        case "emptyDir":
            if (limit := quantity(source.get("sizeLimit"))) is not None and limit < Quantity(0):
                yield forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")
        case "secret":
            yield from _files(source, path, "secretName")
        case "configMap":
            yield from _files(source, path, "name")
        case "downwardAPI":
            yield from _mode(source, "defaultMode", path)
            yield from _downward(source.get("items") or [], f"{path}.items")
        case "projected":
            yield from _mode(source, "defaultMode", path)
            yield from _projected(source.get("sources") or [], f"{path}.sources")
        case _:
            yield from missing(source, path, *_NAMED.get(kind, ()))


def _host_path(source: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    yield from missing(source, path, "path")
    yield from no_parents(source.get("path") or "", f"{path}.path")
    yield from optional_choice(source.get("type"), f"{path}.type", _HOST_PATHS)


def _files(source: ReadOnlyJSON, path: str, name: str) -> Iterator[FieldError]:
    yield from missing(source, path, name)
    yield from _mode(source, "defaultMode", path)
    for i, item in enumerate(source.get("items") or []):
        where = f"{path}.items[{i}]"
        yield from missing(item, where, "key")
        yield from _local_path(item, where)
        yield from _mode(item, "mode", where)


def _mode(source: ReadOnlyJSON, field: str, path: str) -> Iterator[FieldError]:
    mode = source.get(field)
    if mode is not None and not 0 <= mode <= 0o777:
        yield invalid(f"{path}.{field}", mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _local_path(item: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    target = item.get("path") or ""
    if not target:
        yield required(f"{path}.path")
    elif PurePosixPath(target).is_absolute():
        yield invalid(f"{path}.path", target, "must be a relative path")
    elif faults := no_parents(target, f"{path}.path"):
        yield from faults
    elif target.startswith(".."):
        yield invalid(f"{path}.path", target, "must not start with '..'")


def _downward(items: Sequence[ReadOnlyJSON], path: str) -> Iterator[FieldError]:
    for i, item in enumerate(items):
        where = f"{path}[{i}]"
        yield from _local_path(item, where)
        yield from _mode(item, "mode", where)
        if item.get("fieldRef") is None and item.get("resourceFieldRef") is None:
            yield required(f"{where}.resourceFieldRef", "either fieldRef or resourceFieldRef is required")
        elif item.get("fieldRef") is not None and item.get("resourceFieldRef") is not None:
            yield invalid(where, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
        else:
            yield from validate_references(item, where, volume=True)


def _projected(sources: Sequence[ReadOnlyJSON], path: str) -> Iterator[FieldError]:
    for i, source in enumerate(sources):
        where = f"{path}[{i}]"
        kinds = [k for k, v in source.items() if v is not None]
        for extra in kinds[1:]:
            yield forbidden(f"{where}.{extra}", "may not specify more than 1 volume type per source")
        match kinds[:1]:
            case [("secret" | "configMap") as kind]:
                yield from _files(source[kind], f"{where}.{kind}", "name")
            case ["downwardAPI"]:
                yield from _downward(source["downwardAPI"].get("items") or [], f"{where}.downwardAPI.items")
            case ["serviceAccountToken"]:
                token, at = source["serviceAccountToken"], f"{where}.serviceAccountToken"
                yield from missing(token, at, "path")
                lifetime = token.get("expirationSeconds")
                if lifetime is not None and lifetime < _MIN_TOKEN_LIFETIME:
                    rule = "may not specify a duration less than 10 minutes"
                    yield invalid(f"{at}.expirationSeconds", lifetime, rule)


# --- containers -------------------------------------------------------------------------------------


def validate_volume_uses(container: ReadOnlyJSON, where: str, volumes: Mapping[str, ReadOnlyJSON]) -> list[FieldError]:
    """Returns all errors of a container's ``volumeMounts`` and ``volumeDevices``. ``volumes``: the pod's volumes by name."""
    out: list[FieldError] = []
    paths: set[str] = set()
    mounted: set[str] = set()
    for i, mount in enumerate(container.get("volumeMounts") or []):
        path = f"{where}.volumeMounts[{i}]"
        target = mount.get("mountPath", "")
        out += _known(mount.get("name", ""), f"{path}.name", volumes)
        if not target:
            out.append(required(f"{path}.mountPath"))
        elif target in paths:
            out.append(invalid(f"{path}.mountPath", target, "must be unique"))
        paths.add(target)
        mounted.add(mount.get("name", ""))
        out += _mount_options(mount, path, container)
    devices: set[str] = set()
    for i, device in enumerate(container.get("volumeDevices") or []):
        path = f"{where}.volumeDevices[{i}]"
        name, target = device.get("name", ""), device.get("devicePath", "")
        out += _known(name, f"{path}.name", volumes)
        if name in devices or name in mounted:
            message = "must be unique" if name in devices else "must not already exist in volumeMounts"
            out.append(invalid(f"{path}.name", name, message))
        if name in volumes and not _BLOCK & volumes[name].keys():
            rule = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            out.append(invalid(f"{path}.name", name, rule))
        if not target:
            out.append(required(f"{path}.devicePath"))
        elif target in paths:
            out.append(invalid(f"{path}.devicePath", target, "must be unique"))
        paths.add(target)
        devices.add(name)
    return out


def _known(name: str, path: str, volumes: Mapping[str, ReadOnlyJSON]) -> list[FieldError]:
    if not name:
        return [required(path)]
    return [] if name in volumes else [FieldError("FieldValueNotFound", path, f'Not found: "{name}"')]


def _mount_options(mount: ReadOnlyJSON, path: str, container: ReadOnlyJSON) -> Iterator[FieldError]:
    for field in ("subPath", "subPathExpr"):
        part = mount.get(field) or ""
        if PurePosixPath(part).is_absolute():
            yield invalid(f"{path}.{field}", part, "must be a relative path")
        else:
            yield from no_parents(part, f"{path}.{field}")
    if mount.get("subPath") and mount.get("subPathExpr"):
        yield invalid(f"{path}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive")
    propagation = mount.get("mountPropagation")
    yield from optional_choice(propagation, f"{path}.mountPropagation", _PROPAGATIONS)
    if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        rule = "Bidirectional mount propagation is available only to privileged containers"
        yield forbidden(f"{path}.mountPropagation", rule)
