"""Determines the field manager of a request, the fields that the request may write, and the new ``metadata.managedFields``."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from dra_kubeletplugin.base.http_server.server import Request
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import convert
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, required, too_long

from ...schemas import decoding, shapes, typed
from ...schemas.field_paths import Path, shown
from ...schemas.merging import MapOf
from . import apply, custom, strategy
from .apply import Manager, Operation, Rules
from .requests import RequestInfo, check_name
from .status_errors import StatusError, bad_request, invalid_object

APPLY = "application/apply-patch+yaml"
_MAX_NAME_BYTES = 128  # bytes of a manager's name
_CONFLICT = "FieldManagerConflict"
_KUBECTL = "kubectl"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def check_options(request: Request, *, is_apply: bool) -> None:
    """Raises :class:`StatusError` if the options of a patch are invalid or do not fit its type."""
    name = request.query.get("fieldManager", "")
    faults = []
    if is_apply and not name:
        faults.append(required("fieldManager", "is required for apply patch"))
    if not is_apply and request.query.get("force") == "true":
        faults.append(forbidden("force", "may not be specified for non-apply patch"))
    if len(name.encode()) > _MAX_NAME_BYTES:
        faults.append(too_long("fieldManager", _MAX_NAME_BYTES))
    bad_character = next(((i, c) for i, c in enumerate(name) if not c.isprintable()), None)
    if bad_character:
        quoted = name.encode("unicode_escape").decode()
        rule = f'Invalid value: "{quoted}": invalid character U+{ord(bad_character[1]):04X} (at position {bad_character[0]})'
        faults.append(FieldError("FieldValueInvalid", "fieldManager", rule))
    if faults:
        raise invalid_object("PatchOptions", "meta.k8s.io", "", *faults)


def check_applied(target: RequestInfo, applied: Any) -> JSON:
    """Returns an applied configuration with the name of the request. Raises :class:`StatusError` if it does not fit the request."""
    if not isinstance(applied, dict):
        raise bad_request("the body is not an object")
    version, kind = str(applied.get("apiVersion") or ""), str(applied.get("kind") or "")
    if (version, kind) != (target.kind.api_version(target.version), target.kind.kind):
        group, _, short = version.rpartition("/")
        raise bad_request(f"invalid object type: {group}/{short}, Kind={kind}")
    meta = applied.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    if meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    check_name(target, meta.get("name", target.name))
    if target.kind.namespaced and (namespace := meta.get("namespace", target.namespace)) != target.namespace:
        raise bad_request(
            f"the namespace of the object ({namespace}) does not match the namespace on the URL ({target.namespace})"
        )
    return {**applied, "metadata": {**meta, "name": target.name}}


def apply_configuration(
    request: Request, target: RequestInfo, live: JSON | None, config: JSON
) -> tuple[JSON, list[JSON]]:
    """Applies ``config`` to the stored object.

    Returns:
        The merged object in the request's version, and its managed fields.

    Raises:
        StatusError: another manager has an applied field with another value and the request does not force it, or ``config`` does
            not fit its kind.
    """
    rules = _rules(target, target.version)
    manager = _manager(request, rules, Operation.APPLY, target)
    before = _entries(target, None, live)
    current = strategy.outgoing(target.kind, target.version, live) if live else None
    if current:
        current = {**current, "metadata": {k: v for k, v in current["metadata"].items() if k != "managedFields"}}
    empty = _empty(target, stored=False)
    force = request.query.get("force") == "true"
    try:
        try:
            merged, entries = apply.apply(current, config, before, manager, rules, empty, force=force)
        except apply.ConflictError as e:
            if manager.name != _KUBECTL or not {p for _, p in e.conflicts} <= _applied_by_client(current or {}, rules):
                raise
            merged, entries = apply.apply(current, config, before, manager, rules, empty, force=True)
    except apply.ConflictError as e:
        causes = [{"reason": _CONFLICT, "message": f"conflict with {m}", "field": shown(p)} for m, p in e.conflicts]
        raise StatusError(409, "Conflict", str(e), {"causes": causes}) from None
    except typed.SchemaError as e:
        place = f"{config['metadata'].get('namespace', '')}/{target.name}"
        named = f"({place}; {target.kind.group}/{target.version}, Kind={target.kind.kind})"
        raise StatusError(500, "", f"failed to create typed patch object {named}: {e}") from None
    return merged, apply.encode_entries(entries)


def _applied_by_client(live: JSON, rules: Rules) -> set[Path]:
    """Returns the fields that a client-side ``kubectl apply`` wrote and that have not changed since then.

    ``kubectl apply --server-side`` may become the manager of these fields.

    Source: apimachinery's ``managedfields``, the last-applied manager.
    """
    note = (live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
    try:
        last_applied = msgspec.json.decode(note or "null")
        if not isinstance(last_applied, dict) or last_applied.get("apiVersion") != live["apiVersion"]:
            return set()
        typed.check(last_applied, rules.type)
        differs = typed.compare(last_applied, live, rules.type)
        return typed.paths_of(last_applied, rules.type) - differs.modified - differs.added - differs.removed
    except (msgspec.DecodeError, typed.SchemaError):
        return set()


def managed_after_update(
    request: Request, target: RequestInfo, live: JSON | None, new: JSON, requested: Any = None
) -> list[JSON]:
    """Returns the managed fields after a write that is not an apply.

    Args:
        live, new: the object before and after the write, in stored form.
        requested: the ``managedFields`` in the request; None if the request has none. A write to a subresource ignores them.
    """
    if target.sub:
        requested = None
    elif requested in ([], [{}]):  # a client removes all managers
        return []
    rules = _rules(target, target.kind.versions[0])
    manager = _manager(request, _rules(target, target.version), Operation.UPDATE, target)
    named = {"apiVersion": target.kind.api_version(rules.version), "kind": target.kind.kind}
    old = None if live is None else named | live
    entries = apply.update(
        old, named | new, _entries(target, requested, live), manager, rules, named | _empty(target, stored=True)
    )
    return apply.encode_entries(entries)


def _entries(target: RequestInfo, requested: Any, live: JSON | None) -> apply.Entries:
    """Returns the managers before a write: those in the request, or else those of the stored object.

    As in Kubernetes, malformed managed fields count as absent, and a manager of an unknown version is forgotten.
    """
    for managed in (requested, (live or {}).get("metadata", {}).get("managedFields")):
        with contextlib.suppress(ValueError):
            if found := apply.decode_entries(managed):
                known = target.kind.versions
                return {k: e for k, e in found.items() if e.manager.api_version.rpartition("/")[2] in known}
    return {}


def _manager(request: Request, rules: Rules, operation: Operation, target: RequestInfo) -> Manager:
    agent = request.headers.get("user-agent", "").partition("/")[0]
    name = (
        request.query.get("fieldManager") or "".join(c for c in agent if c.isprintable())[:_MAX_NAME_BYTES] or "unknown"
    )
    return rules.manager(name, operation, target.sub)


def _rules(target: RequestInfo, version: str) -> Rules:
    kind = target.kind
    ignored: tuple[tuple[str, ...], ...] = ()
    if kind.status:
        ignored = (("f:spec",), ("f:metadata",)) if target.sub == "status" else (("f:status",),)

    def converted(obj: JSON, wanted: str) -> JSON:
        return convert(obj, wanted) if kind.structured else obj

    types = (lambda wanted: custom.merge_type(kind, wanted)) if kind.custom else None
    return Rules(kind.group, version, kind.kind, ignored, converted, types)


def _empty(target: RequestInfo, *, stored: bool) -> JSON:
    """Returns the empty object that a server in Go would create: fields with a struct exist, fields with a map do not."""
    kind = target.kind
    if kind.structured:
        out = decoding.empty(shapes.dra_shape(kind.kind))
        return out if stored else strategy.outgoing(kind, target.version, out)
    known = _rules(target, target.version).type
    structs = [k for k in ("spec", "status") if isinstance(known, MapOf) and k in known.fields]
    return {"apiVersion": kind.api_version(target.version), "kind": kind.kind, "metadata": {}} | {
        k: {} for k in structs
    }
