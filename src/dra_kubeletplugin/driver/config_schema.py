"""The JSON Schema of a driver's parameters, for editors, documentation and checks outside of Python.

Source: JSON Schema 2020-12. msgspec's own generator stops at a default that is a :class:`Quantity`, so this walks what
``msgspec.inspect`` tells of the types. What types cannot say (:meth:`Config.check`) is not in it.
"""

from __future__ import annotations

from itertools import chain, count
from typing import Any

import msgspec
from msgspec import inspect

from ..resources.amounts import Capacity, RequestPolicy
from ..resources.quantity import Quantity
from ..resources.version import Version
from .config import Config, as_json

JSON = dict[str, Any]
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_QUANTITY: JSON = {"$ref": "#/$defs/Quantity"}


def _object(required: list[str], **properties: JSON) -> JSON:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_FORMS: dict[type, JSON] = {  # what has a form of its own in JSON
    Quantity: {
        "anyOf": [
            {"type": "string", "pattern": rf"^[+-]?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"},
            {"type": "integer"},
        ],
        "examples": ["80Gi", "500m"],
    },
    Version: {"type": "string", "examples": ["1.2.3"]},
    RequestPolicy: _object(
        ["default"],
        default=_QUANTITY,
        validValues={"type": "array", "items": _QUANTITY},
        validRange=_object([], min=_QUANTITY, max=_QUANTITY, step=_QUANTITY),
    ),
    Capacity: {
        "anyOf": [_QUANTITY, _object(["value"], value=_QUANTITY, requestPolicy={"$ref": "#/$defs/RequestPolicy"})]
    },
}
_WITHIN: dict[type, tuple[type, ...]] = {RequestPolicy: (Quantity,), Capacity: (Quantity, RequestPolicy)}
_TEXTS: dict[type[inspect.Type], str] = {  # what JSON has as text, by format
    inspect.DateTimeType: "date-time",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "duration",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}
_LIMITS = {
    "gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum", "multiple_of": "multipleOf",
    "pattern": "pattern",
}  # fmt: skip


def json_schema(kind: type[Config]) -> JSON:
    """The schema of ``opaque.parameters`` of one kind, ``apiVersion`` and ``kind`` included where the class names them.

    Where the kind is layered no field is required, because the rest may stand in the class.
    """
    walk = _Walk(partial=kind.LAYERED)
    schema = walk.struct(inspect.type_info(kind))
    head = {k: v for k, v in {"apiVersion": kind.API_VERSION, "kind": kind.KIND}.items() if v}
    schema["properties"] = {k: {"const": v} for k, v in head.items()} | schema["properties"]
    schema["required"] = [*head, *schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        **({"$defs": walk.definitions} if walk.definitions else {}),
    }


class _Walk:
    """``definitions`` are the structs within, by their class's name, and a number where two classes have one name.

    ``partial`` is for objects of which another has the rest.
    """

    def __init__(self, *, partial: bool) -> None:
        self.partial = partial
        self.definitions: dict[str, JSON] = {}
        self._names: dict[int, str] = {}  # by the identity of msgspec's description, which is one for each type

    def struct(self, info: Any) -> JSON:
        out: JSON = {"title": info.cls.__name__, "type": "object"}
        if own := vars(info.cls).get("__doc__"):
            out["description"] = " ".join(own.split("\n\n")[0].split())
        tag = {info.tag_field: {"const": info.tag}} if getattr(info, "tag_field", None) else {}
        out["properties"] = tag | {f.encode_name: self.of(f.type) | _default(f) for f in info.fields}
        out["required"] = [] if self.partial else [*tag, *(f.encode_name for f in info.fields if f.required)]
        if getattr(info, "forbid_unknown_fields", False):
            out["additionalProperties"] = False
        return out

    def of(self, info: Any) -> JSON:
        if isinstance(info, inspect.Metadata):
            return self.of(info.type) | (info.extra_json_schema or {})
        if (text := _TEXTS.get(type(info))) is not None:
            return {"type": "string", "format": text}
        match info:
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                return self._reference(info)
            case inspect.CustomType():
                return self._form(info.cls)
            case inspect.UnionType():
                return {"anyOf": [self.of(t) for t in info.types]}
            case inspect.LiteralType():
                return {"enum": list(info.values)}
            case inspect.EnumType():
                return {"enum": [member.value for member in info.cls]}
            case inspect.DictType():
                return {"type": "object", "additionalProperties": self.of(info.value_type)} | _sizes(info, "Properties")
            case inspect.TupleType():
                items = [self.of(t) for t in info.item_types]
                return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
            case inspect.CollectionType():
                return {"type": "array", "items": self.of(info.item_type)} | _sizes(info, "Items")
            case inspect.StrType():
                return {"type": "string"} | _sizes(info, "Length") | _limits(info)
            case inspect.IntType():
                return {"type": "integer"} | _limits(info)
            case inspect.FloatType():
                return {"type": "number"} | _limits(info)
            case inspect.BoolType():
                return {"type": "boolean"}
            case inspect.NoneType():
                return {"type": "null"}
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                return {"type": "string", "contentEncoding": "base64"}
        return {}

    def _form(self, cls: type) -> JSON:
        self.definitions |= {
            c.__name__: _FORMS[c] for c in (cls, *_WITHIN.get(cls, ()))
        }  # their names are theirs alone
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _reference(self, info: Any) -> JSON:
        name = self._names.get(id(info))
        if name is None:
            own = info.cls.__name__
            taken = self.definitions.keys() | {c.__name__ for c in _FORMS}
            name = next(n for n in chain((own,), (f"{own}{i}" for i in count(2))) if n not in taken)
            self._names[id(info)] = name
            self.definitions[name] = {}  # one that holds itself ends here
            self.definitions[name] = self.struct(info)
        return {"$ref": f"#/$defs/{name}"}


def _default(field: inspect.Field) -> JSON:
    if field.default is not msgspec.NODEFAULT:
        return {"default": as_json(field.default)}
    if field.default_factory is not msgspec.NODEFAULT:
        return {"default": as_json(field.default_factory())}
    return {}


def _limits(info: Any) -> JSON:
    return {word: value for name, word in _LIMITS.items() if (value := getattr(info, name, None)) is not None}


def _sizes(info: Any, what: str) -> JSON:
    named = {f"min{what}": info.min_length, f"max{what}": info.max_length}
    return {word: value for word, value in named.items() if value is not None}
