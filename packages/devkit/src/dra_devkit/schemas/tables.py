"""The schemas of a Kubernetes 1.36.2 server and the alpha kind PodGroup, loaded at first use, with the fields that only the table of
fields has.

``tests/tools/server_types.py`` generates ``types.json``; the docstring of this script describes the content. Fields of newer releases
come from ``resourceapi/fields.toml`` of the framework.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from dra_kubeletplugin.resourceapi import fields
from dra_kubeletplugin.resourceapi.conversion import GROUP
from dra_kubeletplugin.resourceapi.fields import FieldRow

Schema = Mapping[str, Any]
_IN_V1BETA1 = {"Device": "BasicDevice", "ExactDeviceRequest": "DeviceRequest"}
"""Types of v1beta1 with another name than in v1."""
_SCALARS: Mapping[str, Schema] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "Quantity": {"$ref": "api.resource.Quantity"},
    "Time": {"$ref": "apis.meta.v1.Time"},
}


@functools.cache
def _tables() -> tuple[Mapping[str, str], Mapping[str, Schema]]:
    found = json.loads(resources.files(__package__).joinpath("types.json").read_text())
    return found["kinds"], with_newer_fields(found["kinds"], found["types"])


def named(name: str) -> Schema:
    """Returns a type by its name, as used in references."""
    return _tables()[1][name]


def name_of(group: str, version: str, kind: str) -> str | None:
    """Returns the name of a kind's type, or None for an unknown kind."""
    return _tables()[0].get(f"{group}/{version}/{kind}")


def with_newer_fields(kinds: Mapping[str, str], types: Mapping[str, Schema]) -> dict[str, Schema]:
    """Returns the types with the fields that the table of fields has and the types lack, of resource.k8s.io and of pods."""
    out = dict(types)
    for version in sorted({key.split("/")[1] for key in kinds if key.startswith(f"{GROUP}/")}):
        names = _IN_V1BETA1 if version == "v1beta1" else {}
        served = [kind for kind in fields.table().kinds if f"{GROUP}/{version}/{kind}" in kinds]
        _add_fields(out, f"resource.{version}.", served, names)
    _add_fields(out, "core.v1.", ["Pod"], {})
    return out


def _add_fields(out: dict[str, Schema], prefix: str, kinds: list[str], names: Mapping[str, str]) -> None:
    """Adds missing fields to the types of kinds. ``names`` are the names of types that differ from the table's."""
    for go_type in _types_of(kinds):
        name = prefix + names.get(go_type, go_type)
        known = out.get(name, {"type": "object", "properties": {}})  # a new type is in all versions
        is_new = name not in out
        rows = {
            k: row for k, row in fields.rows(go_type).items() if is_new or (row.since and k not in known["properties"])
        }
        removed = {k for k, row in fields.rows(go_type).items() if row.until and k in known.get("required", ())}
        if rows or removed:
            properties = {**known["properties"], **{k: _schema(row, prefix) for k, row in rows.items()}}
            for k in removed:  # a release without the field must not write it as empty
                properties[k] = {**properties[k], "go": properties[k].get("go", "").replace("a", "")}
            required = [*known.get("required", ()), *(k for k, row in rows.items() if row.required)]
            required = [k for k in required if k not in removed]
            out[name] = {**known, "properties": properties, **({"required": required} if required else {})}


def _types_of(kinds: list[str]) -> dict[str, None]:
    """Returns the types of kinds and of their fields that the table of fields has."""
    todo = list(kinds)
    found: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name not in found and (rows := fields.rows(name)):
            found[name] = None
            todo += (row.item_type for row in rows.values())
    return found


def _schema(row: FieldRow, prefix: str) -> Schema:
    item = _SCALARS.get(row.item_type) or {"$ref": prefix + row.item_type}
    wire = {"wire": str(row.wire)} if row.wire else {}
    if row.type.startswith("map["):
        return {"type": "object", "additionalProperties": item, **wire}
    if not row.type.startswith("[]"):
        return {**item, **wire}
    default: Schema = {"default": "" if row.item_type == "string" else {}}
    keys: Schema = {}
    if row.list_type not in {"", "set"}:
        keys = {"x-kubernetes-list-map-keys": [row.list_type], "x-kubernetes-list-type": "map"}
    else:
        keys = {"x-kubernetes-list-type": row.list_type or "atomic"}
    return {"type": "array", "items": {**item, **default}, **keys, **wire}
