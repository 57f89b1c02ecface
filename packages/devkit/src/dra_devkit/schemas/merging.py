"""The merge types of objects: which maps and lists are atomic, and which keys identify list items.

The types are built from the schemas in :mod:`.tables`, or from a custom resource's schema. Source:
https://kubernetes.io/docs/reference/using-api/server-side-apply/, "Merge strategy".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from ..schemas import tables
from ..schemas.tables import Schema


class Scalar(Enum):
    """A value without parts."""

    STRING = "string"
    NUMERIC = "numeric"
    BOOLEAN = "boolean"
    UNTYPED = "untyped"


class Untyped(Enum):
    """A value of any type. ATOMIC: a map or list is replaced as a whole. DEDUCED: maps are merged by key."""

    ATOMIC = "atomic"
    DEDUCED = "deduced"


@dataclass(frozen=True, eq=False)
class ListOf:
    """A list: atomic, a set of scalars, or items identified by ``keys``."""

    item: LazyType
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_set: bool = False

    @property
    def atomic(self) -> bool:
        return not (self.keys or self.is_set)


@dataclass(frozen=True, eq=False)
class MapOf:
    """A struct with ``fields``, or a map whose values have one type."""

    fields: Mapping[str, LazyType]
    values: LazyType | None
    atomic: bool


Type: TypeAlias = Scalar | Untyped | ListOf | MapOf


class LazyType:
    """A type that is built from its schema at first use, because types can be recursive."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @functools.cached_property
    def type(self) -> Type:
        reference = self._schema.get("$ref")
        return _named(reference) if reference else from_schema(self._schema)


_SCALARS = {"string": Scalar.STRING, "integer": Scalar.NUMERIC, "number": Scalar.NUMERIC, "boolean": Scalar.BOOLEAN}
_ANY = {"runtime.RawExtension", "apis.meta.v1.FieldsV1"}
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


@functools.cache
def _named(name: str) -> Type:
    return Untyped.ATOMIC if name in _ANY else from_schema(tables.named(name))


def from_schema(schema: Schema) -> Type:
    """Returns the merge type of an OpenAPI schema: a built-in kind's, or a custom resource's."""
    if schema.get("x-kubernetes-int-or-string") or ("oneOf" in schema and "type" not in schema):
        return Scalar.UNTYPED
    if schema.get("type") == "array":
        return _list(schema)
    preserving = schema.get("x-kubernetes-preserve-unknown-fields")
    values = schema.get("additionalProperties")
    if "properties" in schema or isinstance(values, Mapping):
        fields = {k: LazyType(v) for k, v in schema.get("properties", {}).items()}
        rest = LazyType(values) if isinstance(values, Mapping) else LazyType(_ANYTHING) if preserving else None
        return MapOf(fields, rest, schema.get("x-kubernetes-map-type") == "atomic")
    if preserving:
        return Untyped.DEDUCED
    return _SCALARS.get(schema.get("type", ""), Untyped.ATOMIC)


def _list(schema: Schema) -> ListOf:
    item = schema["items"]
    match schema.get("x-kubernetes-list-type", "atomic"):
        case "map":
            keys = tuple(schema["x-kubernetes-list-map-keys"])
            fields = (tables.named(item["$ref"]) if "$ref" in item else item).get("properties", {})
            defaults = {k: fields[k]["default"] for k in keys if fields.get(k, {}).get("default")}
            return ListOf(LazyType(item), keys, defaults)
        case "set":
            return ListOf(LazyType(item), is_set=True)
    return ListOf(LazyType(item))


@functools.cache
def type_of(group: str, version: str, kind: str) -> Type:
    """Returns the merge type of a kind. For an unknown kind, maps are merged by key and lists are replaced."""
    name = tables.name_of(group, version, kind)
    return _named(name) if name else Untyped.DEDUCED
