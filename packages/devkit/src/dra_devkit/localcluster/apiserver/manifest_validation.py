"""Validates a manifest without a server: types, unknown fields, validation rules and CEL.

The module uses the API server's defaulting, conversion and validation of a create request, without storage. So it accepts
the same manifests as the local cluster.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.resourceapi.gated_fields import Gate
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError

from ...kubernetes_releases import Features, gate_phrase
from ...schemas import shapes
from ...validation import claims
from ...yaml.manifests import Manifest, PlacedText
from . import dropped_fields, field_hints, strategy
from .kinds import KINDS, Registry, ServedKind
from .release_hints import release_hint

# The namespace's labels are unknown offline, so admin access is allowed.
_ADMIN = {"resource.kubernetes.io/admin-access": "true"}
# Patterns that find an unknown name in a CEL error, each with the names from which a similar name is suggested.
_IN_CEL = {
    r"undefined field '(\w+)'": ("driver", "attributes", "capacity", "allowMultipleAllocations"),
    r"undeclared reference to '(\w+)'": [
        "device",
        "cel",
        "semver",
        "quantity",
        "has",
        "size",
        "matches",
        "string",
        "int",
    ],
}
_VERSION = re.compile(r"v[1-9]\d*((alpha|beta)[1-9]\d*)?")
_REFERENCE = re.compile(r'(?:Not found: |Invalid value: (?=.*must be the name of a request))"([^"]*)"')
# The end of the path of a claim's or a pod's spec.
_SPEC_ENDS = re.compile(r"\.devices\.|\.(?:initC|ephemeralC|c)ontainers\[")


class UnknownKind(LookupError):
    """The local cluster does not serve the kind.

    Attributes:
        fault: a likely spelling error; empty for a possible custom kind.
        why: why the kind is not validated; empty with a ``fault``.
    """

    def __init__(self, fault: str, why: str = "") -> None:
        super().__init__(fault or why)
        self.fault = fault
        self.why = why


@dataclass(frozen=True)
class ManifestResult:
    """The result of the validation of one manifest. ``errors`` and ``warnings`` are pairs of place and sentence.

    Attributes:
        not_validated: why the object was not validated; empty if it was, also if its kind is misspelled.
        valid_in: with errors, a sentence with the release and the gates with which the object is valid; empty if it never is.
    """

    errors: list[tuple[str, str]]
    warnings: list[tuple[str, str]]
    not_validated: str = ""
    valid_in: str = ""


def validate_manifest(manifest: Manifest, features: Features | None = None) -> ManifestResult:
    """Validates one manifest of a file. An error names the release or the feature gate with which the object is valid."""
    features = features or Features.of()
    errors: list[str | PlacedText] = [*manifest.faults]
    warnings: list[PlacedText] = []
    not_validated = hint = ""
    try:
        if not errors:
            found = object_errors(manifest.value, features, warnings)
            if found and (hint := release_hint(manifest.value, features, _is_valid)):
                found = [replace(error, text=f"{error.text}: {hint}") for error in found]
            errors += found
    except UnknownKind as e:
        errors, not_validated = [e.fault] if e.fault else [], e.why
        value = manifest.value
        of_kind = _api_versions(value)
        versions = of_kind if not e.fault or value["apiVersion"] in of_kind else ()
        if hint := release_hint(value, features, _is_valid, versions):
            default = " by default" if hint.startswith(f"it is valid in Kubernetes {features.release} ") else ""
            served = f"Kubernetes {features.release} does not serve {value['apiVersion']} {value['kind']}{default}"
            errors = [PlacedText("apiVersion", f"{served}: {hint}")]
            not_validated = ""
    located = [*manifest.document.faults, *map(manifest.located, errors)]
    return ManifestResult(located, [*map(manifest.located, warnings)], not_validated, hint)


def _api_versions(document: JSON) -> tuple[str, ...]:
    """Returns the values of ``apiVersion`` with which any release serves the kind."""
    group = document["apiVersion"].rpartition("/")[0]
    same = (k for k in KINDS if k.kind == document["kind"] and k.group == group)
    return tuple(kind.api_version(version) for kind in same for version in kind.versions)


def _is_valid(document: JSON, features: Features) -> bool:
    """Returns whether a server accepts an object and stores all its fields."""
    warnings: list[PlacedText] = []
    try:
        return not object_errors(document, features, warnings) and not warnings
    except UnknownKind:
        return False


def is_no_object(manifest: Manifest) -> bool:
    """Returns whether a document is no object of the API, such as values of Helm, a kind's configuration or a CDI spec.

    A document of a kind that Kubernetes has, or of a misspelled kind, is an object.
    """
    value = manifest.value
    if not manifest.faults or not isinstance(value, dict) or manifest.of_kustomize:
        return bool(manifest.faults)
    api_version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(kind, str):
        return not isinstance(api_version, str) or "metadata" not in value
    if "metadata" in value or kind.endswith("List"):
        return False
    group, slash, _ = str(api_version or "").partition("/")
    if kind == "Config" or (slash and all(k.group != group for k in KINDS)):  # a kubeconfig has the kind Config
        return True
    known = {k.kind for k in KINDS}
    return kind not in known and not did_you_mean(kind, known, 0.8)


def object_errors(
    document: JSON, features: Features | None = None, warnings: list[PlacedText] | None = None
) -> list[PlacedText]:
    """Validates an object as ``kubectl create`` would in an empty cluster.

    Args:
        document: an object with ``apiVersion``, ``kind`` and a name.
        features: the Kubernetes release and its feature gates; None for the default release.
        warnings: gets a sentence for each field that the server drops, because its feature gate is off.

    Returns:
        A sentence with the path for each error.

    Raises:
        UnknownKind: The local cluster does not serve the kind.
    """
    features = features or Features.of()
    registry = Registry(features)
    kind = registry.by_kind(document["apiVersion"], document["kind"])
    if kind is None:
        fault = _misspelled(document["apiVersion"], document["kind"], list(registry))
        raise UnknownKind(fault, "" if fault else f"{document['apiVersion']} {document['kind']} is not known here")
    if kind.refused:
        raise UnknownKind("", f"the rules of {document['apiVersion']} {kind.kind} are not known here")
    version = document["apiVersion"].rpartition("/")[2]
    shape = shapes.kind_shape(kind.group, version, kind.kind)
    assert shape is not None, kind.key
    unknown = list(field_hints.unknown(document, shape))
    out = [PlacedText(*found) for found in unknown]
    if mistyped := [PlacedText(*found) for found in field_hints.mistyped(document, shape)]:
        return out + mistyped  # An object with wrong types cannot be decoded, so no other check can run.
    reported = {path for path, _ in unknown}
    try:
        obj, unread = strategy.incoming(kind, version, document, features)
        out += _of_other_releases([path for path in unread if path not in reported], kind, features.release)
        meta = obj["metadata"]
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        else:
            meta.pop("namespace", None)  # as an API server does
        obj = strategy.prepare(kind, obj, None, status=False)
        if not meta.get("name"):
            obj["metadata"]["name"] = f"{meta['generateName']}x"
        dropped = dropped_fields.drop(kind, obj, None, features)
        if warnings is not None:
            warnings += (_dropped(path, gate, features) for path, gate in dropped)
        strategy.validate(kind, obj, None, _ADMIN, features, status=False)
    except strategy.BadObject as e:
        out.append(PlacedText("", str(e)))
    except UnicodeEncodeError:
        surrogate = "a text contains half of a surrogate pair: UTF-8 cannot contain it, so no API server stores it"
        out.append(PlacedText("", surrogate))
    except strategy.InvalidObject as e:
        out += (PlacedText(fault.field, _with_nearest(fault, obj)) for fault in e.faults)
    return out


def _dropped(path: str, gate: str, features: Features) -> PlacedText:
    needed = f"the feature gate {gate_phrase(gate, features.release)}" if gate else "a gate that is not known here"
    return PlacedText(path, f"Kubernetes {features.release} drops this field: it needs {needed}")


def _of_other_releases(unknown: list[str], kind: ServedKind, release: str) -> Iterator[PlacedText]:
    """Yields an error for each field that only another release knows."""
    for path in unknown:
        first, last = dropped_fields.releases_of(kind, path)
        adds = f"Kubernetes {first} adds it" if first else "a later release adds it"
        other = f"only Kubernetes {last} has it" if last else adds
        yield PlacedText(path, f"unknown field in Kubernetes {release}: {other}")


def _with_nearest(fault: FieldError, obj: JSON) -> str:
    """Returns the message of an error, with a similar name."""
    text = fault.message
    if hint := _reference(fault, obj):
        return text + hint
    if fault.reason == "FieldValueNotSupported":
        value, _, allowed = fault.message.partition("supported values: ")
        quoted = re.search(r'"(.*)"', value)
        return text + (did_you_mean(quoted[1], re.findall(r'"(.*?)"', allowed)) if quoted else "")
    for pattern, known in _IN_CEL.items():
        if (found := re.search(pattern, text)) and (hint := did_you_mean(found[1], known)):
            return re.sub(pattern, lambda m, hint=hint: m[0] + hint, text, count=1)  # type: ignore[misc]
    text = re.sub(r"(undeclared reference to 'includes')", rf"\1: it needs the feature gate {Gate.LISTS}", text)
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
        if not _VERSION.fullmatch(version):  # a well-formed version may be of a release that is not known here
            return f"apiVersion: {api_version!r} is not a version of Kubernetes{did_you_mean(version, versions)}"
        return ""
    if other_versions := _versions_with(kind, known):
        similar = did_you_mean(group, [g for g in groups if g], 0.7)
        return f"apiVersion: no {kind} in {api_version!r}: use {other_versions}" if similar or "." not in group else ""
    return ""


def _versions_with(kind: str, known: list[ServedKind]) -> str:
    return ", ".join(k.api_version(v) for k in known if k.kind == kind for v in k.versions)
