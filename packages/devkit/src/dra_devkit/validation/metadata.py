"""Validates the metadata of an object, and of the objects of a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    forbidden,
    invalid,
    invalids,
    required,
    too_long,
)

MAX_ANNOTATION_BYTES = 256 * 1024
MAX_GENERATED_BASE = 58  # characters of generateName that a generated name keeps
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
TEMPLATE_FIELDS = ("labels", "annotations")


def metadata(meta: ReadOnlyJSON, path: str = "metadata") -> list[FieldError]:
    """Returns every error of an object's metadata. The name must be a DNS subdomain."""
    return _name(meta, path) + _general(meta, path) + _known_finalizers(meta, path)


def updated_metadata(meta: ReadOnlyJSON, path: str = "metadata", *, wholly: bool = True) -> list[FieldError]:
    """Returns every error of an update's metadata, as many times as the server reports it.

    The server applies the rules for all objects, the rules for updates, and the rules of the kind. The rules of the
    kind repeat the other two sets of rules (``wholly``) or, for slices, only the rules for updates.
    """
    out = _general(meta, path) + _changeable(meta, path)
    if wholly:
        out += metadata(meta, path)
    return out + _changeable(meta, path) + _known_finalizers(meta, path)


def _general(meta: ReadOnlyJSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    if meta.get("generation", 0) < 0:
        out.append(invalid(f"{path}.generation", meta["generation"], "must be greater than or equal to 0"))
    return out + _changeable(meta, path) + _finalizers(meta.get("finalizers") or [], f"{path}.finalizers")


def _changeable(meta: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = _labels(meta.get("labels") or {}, f"{path}.labels")
    out += _annotations(meta.get("annotations") or {}, f"{path}.annotations")
    return out + _owners(meta.get("ownerReferences") or [], f"{path}.ownerReferences")


def template_metadata(meta: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of the metadata that a template has for its objects: only labels and annotations are allowed."""
    out = _annotations(meta.get("annotations") or {}, f"{path}.annotations")
    out += _labels(meta.get("labels") or {}, f"{path}.labels")
    return out + [forbidden(f"{path}.{k}", "cannot be set") for k in meta if k not in TEMPLATE_FIELDS]


def merged_owners(owners: Sequence[ReadOnlyJSON]) -> list[ReadOnlyJSON]:
    """Returns owner references without duplicates."""
    out: list[ReadOnlyJSON] = []
    for owner in owners:
        if owner not in out:
            out.append(owner)
    return out


def _name(meta: ReadOnlyJSON, path: str) -> list[FieldError]:
    name, prefix = meta.get("name", ""), meta.get("generateName", "")
    out: list[FieldError] = []
    if prefix:
        # A suffix follows a final dash, so the server does not check the dash and the character before it.
        masked = prefix[:-2] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        out += invalids(f"{path}.generateName", prefix, names.subdomain(masked))
        name = name or f"{prefix[:MAX_GENERATED_BASE]}xxxxx"
    if not name:
        return [required(f"{path}.name", "name or generateName is required")]
    return out + invalids(f"{path}.name", name, names.subdomain(name))


def _labels(labels: Mapping[str, str], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for key, value in labels.items():
        out += invalids(path, key, names.qualified(key)) + invalids(path, value, names.label_value(value))
    return out


def _annotations(annotations: Mapping[str, str], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for key in annotations:
        out += invalids(path, key, names.qualified(key.lower()))
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > MAX_ANNOTATION_BYTES:
        out.append(too_long(path, MAX_ANNOTATION_BYTES))
    return out


def _owners(owners: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for owner in owners:
        group, version = _group_version(owner.get("apiVersion", ""))
        if not version:
            out.append(invalid(f"{path}.apiVersion", owner.get("apiVersion", ""), "version must not be empty"))
        out += [invalid(f"{path}.{k}", "", "must not be empty") for k in ("kind", "name", "uid") if not owner.get(k)]
        if (group, version, owner.get("kind")) == ("", "v1", "Event"):
            out.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
    controllers = [f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller")]
    for other in controllers[1:]:
        rule = 'Only one reference can have Controller set to true. Found "true" in references for'
        out.append(invalid(path, owners, f"{rule} {controllers[0]} and {other}"))
    return out


def _group_version(text: str) -> tuple[str, str]:
    """Returns group and version of an ``apiVersion``; both are empty if it has more than two parts."""
    parts = text.split("/")
    if len(parts) > 2:
        return "", ""
    return (parts[0], parts[1]) if len(parts) == 2 else ("", text)


def _finalizers(finalizers: Sequence[str], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for finalizer in finalizers:
        out += invalids(path, finalizer, names.qualified(finalizer))
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        rule = "finalizer orphan and foregroundDeletion cannot be both set"
        out.append(invalid(path, finalizers, rule))
    return out


def _known_finalizers(meta: ReadOnlyJSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, finalizer in enumerate(meta.get("finalizers") or []):
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            rule = "name is neither a standard finalizer name nor is it fully qualified"
            out.append(invalid(f"{path}.finalizers[{i}]", finalizer, rule))
    return out
