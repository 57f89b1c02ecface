"""Validates a manifest without a server: types, unknown fields, validation rules and CEL.

The module uses the API server's defaulting, conversion and validation of a create request, without storage. So it accepts
the same manifests as the local cluster.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from ...base.text import did_you_mean
from ...base.yaml.manifests import Manifest
from ...resourceapi.gated_fields import Gate
from ...resourceapi.kubernetes_releases import Features
from ...resourceapi.schemas import shapes
from ...resourceapi.validation import claims
from ...resourceapi.validation.field_errors import FieldError
from . import dropped_fields, field_hints, strategy
from .kinds import Registry, ServedKind

JSON = dict[str, Any]
# The namespace's labels are unknown offline, so admin access is allowed.
_ADMIN = {"resource.kubernetes.io/admin-access": "true"}
# Patterns that find an unknown name in a CEL error, each with the names from which a similar name is suggested.
_IN_CEL = {
    r"undefined field '(\w+)'": ("driver", "attributes", "capacity", "allowMultipleAllocations"),
    r"undeclared reference to '(\w+)'": (
        "device",
        "cel",
        "semver",
        "quantity",
        "has",
        "size",
        "matches",
        "string",
        "int",
    ),
}
_REFERENCE = re.compile(r'(?:Not found: |Invalid value: (?=.*must be the name of a request))"([^"]*)"')
# The end of the path of a claim's or a pod's spec.
_SPEC_ENDS = re.compile(r"\.devices\.|\.(?:initC|ephemeralC|c)ontainers\[")


class UnknownKind(LookupError):
    """The local cluster does not serve the kind. ``fault`` describes a likely spelling error; it is empty for a possible custom kind."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault


def manifest_errors(manifest: Manifest, features: Features | None = None) -> tuple[list[tuple[str, str]], bool]:
    """Returns the errors of one manifest of a file, and whether its kind is known.

    Returns:
        The errors, each as its place and a sentence; and the boolean. It is also true for a misspelled kind, which is one of the errors.
    """
    known = True
    try:
        found = manifest.faults or object_errors(manifest.value, features)
    except UnknownKind as e:
        found, known = [e.fault] if e.fault else [], bool(e.fault)
    return [*manifest.document.faults, *map(manifest.located, found)], known


def object_errors(document: JSON, features: Features | None = None) -> list[str]:
    """Validates an object as ``kubectl create`` would in an empty cluster.

    Args:
        document: an object with ``apiVersion``, ``kind`` and a name.
        features: the Kubernetes release and its feature gates; None for the default release.

    Returns:
        A sentence with the path for each error.

    Raises:
        UnknownKind: The local cluster does not serve the kind.
    """
    features = features or Features.of()
    registry = Registry(features)
    kind = registry.by_kind(document["apiVersion"], document["kind"])
    if kind is None:
        raise UnknownKind(_misspelled(document["apiVersion"], document["kind"], list(registry)))
    if kind.refused:
        return [kind.refused]
    version = document["apiVersion"].rpartition("/")[2]
    shape = shapes.kind_shape(kind.group, version, kind.kind)
    assert shape is not None, kind.key
    unknown = list(field_hints.unknown(document, shape))
    out = field_hints.sentences(unknown)
    if mistyped := field_hints.sentences(field_hints.mistyped(document, shape)):
        return out + mistyped  # An object with wrong types cannot be decoded, so no other check can run.
    reported = {path for path, _ in unknown}
    warnings: list[str] = []
    try:
        obj = strategy.incoming(kind, version, document, features, strict=False, warnings=warnings)
        out += _reworded(warnings, reported, features.release)
        meta = obj["metadata"]
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        else:
            meta.pop("namespace", None)  # as an API server does
        obj = strategy.prepare(kind, obj, None, status=False)
        if not meta.get("name"):
            obj["metadata"]["name"] = f"{meta['generateName']}x"
        dropped_fields.drop(kind, obj, None, features)
        strategy.validate(kind, obj, None, _ADMIN, features, status=False)
    except strategy.BadObject as e:
        out.append(str(e))
    except strategy.InvalidObject as e:
        out += (_with_nearest(fault, obj) for fault in e.faults)
    return out


def _reworded(warnings: list[str], reported: set[str], release: str) -> Iterator[str]:
    """Yields the warnings, with another text for a field that only a later release knows."""
    for text in warnings:
        if (found := re.fullmatch(r'unknown field "(.*)"', text)) is None:
            yield text
        elif found[1] not in reported:
            yield f"{found[1]}: unknown field in Kubernetes {release}: a later release adds it"


def _with_nearest(fault: FieldError, obj: JSON) -> str:
    text = str(fault)
    if hint := _reference(fault, obj):
        return text + hint
    if fault.reason == "FieldValueNotSupported":
        value, _, allowed = fault.message.partition("supported values: ")
        quoted = re.search(r'"(.*)"', value)
        return text + (did_you_mean(quoted[1], re.findall(r'"(.*?)"', allowed)) if quoted else "")
    for pattern, known in _IN_CEL.items():
        if (found := re.search(pattern, text)) and (hint := did_you_mean(found[1], known)):
            return re.sub(pattern, lambda m, hint=hint: m[0] + hint, text, count=1)  # type: ignore[misc]
    text = re.sub(
        r"(undeclared reference to 'includes')",
        rf"\1: it needs the feature gate {Gate.LISTS.value}",
        text,
    )
    return re.sub(r"(token recognition error at: '=[^=']*')", r"\1: compare with '=='", text)


def _reference(fault: FieldError, obj: JSON) -> str:
    """Suggests a similar name of a request, claim or volume in the object, if the error is about such a name."""
    quoted, end = _REFERENCE.match(fault.message), _SPEC_ENDS.search(fault.field)
    if quoted is None or end is None:
        return ""
    spec = functools.reduce(lambda at, key: at[key], fault.field[: end.start()].split("."), obj)
    if end[0] == ".devices.":
        return did_you_mean(quoted[1], sorted(claims.known_requests(spec)))
    own = "resourceClaims" if ".resources.claims[" in fault.field else "volumes"
    return did_you_mean(quoted[1], [str(named.get("name")) for named in spec.get(own) or []])


def _misspelled(api_version: str, kind: str, known: list[ServedKind]) -> str:
    group, _, version = api_version.rpartition("/")
    groups = {k.group for k in known}
    if group in groups:
        in_group = [k for k in known if k.group == group]
        if same_kind := [k for k in in_group if k.kind == kind]:
            available = ", ".join(k.api_version(v) for k in same_kind for v in k.versions)
            return f"apiVersion: {api_version!r} has no {kind}: use {available}"
        if hint := did_you_mean(kind, [k.kind for k in in_group], 0.8):
            return f"kind: {api_version} has no {kind!r}{hint}"
        if other_versions := _versions_with(kind, known):
            return f"apiVersion: {kind} is not in {api_version!r}: use {other_versions}"
        versions = {v for k in in_group for v in k.versions}
        if version not in versions:
            return f"apiVersion: {api_version!r} is not a version of Kubernetes{did_you_mean(version, versions)}"
        return ""
    if other_versions := _versions_with(kind, known):
        similar = did_you_mean(group, [g for g in groups if g], 0.7)
        return f"apiVersion: no {kind} in {api_version!r}: use {other_versions}" if similar or "." not in group else ""
    return ""


def _versions_with(kind: str, known: list[ServedKind]) -> str:
    return ", ".join(k.api_version(v) for k in known if k.kind == kind for v in k.versions)
