"""Decodes, defaults, validates and encodes objects, and decides which parts of an object an update may change.

An unknown field is dropped, and the writer warns about it or rejects the request. A server-side apply with an unknown field always
fails: see `field_managers.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import GROUP, convert
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError

from ...kubernetes_releases import Features
from ...scheduling import cel
from ...schemas import decoding, shapes
from ...validation import claim_status, claims, metadata, slices
from ...validation import defaulting as defaults
from . import custom, dropped_fields
from .kinds import ServedKind
from .validation import defaulting, events, objects
from .validation.pod_defaults import admission_defaults


class BadObject(Exception):
    """The object cannot be decoded (400)."""

    def __init__(self, kind: ServedKind, version: str, why: str) -> None:
        super().__init__(f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {why}')


class InvalidObject(Exception):
    """The object is invalid (422). ``faults`` lists all errors."""

    def __init__(self, faults: list[FieldError]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def incoming(kind: ServedKind, version: str, obj: Mapping[str, Any], features: Features) -> tuple[JSON, list[str]]:
    """Decodes an object that a client sent in ``version``.

    Returns:
        The object in its stored version, and the paths of the unknown fields, which it does not contain.

    Raises:
        BadObject: The object cannot be decoded.
    """
    unknown: list[str] = []
    try:
        if kind.structured:
            out = _in_v1(kind, version, obj, features, unknown)
        else:
            body = {k: v for k, v in obj.items() if k not in {"apiVersion", "kind"}}
            out = _decoded(kind, version, body, unknown)
    except decoding.DecodeError as e:
        raise BadObject(kind, version, str(e)) from None
    if owners := out["metadata"].get("ownerReferences"):
        out["metadata"]["ownerReferences"] = metadata.merged_owners(owners)
    return out, unknown


def _in_v1(kind: ServedKind, version: str, obj: Mapping[str, Any], features: Features, unknown: list[str]) -> JSON:
    sent = {**obj, "apiVersion": kind.api_version(version), "kind": kind.kind}
    try:
        # Only v1beta1 is converted before decoding, because a conversion copies the object once more.
        in_v1 = convert(sent, "v1") if version == "v1beta1" else sent
        in_v1, unknown[:] = dropped_fields.without_unknown(kind, in_v1, features)
    except (TypeError, AttributeError, KeyError, ValueError):
        raise decoding.DecodeError("a field has a value of a wrong type") from None
    return decoding.decode(in_v1, shapes.dra_shape(kind.kind), unknown)


def _decoded(kind: ServedKind, version: str, body: JSON, unknown: list[str]) -> JSON:
    """Decodes an object and sets its defaults."""
    if kind.custom:
        out = custom.pruned(body, kind.schemas[version], unknown)
        custom.fill(out, kind.schemas[version])
        return out
    shape = shapes.kind_shape(kind.group, version, kind.kind)
    assert shape is not None, kind.key
    out = decoding.decode(body, shape, unknown)
    defaulting.fill(kind, shape, out)
    return events.to_core(out) if kind.storage == "events" and kind.group else out


def for_storage(kind: ServedKind, obj: JSON) -> JSON:
    """Returns a valid object in its stored form."""
    return decoding.without_empty(obj, shapes.dra_shape(kind.kind), stored=True) if kind.structured else obj


def for_writer(kind: ServedKind, obj: JSON) -> JSON:
    """Returns an object in the form in which the response to a write contains it."""
    return decoding.without_empty(obj, shapes.dra_shape(kind.kind), stored=False) if kind.structured else obj


def outgoing(kind: ServedKind, version: str, obj: Mapping[str, Any]) -> JSON:
    """Returns a stored object in an API version."""
    if not kind.structured:
        shown = events.from_core(obj) if kind.storage == "events" and kind.group else dict(obj)
        return {"apiVersion": kind.api_version(version), "kind": kind.kind} | shown
    full = {"apiVersion": f"{GROUP}/v1", "kind": kind.kind} | dict(obj)
    return full if version == "v1" else convert(full, version)


def prepare(kind: ServedKind, obj: JSON, old: JSON | None, *, status: bool) -> JSON:
    """Returns the object to store: the new values of the parts that this request may write, and the old values of the other parts."""
    if kind.status and old is not None:
        out = {**old, "status": obj.get("status")} if status else {**obj, "status": old.get("status")}
        if out["status"] is None:
            del out["status"]
        if status:
            out["metadata"] = {**old["metadata"], "resourceVersion": obj["metadata"].get("resourceVersion", "")}
        obj = out
    elif kind.status and old is None and not status:
        obj = {k: v for k, v in obj.items() if k != "status" or kind.storage in _STATUS_AT_CREATION}
        if kind.kind == "ResourceClaim" and kind.structured:
            obj["status"] = {}
        elif (first := defaulting.initial_status(kind, obj)) is not None:
            obj["status"] = first
    obj = {**obj, "metadata": _with_generation(kind, obj["metadata"], old)}
    if old is None and kind.storage == "pods":
        admission_defaults(obj["spec"])
    if old is None and kind.storage == "nodes":
        _taint_as_not_ready(obj)
    return defaults.apply(obj, kind.kind) if kind.structured else obj


def _with_generation(kind: ServedKind, meta: JSON, old: JSON | None) -> JSON:
    """Returns the metadata with the generation of the old object, or with generation 1 for a new object.

    If the kind has no generations, returns the metadata unchanged for a new object.
    """
    if old is None and not kind.counts_generations:
        return meta
    generation = 1 if old is None else old["metadata"].get("generation")
    kept = {k: v for k, v in meta.items() if k != "generation"}
    return kept if generation is None else kept | {"generation": generation}


def select_own_pods(kind: ServedKind, obj: JSON) -> None:
    """Sets the selector of a new Job and the matching labels, unless ``manualSelector`` is set (batch/v1)."""
    spec = obj.get("spec") or {}
    if kind.storage != "jobs.batch" or spec.get("manualSelector"):
        return
    name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
    template = spec["template"] = dict(spec["template"])
    meta = template["metadata"] = dict(template.get("metadata") or {})
    own = {f"{prefix}job-name": name for prefix in _JOB_PREFIXES}
    own |= {f"{prefix}controller-uid": uid for prefix in _JOB_PREFIXES}
    meta["labels"] = {**(meta.get("labels") or {}), **own}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    obj["metadata"]["labels"] = obj["metadata"].get("labels") or dict(meta["labels"])


def _taint_as_not_ready(node: JSON) -> None:
    """Adds the not-ready taint to a new node, so that no pod is scheduled before the node controller has checked the node.

    In Kubernetes, the admission plugin TaintNodesByCondition does this.
    """
    spec = node["spec"] = dict(node.get("spec") or {})
    taints = spec.get("taints") or []
    if not any(t["key"] == _NOT_READY["key"] and t["effect"] == _NOT_READY["effect"] for t in taints):
        spec["taints"] = [*taints, dict(_NOT_READY)]


_JOB_PREFIXES = ("batch.kubernetes.io/", "")  # label prefixes of a Job's pods: since 1.27, and before 1.27
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
# Kinds whose status may be set at creation. A kubelet creates its node with its capacity.
_STATUS_AT_CREATION = frozenset({"nodes"})


def remove_deallocated(kind: ServedKind, obj: JSON, old: JSON) -> None:
    """Removes the device status of deallocated devices.

    Call it after the field managers are computed, so that the writer stays the manager of these fields.
    """
    if kind.kind == "ResourceClaim" and "status" in obj:
        obj["status"] = claim_status.without_deallocated(obj["status"] or {}, old.get("status") or {})


def drop(spec: JSON, names: Collection[str]) -> None:
    """Deletes the fields ``names`` from a slice's spec, its devices, and their capacities and attributes, in place."""
    devices = spec.get("devices") or []
    parts = [v for d in devices for kind in ("capacity", "attributes") for v in (d.get(kind) or {}).values()]
    for name in names:
        if name in {"sharedCounters", "perDeviceNodeSelection"}:
            spec.pop(name, None)
        for part in (*devices, *parts):
            part.pop(name, None)


def validate(
    kind: ServedKind,
    obj: JSON,
    old: JSON | None,
    namespace_labels: Mapping[str, str],
    features: Features,
    *,
    status: bool,
) -> None:
    """Raises :class:`InvalidObject` with all errors of an object."""
    if kind.structured:
        faults = _structured_faults(kind, obj, old, namespace_labels, features, status=status)
    elif kind.custom:
        faults = custom.faults(kind, obj, old)
    else:
        faults = objects.validate(kind, obj, old, status=status)
        if kind.storage == custom.DEFINITIONS and not status:
            faults += custom.definition_faults(obj, old)
    if faults:
        raise InvalidObject(faults)


def _structured_faults(
    kind: ServedKind,
    obj: JSON,
    old: JSON | None,
    namespace_labels: Mapping[str, str],
    features: Features,
    *,
    status: bool,
) -> list[FieldError]:
    has_lists = features.has("DRAListTypeAttributes")
    compile_selector = functools.partial(cel.compile_selector, list_attributes=has_lists)
    compile_derived = functools.partial(cel.compile_derived, list_attributes=has_lists)
    match kind.kind:
        case "ResourceSlice":
            return slices.validate(obj, old, slices.dialect_of(features))
        case "ResourceClaim":
            if status and old is not None:
                faults = claim_status.validate_admin_access(obj, old, namespace_labels)
                return faults + claim_status.validate_claim_status(for_storage(kind, obj), old)
            if old is not None:
                return claim_status.validate_claim_update(for_storage(kind, obj), old)
            faults = claims.validate_admin_access(obj["spec"], namespace_labels)
            return faults + claims.validate_claim(obj, compile_selector, compile_derived)
        case "ResourceClaimTemplate":
            if old is not None:
                return claim_status.validate_claim_update(for_storage(kind, obj), old)
            faults = claims.validate_admin_access(obj["spec"]["spec"], namespace_labels)
            return faults + claims.validate_template(obj, compile_selector, compile_derived)
        case _:
            return claims.validate_class(obj, compile_selector, update=old is not None)
