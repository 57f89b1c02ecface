"""What an API server would refuse in an object, without a server: types, unknown fields, rules and CEL of the usual release, in words
for whoever wrote it."""

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
from . import dropped_fields, strategy, unknown_fields
from .kinds import Registry, ServedKind

JSON = dict[str, Any]
_ADMIN = {"resource.kubernetes.io/admin-access": "true"}  # which labels a namespace has is not known here
_IN_CEL = {  # what a compiler names that there is not, and what there is
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
# Where the path of a claim's or a pod's spec ends.
_SPEC_ENDS = re.compile(r"\.devices\.|\.(?:initC|ephemeralC|c)ontainers\[")


class UnknownKind(LookupError):
    """``fault`` says what was misspelled; empty where it may be a kind of somebody's own."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault


def told(manifest: Manifest, features: Features | None = None) -> tuple[list[tuple[str, str]], bool]:
    """What is wrong with one of a file, place and sentence each; and whether its kind is known, or misspelled, as :func:`faults`."""
    known = True
    try:
        found = manifest.faults or faults(manifest.value, features)
    except UnknownKind as e:
        found, known = [e.fault] if e.fault else [], bool(e.fault)
    return [*manifest.document.faults, *map(manifest.told, found)], known


def faults(document: JSON, features: Features | None = None) -> list[str]:
    """A sentence with the path for each fault of an object with ``apiVersion``, ``kind`` and a name, as for ``kubectl create`` in a
    server where nothing else is. Without ``features``, of the usual release.

    Raises :class:`UnknownKind` for a kind that the local cluster does not serve.
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
    strange = list(unknown_fields.unknown(document, shape))
    out = unknown_fields.sentences(strange)
    if odd := unknown_fields.sentences(unknown_fields.mistyped(document, shape)):
        return out + odd  # nothing else can be told of what cannot be read
    heard = {path for path, _ in strange}
    told: list[str] = []
    try:
        obj = strategy.incoming(kind, version, document, features, strict=False, warnings=told)
        out += _later(told, heard, features.release)
        meta = obj["metadata"]
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        else:
            meta.pop("namespace", None)  # a server clears it
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


def _later(told: list[str], heard: set[str], release: str) -> Iterator[str]:
    """Fields of a release to come, which the usual one does not know."""
    for text in told:
        if (found := re.fullmatch(r'unknown field "(.*)"', text)) is None:
            yield text
        elif found[1] not in heard:
            yield f"{found[1]}: unknown field of Kubernetes {release}: a later release has it"


def _with_nearest(fault: FieldError, obj: JSON) -> str:
    text = str(fault)
    if meant := _reference(fault, obj):
        return text + meant
    if fault.reason == "FieldValueNotSupported":
        value, _, allowed = fault.message.partition("supported values: ")
        given = re.search(r'"(.*)"', value)
        return text + (did_you_mean(given[1], re.findall(r'"(.*?)"', allowed)) if given else "")
    for pattern, known in _IN_CEL.items():
        if (found := re.search(pattern, text)) and (meant := did_you_mean(found[1], known)):
            return re.sub(pattern, lambda m, meant=meant: m[0] + meant, text, count=1)  # type: ignore[misc]
    text = re.sub(
        r"(undeclared reference to 'includes')",
        rf"\1: a cluster has it where its feature gate {Gate.LISTS.value} is on",
        text,
    )
    return re.sub(r"(token recognition error at: '=[^=']*')", r"\1: compare with '=='", text)


def _reference(fault: FieldError, obj: JSON) -> str:
    """The nearest of the names that an object gives its own requests, claims or volumes, where the fault is about such a name."""
    given, end = _REFERENCE.match(fault.message), _SPEC_ENDS.search(fault.field)
    if given is None or end is None:
        return ""
    spec = functools.reduce(lambda at, key: at[key], fault.field[: end.start()].split("."), obj)
    if end[0] == ".devices.":
        return did_you_mean(given[1], sorted(claims.known_requests(spec)))
    own = "resourceClaims" if ".resources.claims[" in fault.field else "volumes"
    return did_you_mean(given[1], [str(named.get("name")) for named in spec.get(own) or []])


def _misspelled(api_version: str, kind: str, known: list[ServedKind]) -> str:
    group, _, version = api_version.rpartition("/")
    groups = {k.group for k in known}
    if group in groups:
        ours = [k for k in known if k.group == group]
        if same := [k for k in ours if k.kind == kind]:
            there = ", ".join(k.api_version(v) for k in same for v in k.versions)
            return f"apiVersion: {api_version!r} has no {kind}: give {there}"
        if meant := did_you_mean(kind, [k.kind for k in ours], 0.8):
            return f"kind: {api_version} has no {kind!r}{meant}"
        if elsewhere := _elsewhere(kind, known):
            return f"apiVersion: {kind} is not of {api_version!r}: give {elsewhere}"
        versions = {v for k in ours for v in k.versions}
        if version not in versions:
            return f"apiVersion: {api_version!r} is no version of Kubernetes{did_you_mean(version, versions)}"
        return ""
    if elsewhere := _elsewhere(kind, known):
        similar = did_you_mean(group, [g for g in groups if g], 0.7)
        return f"apiVersion: no {kind} in {api_version!r}: give {elsewhere}" if similar or "." not in group else ""
    return ""


def _elsewhere(kind: str, known: list[ServedKind]) -> str:
    return ", ".join(k.api_version(v) for k in known if k.kind == kind for v in k.versions)
