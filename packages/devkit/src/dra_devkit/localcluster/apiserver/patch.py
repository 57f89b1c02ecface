"""Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and strategic merge with the merge keys of a kind's schema."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jsonpatch
import jsonpointer

from ...schemas import tables
from .requests import RequestInfo
from .status_errors import StatusError, bad_request

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_MAX_OPERATIONS = 10_000

Schema = Mapping[str, Any]
_NONE: Schema = {}


class PatchError(ValueError):
    """The patch cannot be applied."""


def apply(kind: str, target: RequestInfo, current: dict[str, Any], change: Any) -> Any:
    """Returns the patched object. ``kind`` is the type of the patch. Raises :class:`StatusError`."""
    try:
        if kind == JSON_PATCH:
            return json_patch(current, change)
        if not isinstance(change, dict):
            raise bad_request("the patch is not an object")
        if kind == MERGE:
            return merge(current, change)
        if kind == STRATEGIC and not target.kind.custom:
            name = tables.name_of(target.kind.group, target.version, target.kind.kind)
            return strategic(current, change, tables.named(name) if name else _NONE)
    except PatchError as e:
        raise StatusError(
            422, "Invalid", f"the server rejected our request due to an error in our request: {e}"
        ) from None
    accepted = f"{JSON_PATCH}, {MERGE}, application/apply-patch+yaml" + ("" if target.kind.custom else f", {STRATEGIC}")
    raise StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format ({kind}) - accepted media types include: {accepted}",
    )


def merge(target: Any, patch: Any) -> Any:
    """Applies a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    out = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


# --- strategic merge --------------------------------------------------------------------------------


def strategic(target: Any, patch: Mapping[str, Any], schema: Schema = _NONE) -> Any:
    """Applies a strategic merge patch: like :func:`merge`, but it merges lists by their schema and supports directives (``$patch``).

    Raises:
        PatchError: A directive is unknown, or a list item lacks its merge key.
    """
    directive = patch.get("$patch")
    if directive == "replace":
        return {k: copy.deepcopy(v) for k, v in patch.items() if k != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"unknown patch type {directive!r}")
    out = dict(target) if isinstance(target, Mapping) else {}
    if (kept := patch.get("$retainKeys")) is not None:
        if not isinstance(kept, list):
            raise PatchError("$retainKeys is not a list")
        out = {k: v for k, v in out.items() if k in kept}
    orders: dict[str, list[Any]] = {}
    for key, value in patch.items():
        if key in {"$patch", "$retainKeys"}:
            continue
        if key.startswith("$setElementOrder/"):
            orders[key.partition("/")[2]] = value if isinstance(value, list) else []
        elif key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            deleted = value if isinstance(value, list) else []
            out[name] = [v for v in out.get(name) or [] if v not in deleted]
        elif value is None:
            out.pop(key, None)
        else:
            out[key] = _value(out.get(key), value, _field(schema, key))
    for name, order in orders.items():
        if isinstance(out.get(name), list):
            out[name] = _ordered(out[name], order, _field(schema, name).get("x-kubernetes-patch-merge-key"))
    return out


def _field(schema: Schema, name: str) -> Schema:
    """Returns the schema of a field, with references resolved."""
    found = _resolved(schema)
    inner = found.get("properties", {}).get(name) or found.get("additionalProperties")
    return inner if isinstance(inner, Mapping) else _NONE


def _resolved(schema: Schema) -> Schema:
    return tables.named(schema["$ref"]) if "$ref" in schema else schema


def _value(target: Any, patch: Any, schema: Schema) -> Any:
    if isinstance(patch, Mapping):
        if "replace" in str(schema.get("x-kubernetes-patch-strategy", "")):
            return copy.deepcopy(dict(patch))
        return strategic(target, patch, schema)
    if isinstance(patch, list) and isinstance(target, list):
        if "merge" in schema.get("x-kubernetes-patch-strategy", "").split(","):
            key = schema.get("x-kubernetes-patch-merge-key")
            if key is None:
                return target + [v for v in patch if v not in target]
            return _lists(target, patch, key, schema.get("items") or _NONE)
    return _without_directives(patch)


def _without_directives(value: Any) -> Any:
    """Returns a value of a patch without its directives, for a field that had no value before."""
    if isinstance(value, Mapping):
        return {k: _without_directives(v) for k, v in value.items() if not k.startswith("$") and v is not None}
    if isinstance(value, list):
        kept = [v for v in value if not (isinstance(v, Mapping) and v.get("$patch") in ("delete", "replace"))]
        return [_without_directives(v) for v in kept]
    return value


def _lists(target: list[Any], patch: list[Any], key: str, item: Schema) -> list[Any]:
    if any(isinstance(p, Mapping) and p.get("$patch") == "replace" for p in patch):
        return [_without_directives(p) for p in patch if not (isinstance(p, Mapping) and "$patch" in p)]
    out = list(target)
    for change in patch:
        if not isinstance(change, Mapping) or key not in change:
            raise PatchError(f"map: {change} does not contain declared merge key: {key}")
        same = [i for i, t in enumerate(out) if isinstance(t, Mapping) and t.get(key) == change[key]]
        if change.get("$patch") == "delete":
            out = [t for i, t in enumerate(out) if i not in same]
        elif same:
            out[same[0]] = strategic(out[same[0]], change, item)
        else:
            out.append(_without_directives(change))
    return out


def _ordered(items: list[Any], order: list[Any], key: str | None) -> list[Any]:
    """Sorts the items that are in ``order``. The other items keep their positions."""

    def name(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, Mapping) else item

    wanted = [name(o) for o in order]
    named = [i for i in items if name(i) in wanted]
    named.sort(key=lambda i: wanted.index(name(i)))
    out: list[Any] = []
    queue = iter(named)
    for item in items:
        out.append(item if name(item) not in wanted else next(queue))
    return out


# --- JSON patch -------------------------------------------------------------------------------------


def json_patch(target: Any, operations: Any) -> Any:
    """Applies a JSON patch (RFC 6902) to a copy of ``target``.

    Raises:
        PatchError: An operation is malformed or cannot be applied.
        StatusError: The patch has too many operations.
    """
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        raise PatchError("a JSON patch is a list of operations")
    if len(operations) > _MAX_OPERATIONS:
        raise StatusError(
            413, "RequestEntityTooLarge", f"The allowed maximum operations in a JSON patch is {_MAX_OPERATIONS}"
        )
    try:
        return _JsonPatch(operations).apply(target)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as e:
        raise PatchError(str(e)) from None


class _Test(jsonpatch.TestOperation):
    """The operation ``test`` of Kubernetes, where a path that does not exist is null, as in the Go library of the API server."""

    def apply(self, obj: Any) -> Any:
        if self.pointer.resolve(obj, None) != self.operation.get("value"):
            raise jsonpatch.JsonPatchTestFailed(f"testing value {self.location} failed: test failed")
        return obj


class _JsonPatch(jsonpatch.JsonPatch):
    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "test": _Test})
