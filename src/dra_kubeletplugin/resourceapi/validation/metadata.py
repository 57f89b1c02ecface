"""What the API server accepts as the metadata of an object, and of a template's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import names
from .field_errors import FieldError, forbidden, invalid, invalids, required, too_long

MAX_ANNOTATION_BYTES = 256 * 1024
MAX_GENERATED_BASE = 58  # characters of generateName that a generated name keeps
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
TEMPLATE_FIELDS = ("labels", "annotations")

JSON = Mapping[str, Any]


def metadata(given: JSON, path: str = "metadata") -> list[FieldError]:
    """Every fault of an object's metadata, whose name is a DNS subdomain."""
    return _name(given, path) + _general(given, path) + _known_finalizers(given, path)


def updated_metadata(given: JSON, path: str = "metadata", *, wholly: bool = True) -> list[FieldError]:
    """Every fault of the metadata of an update, as often as the server reports it.

    It asks the rules of all objects, those of an update, and those of the kind, which has both again (``wholly``) or those of
    an update alone, as slices have.
    """
    out = _general(given, path) + _changeable(given, path)
    if wholly:
        out += metadata(given, path)
    return out + _changeable(given, path) + _known_finalizers(given, path)


def _general(given: JSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    if given.get("generation", 0) < 0:
        out.append(invalid(f"{path}.generation", given["generation"], "must be greater than or equal to 0"))
    return out + _changeable(given, path) + _finalizers(given.get("finalizers") or [], f"{path}.finalizers")


def _changeable(given: JSON, path: str) -> list[FieldError]:
    out = _labels(given.get("labels") or {}, f"{path}.labels")
    out += _annotations(given.get("annotations") or {}, f"{path}.annotations")
    return out + _owners(given.get("ownerReferences") or [], f"{path}.ownerReferences")


def template_metadata(given: JSON, path: str) -> list[FieldError]:
    """Every fault of the metadata that objects made from a template get: labels and annotations, and nothing else."""
    out = _annotations(given.get("annotations") or {}, f"{path}.annotations")
    out += _labels(given.get("labels") or {}, f"{path}.labels")
    return out + [forbidden(f"{path}.{k}", "cannot be set") for k in given if k not in TEMPLATE_FIELDS]


def merged_owners(owners: Sequence[JSON]) -> list[JSON]:
    """Owner references, each once."""
    out: list[JSON] = []
    for owner in owners:
        if owner not in out:
            out.append(owner)
    return out


def _name(given: JSON, path: str) -> list[FieldError]:
    name, prefix = given.get("name", ""), given.get("generateName", "")
    out: list[FieldError] = []
    if prefix:
        # Something follows a dash at the end, so that it and the character before it are not looked at.
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


def _owners(owners: Sequence[JSON], path: str) -> list[FieldError]:
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
    """Group and version of an ``apiVersion``; both empty where it has more than these two."""
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


def _known_finalizers(given: JSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, finalizer in enumerate(given.get("finalizers") or []):
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            rule = "name is neither a standard finalizer name nor is it fully qualified"
            out.append(invalid(f"{path}.finalizers[{i}]", finalizer, rule))
    return out
