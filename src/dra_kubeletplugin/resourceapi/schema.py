"""The schema of resource.k8s.io/v1 objects: the fields, their types, and which are dropped when empty.

It contains the fields of all releases from 1.34 to 1.37. One table serves strict decoding (errors with paths;
quantities and times in the server's stored form), the stored form (without empty optional fields), and the order of
fields.

A field's type is ``string``, ``int``, ``int32``, ``bool``, ``quantity``, ``time``, ``raw``, a list ``[type]``, a map
``{"*": type}`` or another table. Suffixes: ``!`` the field is always stored; ``?`` it is a pointer, stored if it is
set, even if empty; ``*`` it is a pointer, stored as null if it is not set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from . import quantity

Shape = Any

_METADATA: Shape = {
    "name": "string",
    "generateName": "string",
    "namespace": "string",
    "selfLink": "string",
    "uid": "string",
    "resourceVersion": "string",
    "generation": "int",
    "creationTimestamp": "time",
    "deletionTimestamp": "time",
    "deletionGracePeriodSeconds": "int?",
    "labels": {"*": "string!"},
    "annotations": {"*": "string!"},
    "ownerReferences": [
        {
            "apiVersion": "string!",
            "kind": "string!",
            "name": "string!",
            "uid": "string!",
            "controller": "bool?",
            "blockOwnerDeletion": "bool?",
        }
    ],
    "finalizers": ["string"],
    "managedFields": ["raw"],
}
_NODE_REQUIREMENT: Shape = {"key": "string!", "operator": "string!", "values": ["string"]}
_NODE_SELECTOR: Shape = {
    "nodeSelectorTerms!": [{"matchExpressions": [_NODE_REQUIREMENT], "matchFields": [_NODE_REQUIREMENT]}]
}
_ATTRIBUTE: Shape = {
    "int": "int?",
    "bool": "bool?",
    "string": "string?",
    "version": "string?",
    "ints": ["int"],
    "bools": ["bool"],
    "strings": ["string"],
    "versions": ["string"],
}
_POLICY: Shape = {
    "default": "quantity*",
    "validValues": ["quantity"],
    "validRange": {"min": "quantity?", "max": "quantity?", "step": "quantity?"},
}
_COUNTERS: Shape = {"*": {"value": "quantity!"}}
_TAINT: Shape = {"key": "string!", "value": "string", "effect": "string!", "timeAdded": "time"}
_DEVICE: Shape = {
    "name": "string!",
    "attributes": {"*": _ATTRIBUTE},
    "capacity": {"*": {"value": "quantity!", "requestPolicy": _POLICY}},
    "consumesCounters": [{"counterSet": "string!", "counters!": _COUNTERS, "compatibilityGroups": ["string"]}],
    "nodeName": "string?",
    "nodeSelector": _NODE_SELECTOR,
    "allNodes": "bool?",
    "taints": [_TAINT],
    "bindsToNode": "bool?",
    "bindingConditions": ["string"],
    "bindingFailureConditions": ["string"],
    "allowMultipleAllocations": "bool?",
    "nodeAllocatableResourceMappings": {"*": {"capacityKey": "string?", "allocationMultiplier": "quantity?"}},
    "nodeAllocatableResources": {
        "*": {
            "mapping": {"capacityKey": "string?", "capacityMultiplier": "quantity?", "deviceMultiplier": "quantity?"},
            "overhead": {"perPod": "quantity?", "perContainer": "quantity?"},
        }
    },
}
_TOLERATION: Shape = {
    "key": "string",
    "operator": "string",
    "value": "string",
    "effect": "string",
    "tolerationSeconds": "int?",
}
_SELECTORS: Shape = [{"cel": {"expression": "string!"}}]
_CAPACITY_REQUEST: Shape = {"requests": {"*": "quantity!"}}
_EXACTLY: Shape = {
    "deviceClassName": "string!",
    "selectors": _SELECTORS,
    "allocationMode": "string",
    "count": "int",
    "adminAccess": "bool?",
    "tolerations": [_TOLERATION],
    "capacity": _CAPACITY_REQUEST,
    "derivedAttributes": [{"name": "string!", "expression": "string!"}],
}
_SUBREQUEST: Shape = {"name": "string!"} | {k: v for k, v in _EXACTLY.items() if k != "adminAccess"}
_OPAQUE: Shape = {"driver": "string!", "parameters!": "raw"}
_CLAIM_SPEC: Shape = {
    "devices!": {
        "requests!": [{"name": "string!", "exactly": _EXACTLY, "firstAvailable": [_SUBREQUEST]}],
        "constraints": [{"requests": ["string"], "matchAttribute": "string?", "distinctAttribute": "string?"}],
        "config": [{"requests": ["string"], "opaque": _OPAQUE}],
    }
}
_CONDITION: Shape = {
    "type": "string!",
    "status": "string!",
    "observedGeneration": "int",
    "lastTransitionTime": "time!",
    "reason": "string!",
    "message": "string!",
}
_RESULT: Shape = {
    "request": "string!",
    "driver": "string!",
    "pool": "string!",
    "device": "string!",
    "adminAccess": "bool?",
    "tolerations": [_TOLERATION],
    "bindingConditions": ["string"],
    "bindingFailureConditions": ["string"],
    "shareID": "string?",
    "consumedCapacity": {"*": "quantity!"},
    "skipNodeOperations": ["string"],
}
_CLAIM_STATUS: Shape = {
    "allocation": {
        "devices!": {
            "results": [_RESULT],
            "config": [{"source": "string!", "requests": ["string"], "opaque": _OPAQUE}],
        },
        "nodeSelector": _NODE_SELECTOR,
        "allocationTimestamp": "time",
    },
    "reservedFor": [{"apiGroup": "string", "resource": "string!", "name": "string!", "uid": "string!"}],
    "devices": [
        {
            "driver": "string!",
            "pool": "string!",
            "device": "string!",
            "shareID": "string?",
            "conditions!": [_CONDITION],
            "data": "raw",
            "networkData": {"interfaceName": "string", "ips": ["string"], "hardwareAddress": "string"},
        }
    ],
}
_TYPE: Shape = {"apiVersion": "string", "kind": "string"}

KINDS: Mapping[str, Shape] = {
    "ResourceSlice": {
        **_TYPE,
        "metadata!": _METADATA,
        "spec!": {
            "driver": "string!",
            "pool!": {"name": "string!", "generation": "int!", "resourceSliceCount": "int!"},
            "nodeName": "string?",
            "nodeSelector": _NODE_SELECTOR,
            "allNodes": "bool?",
            "devices": [_DEVICE],
            "perDeviceNodeSelection": "bool?",
            "sharedCounters": [{"name": "string!", "counters!": _COUNTERS}],
            "partitionTypeAttribute": "string?",
            "skipNodeOperations": ["string"],
        },
    },
    "ResourceClaim": {**_TYPE, "metadata!": _METADATA, "spec!": _CLAIM_SPEC, "status": _CLAIM_STATUS},
    "ResourceClaimTemplate": {
        **_TYPE,
        "metadata!": _METADATA,
        "spec!": {"metadata!": _METADATA, "spec!": _CLAIM_SPEC},
    },
    "DeviceClass": {
        **_TYPE,
        "metadata!": _METADATA,
        "spec!": {"selectors": _SELECTORS, "config": [{"opaque": _OPAQUE}], "extendedResourceName": "string?"},
    },
}


class SchemaDecodeError(ValueError):
    """The object cannot be decoded as its kind. The API server responds with 400."""


def decode(obj: Mapping[str, Any], kind: str, *, strict: bool = True) -> dict[str, Any]:
    """Returns ``obj`` in the form that validation uses. Unlike :func:`stored`, it keeps empty lists and maps that were set.

    Raises :class:`SchemaDecodeError` for a value of a wrong type and, if ``strict``, for unknown fields. If not
    ``strict``, unknown fields are dropped.
    """
    unknown: list[str] = []
    out = _struct(obj, _table(KINDS[kind]), "", kind, unknown)
    if strict and unknown:
        raise SchemaDecodeError("strict decoding error: " + ", ".join(f'unknown field "{u}"' for u in unknown))
    return out


def stored(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns a decoded object as the server stores it: empty lists and maps are dropped if optional, else null."""
    return dict(_without_empty(obj, KINDS[kind], stored=True))


def written(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns a decoded object as the server writes it as JSON: empty lists and maps are dropped if optional."""
    return dict(_without_empty(obj, KINDS[kind], stored=False))


def _without_empty(value: Any, shape: Shape, *, stored: bool) -> Any:
    if isinstance(shape, list):
        return [_without_empty(v, shape[0], stored=stored) for v in value] if _may_have_empty(value) else value
    if isinstance(shape, str) or not isinstance(value, dict):
        return value
    if "*" in shape:
        return {k: _without_empty(v, shape["*"], stored=stored) for k, v in value.items()}
    out = {}
    fields = _table(shape).fields
    for name, raw in value.items():
        field = fields.get(name)
        if field is None or field.kind or raw is None:
            out[name] = raw
        elif raw or not field.container:
            out[name] = _without_empty(raw, field.shape, stored=stored)
        elif field.always:
            out[name] = None if stored else raw
    return out


def _may_have_empty(value: Any) -> bool:
    """Returns whether a value may contain an empty list or map. Searching its text is ten times faster than visiting its parts."""
    text = msgspec.json.encode(value)
    return b"{}" in text or b"[]" in text


def dropped(sent: Any, echoed: Any, path: str = "") -> list[str]:
    """Returns the paths of fields that ``sent`` has and ``echoed`` lacks: a server with a disabled gate dropped them."""
    if isinstance(sent, Mapping) and isinstance(echoed, Mapping):
        out = []
        for key, value in sent.items():
            where = f"{path}.{key}" if path else key
            if key not in echoed:
                out += [where] if value not in (None, [], {}, "") else []
            else:
                out += dropped(value, echoed[key], where)
        return out
    if isinstance(sent, list) and isinstance(echoed, list):
        pairs = zip(sent, echoed, strict=False)
        return [p for i, (a, b) in enumerate(pairs) for p in dropped(a, b, f"{path}[{i}]")]
    return []


class _Field(NamedTuple):
    """A field of a table, parsed. ``needed``: stored even if not set. ``plain``: the Python type that is stored
    unchanged.
    """

    shape: Shape
    always: bool
    container: bool  # a list or a map
    kind: str
    mode: str
    needed: bool
    plain: type | None


class _Table(NamedTuple):
    """A table with its parsed fields. ``needs``: whether any field is needed."""

    shape: Shape  # keeps the table alive, so that no other object gets the same id
    fields: Mapping[str, _Field]
    needs: bool


_parsed_tables: dict[int, _Table] = {}  # by the id of a table, because the tables are constants


def _table(shape: Shape) -> _Table:
    found = _parsed_tables.get(id(shape))
    if found is None:
        fields = {key.rstrip("!"): _field(s, always=key.endswith("!")) for key, s in shape.items()}
        found = _parsed_tables[id(shape)] = _Table(shape, fields, any(f.needed for f in fields.values()))
    return found


def _field(shape: Shape, *, always: bool) -> _Field:
    if not isinstance(shape, str):
        container = isinstance(shape, list) or "*" in shape
        return _Field(shape, always, container, "", "", always, None)
    mode = shape[-1] if shape[-1] in "!?*" else ""
    kind = shape.rstrip("!?*")
    plain = _PLAIN.get(kind) if mode or always else None
    return _Field(shape, always, False, kind, mode, always or mode in {"!", "*"}, plain)


_PLAIN: Mapping[str, type] = {"string": str, "bool": bool}


def _struct(value: Any, table: _Table, path: str, owner: str, unknown: list[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _mistyped(value, path, owner)
    out: dict[str, Any] = {}
    _, known, needs = table
    names: Iterable[str] = known
    if not value.keys() <= known.keys():
        unknown += [f"{path}.{key}" if path else key for key in value if key not in known]
    elif len(value) == 1 and not needs:
        names = value
    for name in names:
        field_shape, always, _, kind, mode, needed, plain = known[name]
        raw = value.get(name)
        if raw is not None:
            if type(raw) is plain:  # the most frequent case
                out[name] = raw
                continue
            where = f"{path}.{name}" if path else name
            if not kind:
                out[name] = _composite(raw, field_shape, where, name, unknown)
                continue
            decoded = _scalar(raw, kind, where)
            if mode or always or decoded not in ("", 0, False):
                out[name] = decoded
        elif needed:
            out[name] = _zero_of(field_shape) if not kind else None if mode == "*" and not always else _zero(kind)
    return out


def _composite(value: Any, shape: Shape, path: str, owner: str, unknown: list[str]) -> Any:
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise _mistyped(value, path, "slice")
        inner = shape[0]
        if not _is_table(inner):
            return [_element(v, inner, f"{path}[{i}]", owner, unknown) for i, v in enumerate(value)]
        rows = _table(inner)
        return [_struct({} if v is None else v, rows, f"{path}[{i}]", owner, unknown) for i, v in enumerate(value)]
    if "*" in shape:
        if not isinstance(value, Mapping):
            raise _mistyped(value, path, "map")
        inner = shape["*"]
        if _is_table(inner):
            return _entries(value, _table(inner), path, owner, unknown)
        return {k: _element(v, inner, f"{path}.{k}", owner, unknown) for k, v in value.items()}
    return _struct(value, _table(shape), path, owner, unknown)


def _entries(value: Mapping[str, Any], table: _Table, path: str, owner: str, unknown: list[str]) -> dict[str, Any]:
    """Decodes a map of structs; one plain field has a fast path, because most attributes of devices are such structs."""
    _, known, needs = table
    out: dict[str, Any] = {}
    for key, item in value.items():
        if not needs and type(item) is dict and len(item) == 1:
            ((name, raw),) = item.items()
            field = known.get(name)
            if field is not None and type(raw) is field.plain:
                out[key] = {name: raw}
                continue
        out[key] = _struct({} if item is None else item, table, f"{path}.{key}", owner, unknown)
    return out


def _is_table(shape: Shape) -> bool:
    return isinstance(shape, dict) and "*" not in shape


def _element(value: Any, shape: Shape, path: str, owner: str, unknown: list[str]) -> Any:
    if isinstance(shape, str):
        kind = shape.rstrip("!?")
        return _zero(kind) if value is None else _scalar(value, kind, path)
    return _composite({} if value is None else value, shape, path, owner, unknown)


def _scalar(value: Any, kind: str, path: str) -> Any:
    match kind:
        case "raw":
            return value
        case "quantity":
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise _mistyped(value, path, kind)
            try:
                return quantity.stored(str(value).strip(quantity.SPACES))
            except quantity.QuantityError as e:
                raise SchemaDecodeError(e.reason) from None
        case "int" | "int32":
            bits = 63 if kind == "int" else 31
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**bits) <= value < 2**bits:
                raise _mistyped(value, path, "int64" if kind == "int" else kind)
            return value
        case "bool":
            if not isinstance(value, bool):
                raise _mistyped(value, path, kind)
            return value
        case "time":
            if not isinstance(value, str):
                raise _mistyped(value, path, "Time")
            return _seconds(value, path)
        case _:
            if not isinstance(value, str):
                raise _mistyped(value, path, kind)
            return value


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


def _seconds(value: str, path: str) -> str:
    """Returns a time in the stored form: whole seconds, UTC."""
    from datetime import UTC, datetime

    if not _TIME.fullmatch(value):
        raise SchemaDecodeError(
            f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": {path} is not an RFC 3339 time'
        )
    try:
        return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise SchemaDecodeError(f'parsing time "{value}": {path} is out of range') from None


def _zero(kind: str) -> Any:
    return {"string": "", "int": 0, "int32": 0, "bool": False, "quantity": "0"}.get(kind)


def _zero_of(shape: Shape) -> Any:
    if isinstance(shape, list) or "*" in shape:
        return None
    return _struct({}, _table(shape), "", "", [])


def _mistyped(value: Any, path: str, wanted: str) -> SchemaDecodeError:
    kind = {bool: "bool", str: "string", list: "array", dict: "object"}.get(type(value))
    if kind is None:
        kind = f"number {value}" if wanted == "int64" else "number"
    bare = re.sub(r"\[\d+\]", "", path)
    return SchemaDecodeError(f"json: cannot unmarshal {kind} into Go struct field {bare} of type {wanted}")
