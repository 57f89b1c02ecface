"""The shapes of kinds: each field's type, wire number, whether it is a pointer, and whether it is written even if empty.

A shape is built from its schema in :mod:`.tables` at first use, because types can be recursive.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from . import tables
from .tables import Schema


class Form(Enum):
    """A value without fields. The enum value is the name of its type in Go."""

    STRING = "string"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    NUMBER = "float64"
    BYTES = "[]uint8"
    TIME = "v1.Time"
    MICRO_TIME = "v1.MicroTime"
    QUANTITY = "resource.Quantity"
    INT_OR_STRING = "intstr.IntOrString"
    RAW = "runtime.RawExtension"
    FIELDS = "v1.FieldsV1"
    SCHEMA_OR_LIST = "v1.JSONSchemaPropsOrArray"
    SCHEMA_OR_BOOL = "v1.JSONSchemaPropsOrBool"
    SCHEMA_OR_STRINGS = "v1.JSONSchemaPropsOrStringArray"


@dataclass(frozen=True, eq=False)
class ListShape:
    item: LazyShape


@dataclass(frozen=True, eq=False)
class MapShape:
    value: LazyShape


@dataclass(frozen=True, eq=False)
class Struct:
    """A struct."""

    name: str
    fields: Mapping[str, Field] = field(default_factory=dict)

    @functools.cached_property
    def is_sparse(self) -> bool:
        """Whether every field that is not set is left out."""
        return all(f.pointer and not f.always for f in self.fields.values())


Shape: TypeAlias = Form | ListShape | MapShape | Struct


@dataclass(frozen=True, eq=False)
class Field:
    """A field.

    Args:
        pointer: whether the field is stored whenever it is set.
        always: whether the field is written even if it is empty.
        wire: the numbers from the struct's protobuf message to the field; empty if protobuf does not contain the field.
    """

    of: LazyShape
    pointer: bool
    always: bool
    wire: tuple[int, ...]
    default: Any

    @functools.cached_property
    def shape(self) -> Shape:
        return self.of.shape

    @functools.cached_property
    def plain(self) -> type | None:
        """The Python type whose values are stored unchanged; None if values need a check."""
        return _PLAIN.get(self.shape) if self.pointer or self.always else None


class LazyShape:
    """A shape that is built from its schema at first use."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @functools.cached_property
    def shape(self) -> Shape:
        reference = self._schema.get("$ref")
        return named(reference) if reference else _shape("", self._schema)


_FORMS = {
    "apis.meta.v1.Time": Form.TIME,
    "apis.meta.v1.MicroTime": Form.MICRO_TIME,
    "api.resource.Quantity": Form.QUANTITY,
    "util.intstr.IntOrString": Form.INT_OR_STRING,
    "runtime.RawExtension": Form.RAW,
    "apis.meta.v1.FieldsV1": Form.FIELDS,
    "apiextensions.v1.JSONSchemaPropsOrArray": Form.SCHEMA_OR_LIST,
    "apiextensions.v1.JSONSchemaPropsOrBool": Form.SCHEMA_OR_BOOL,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": Form.SCHEMA_OR_STRINGS,
}
SCHEMA = "apiextensions.v1.JSONSchemaProps"
"""The name of the type of schemas in CustomResourceDefinitions."""
GENERAL_KINDS = frozenset({"APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "DeleteOptions", "Status"})
"""The kinds that belong to every API group."""
_SCALARS = {
    ("string", ""): Form.STRING,
    ("string", "byte"): Form.BYTES,
    ("string", "date-time"): Form.TIME,
    ("integer", "int32"): Form.INT32,
    ("integer", "int64"): Form.INT64,
    ("integer", ""): Form.INT64,
    ("number", ""): Form.NUMBER,
    ("number", "double"): Form.NUMBER,
    ("boolean", ""): Form.BOOL,
}


_LIST_META = "apis.meta.v1.ListMeta"
_PLAIN: Mapping[object, type] = {Form.STRING: str, Form.BOOL: bool}


@functools.cache
def named(name: str) -> Shape:
    return _FORMS.get(name) or _shape(name, tables.named(name))


def kind_shape(group: str, version: str, kind: str) -> Struct | None:
    """Returns the shape of a kind, or None for an unknown kind."""
    name = tables.name_of(group, version, kind)
    found = named(name) if name else None
    return found if isinstance(found, Struct) else None


def list_shape(group: str, version: str, kind: str) -> Struct | None:
    """Returns the shape of the kind of lists of another kind, or None for an unknown kind."""
    name = tables.name_of(group, version, kind.removesuffix("List")) if kind.endswith("List") else None
    if name is None:
        return None
    items = {"type": "array", "items": {"$ref": name}, "wire": "2"}
    found = _shape(f"{name}List", {"properties": {"metadata": {"$ref": _LIST_META, "wire": "1"}, "items": items}})
    assert isinstance(found, Struct)
    return found


def dra_shape(kind: str) -> Struct:
    """Returns the shape of a kind of resource.k8s.io/v1. Raises ``KeyError`` for an unknown kind."""
    found = kind_shape("resource.k8s.io", "v1", kind)
    if found is None:
        raise KeyError(kind)
    return found


def _shape(name: str, schema: Schema) -> Shape:
    if "properties" in schema:
        required = set(schema.get("required", ()))
        fields = {k: _field(v, k in required) for k, v in schema["properties"].items()}
        return Struct(name, fields)
    if schema.get("type") == "array":
        return ListShape(LazyShape(schema["items"]))
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        return MapShape(LazyShape(values))
    return _SCALARS.get((schema.get("type", ""), schema.get("format", "")), Form.RAW)


def _field(schema: Schema, required: bool) -> Field:
    of = LazyShape(schema)
    wire = tuple(map(int, schema["wire"].split("."))) if "wire" in schema else ()
    marks = schema.get("go")
    default = schema.get("default")
    if marks is None:
        # The field is newer than the Go types in the tables. Optional fields are mostly pointers. Lists and maps keep
        # the form in which they were sent, which validation distinguishes.
        container = "items" in schema or "additionalProperties" in schema
        return Field(of, container or (not required and default is None), required, wire, default)
    return Field(of, "p" in marks, "a" in marks, wire, default)


def go_name(shape: Shape) -> str:
    match shape:
        case Form():
            return shape.value
        case ListShape():
            return f"[]{go_name(shape.item.shape)}"
        case MapShape():
            return f"map[string]{go_name(shape.value.shape)}"
    return ".".join(shape.name.split(".")[-2:])
