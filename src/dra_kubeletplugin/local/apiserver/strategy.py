"""What happens to an object on its way in and out: decoding, defaults, validation, what an update may change."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...resources import claim_rules, claim_status_rules, defaults, metadata_rules, schema, slice_rules
from ...resources.convert import GROUP, convert
from ...resources.fields import FieldError, invalid
from .. import cel
from .kinds import Kind

JSON = dict[str, Any]


class BadObject(Exception):
    """400: the object cannot be read."""


class InvalidObject(Exception):
    """422: the object breaks rules."""

    def __init__(self, faults: list[FieldError]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


_LISTS = frozenset(slice_rules.LIST_ATTRIBUTES)


def incoming(kind: Kind, version: str, obj: Mapping[str, Any], *, strict: bool) -> JSON:
    """The stored form of what a client sent in ``version``.

    Raises :class:`BadObject`.
    """
    if not isinstance(obj.get("metadata", {}), Mapping):
        raise BadObject("metadata must be an object")
    if kind.group != GROUP:
        out = copy.deepcopy(dict(obj))
        out.setdefault("metadata", {})
        _without_empty(out["metadata"], ("labels", "annotations", "finalizers", "ownerReferences"))
        _without_empty(out, ("data", "binaryData"))
        return out
    sent = {**obj, "apiVersion": kind.api_version(version), "kind": kind.kind}
    try:
        # Decoding makes an object anew: only what has another shape has to be converted, which copies it too.
        decoded = schema.decode(convert(sent, "v1") if version == "v1beta1" else sent, kind.kind, strict=strict)
    except schema.DecodeError as e:
        raise BadObject(f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {e}') from None
    except (TypeError, AttributeError, KeyError):
        raise BadObject(f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: wrong shape') from None
    if owners := decoded["metadata"].get("ownerReferences"):
        decoded["metadata"]["ownerReferences"] = metadata_rules.merged_owners(owners)
    if kind.kind == "ResourceSlice":
        _drop_gated(decoded["spec"])
    return decoded


def _drop_gated(spec: JSON) -> None:
    """Fields whose gates are off in 1.36 go before anything looks at them."""
    for device in spec.get("devices") or []:
        device.pop("nodeAllocatableResourceMappings", None)
        for attribute in (device.get("attributes") or {}).values():
            if not _LISTS.isdisjoint(attribute):
                for name in _LISTS:
                    attribute.pop(name, None)


def stored(kind: Kind, obj: JSON) -> JSON:
    """A valid object as it is kept."""
    return schema.stored(obj, kind.kind) if kind.group == GROUP else obj


def written(kind: Kind, obj: JSON) -> JSON:
    """An object as a client sees it that wrote it just now."""
    return schema.written(obj, kind.kind) if kind.group == GROUP else obj


def _without_empty(obj: JSON, fields: Iterable[str]) -> None:
    """A server written in Go keeps no empty maps and lists of optional fields."""
    for name in fields:
        if name in obj and not obj[name]:
            del obj[name]


def outgoing(kind: Kind, version: str, obj: Mapping[str, Any]) -> JSON:
    """A stored object as ``version`` has it."""
    if kind.group != GROUP:
        return {"apiVersion": kind.api_version(version), "kind": kind.kind} | dict(obj)
    full = {"apiVersion": f"{GROUP}/v1", "kind": kind.kind} | dict(obj)
    return full if version == "v1" else convert(full, version)


def prepare(kind: Kind, obj: JSON, old: JSON | None, *, status: bool) -> JSON:
    """What is stored: the part that this request may write, the rest as it was."""
    if kind.status and old is not None:
        out = {**old, "status": obj.get("status")} if status else {**obj, "status": old.get("status")}
        if out["status"] is None:
            del out["status"]
        if status:
            out["metadata"] = {**old["metadata"], "resourceVersion": obj["metadata"].get("resourceVersion", "")}
        obj = out
    elif kind.status and old is None and not status:
        if kind.kind != "Node":  # a kubelet says at once what its node has
            obj = {k: v for k, v in obj.items() if k != "status"}
        if kind.kind == "Pod":
            obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        elif kind.kind == "Namespace":
            obj["status"] = {"phase": "Active"}
        elif kind.kind == "ResourceClaim":
            obj["status"] = {}
    if kind.kind == "Pod" and old is None:
        _pod_defaults(obj)
    return defaults.apply(obj, kind.kind) if kind.group == GROUP else obj


def settle(kind: Kind, obj: JSON, old: JSON) -> None:
    """What changes after managers are known: what was reported of devices goes with their allocation (who manages it stays its
    manager)."""
    if kind.kind == "ResourceClaim" and "status" in obj:
        obj["status"] = claim_status_rules.without_deallocated(obj["status"] or {}, old.get("status") or {})


def _pod_defaults(pod: JSON) -> None:
    spec = pod.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")


def drop(spec: JSON, names: Collection[str]) -> None:
    """Takes fields of a slice's spec away: its own, those of devices, of their capacities and of their attributes."""
    devices = spec.get("devices") or []
    parts = [v for d in devices for kind in ("capacity", "attributes") for v in (d.get(kind) or {}).values()]
    for name in names:
        if name in {"sharedCounters", "perDeviceNodeSelection"}:
            spec.pop(name, None)
        for part in (*devices, *parts):
            part.pop(name, None)


def validate(kind: Kind, obj: JSON, old: JSON | None, namespace_labels: Mapping[str, str], *, status: bool) -> None:
    """Raises :class:`InvalidObject` with every fault."""
    faults: list[FieldError] = []
    match kind.kind:
        case "ResourceSlice":
            faults = slice_rules.validate(obj, old)
        case "ResourceClaim":
            if status and old is not None:
                faults = claim_status_rules.validate_claim_status(stored(kind, obj), old)
            elif old is not None:
                faults = claim_status_rules.validate_claim_update(stored(kind, obj), old)
            else:
                faults = claim_rules.validate_claim(obj, cel.compile_selector)
                faults += claim_rules.validate_admin_access(obj["spec"], namespace_labels)
        case "ResourceClaimTemplate":
            if old is not None:
                faults = claim_status_rules.validate_claim_update(stored(kind, obj), old)
            else:
                faults = claim_rules.validate_template(obj, cel.compile_selector)
                faults += claim_rules.validate_admin_access(obj["spec"]["spec"], namespace_labels)
        case "DeviceClass":
            faults = claim_rules.validate_class(obj, cel.compile_selector, update=old is not None)
        case "Pod":
            faults = _pod(obj, old)
        case "Lease":
            faults = _lease(obj)
    if faults:
        raise InvalidObject(faults)


def _lease(lease: JSON) -> list[FieldError]:
    spec = lease.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    out = []
    if duration is not None and not (isinstance(duration, int) and duration > 0):
        out.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if transitions is not None and not (isinstance(transitions, int) and transitions >= 0):
        out.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return out


def _pod(pod: JSON, old: JSON | None) -> list[FieldError]:
    from ...resources.fields import required

    spec = pod.get("spec") or {}
    out = []
    if not spec.get("containers"):
        out.append(required("spec.containers"))
    claims = {c.get("name") for c in spec.get("resourceClaims") or []}
    for i, c in enumerate(spec.get("resourceClaims") or []):
        if bool(c.get("resourceClaimName")) == bool(c.get("resourceClaimTemplateName")):
            rule = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            out.append(invalid(f"spec.resourceClaims[{i}]", c.get("name"), rule))
    for i, container in enumerate(spec.get("containers") or []):
        for j, c in enumerate((container.get("resources") or {}).get("claims") or []):
            if c.get("name") not in claims:
                where = f"spec.containers[{i}].resources.claims[{j}]"
                out.append(FieldError("FieldValueNotFound", where, f'Not found: "{c.get("name")}"'))
    if old and (old.get("spec") or {}).get("nodeName") and spec.get("nodeName") != old["spec"]["nodeName"]:
        out.append(invalid("spec.nodeName", spec.get("nodeName"), "field is immutable"))
    return out
