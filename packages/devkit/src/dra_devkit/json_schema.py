"""Creates the JSON Schema of a driver's parameters, for editors, documentation and checks outside of Python.

Source: JSON Schema 2020-12. msgspec's own generator fails at a default that is a :class:`Quantity`, so this module walks the types of
``msgspec.inspect``. A schema accepts more than the class: 1.0 as an integer, dates that do not exist, text that is not a Decimal, and
amounts in the wrong order. It also accepts everything that :meth:`Config.check` rejects.
"""

from __future__ import annotations

from itertools import chain, count
from typing import Any

import msgspec
from msgspec import inspect

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.driver.config.model import Config, as_json
from dra_kubeletplugin.resourceapi.amounts import Capacity, RequestPolicy
from dra_kubeletplugin.resourceapi.quantity import Quantity
from dra_kubeletplugin.resourceapi.version import PATTERN, Version

_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_QUANTITY: JSON = {"$ref": "#/$defs/Quantity"}


def _object(required: list[str], **properties: JSON) -> JSON:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_FORMS: dict[type, JSON] = {  # types with their own JSON form
    Quantity: {
        "anyOf": [
            {"type": "string", "pattern": rf"^[+-]?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"},
            {"type": "integer"},
        ],
        "examples": ["80Gi", "500m"],
    },
    Version: {"type": "string", "pattern": f"^{PATTERN}$", "examples": ["1.2.3"]},
    RequestPolicy: _object(
        ["default"],
        default=_QUANTITY,
        validValues={"type": "array", "items": _QUANTITY},
        validRange=_object([], min=_QUANTITY, max=_QUANTITY, step=_QUANTITY)
        | {"dependentRequired": {"max": ["min"], "step": ["min"]}},
    )
    | {
        "not": {
            "required": ["validValues", "validRange"],
            "properties": {"validValues": {"minItems": 1}, "validRange": {"minProperties": 1}},
        }
    },
    Capacity: {
        "anyOf": [_QUANTITY, _object(["value"], value=_QUANTITY, requestPolicy={"$ref": "#/$defs/RequestPolicy"})]
    },
}
_WITHIN: dict[type, tuple[type, ...]] = {RequestPolicy: (Quantity,), Capacity: (Quantity, RequestPolicy)}
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?"
_OFFSET = "([Zz]|[+-][0-9]{2}:?[0-9]{2})"
_HEX = "[0-9a-fA-F]"
_AMOUNT = "[0-9]+([.][0-9]+)?"
_SMALLER = f"({_AMOUNT}[Hh])?({_AMOUNT}[Mm])?({_AMOUNT}[Ss])?"
# Patterns of types that are text in JSON. JSON Schema also has formats, but validators treat formats differently.
_TEXTS: dict[type[inspect.Type], str] = {
    inspect.DateType: _DATE,
    inspect.TimeDeltaType: f"[+-]?[Pp](?=[0-9Tt])({_AMOUNT}[Dd])?([Tt](?=[0-9]){_SMALLER})?",
    inspect.UUIDType: f"({_HEX}{{32}}|{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}})",
}
_BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_LIMITS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}


def json_schema(*kinds: type[Config]) -> JSON:
    """Returns the schema of ``opaque.parameters``, with ``apiVersion`` and ``kind`` if the class sets them.

    With several kinds, the schema accepts any one of them.
    """
    walk = _Walk()
    schemas = [walk.kind(kind, info) for kind, info in zip(kinds, inspect.multi_type_info(kinds), strict=True)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **(schemas[0] if len(schemas) == 1 else {"oneOf": schemas}),
        **({"$defs": walk.definitions} if walk.definitions else {}),
    }


class _Walk:
    """Walks the types and collects the nested structs.

    Attributes:
        definitions: the nested structs by class name, with a number if two classes have the same name.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, JSON] = {}
        self._names: dict[int, str] = {}  # by the id of msgspec's description of the type (one for each type)

    def kind(self, kind: type[Config], info: Any) -> JSON:
        schema = self.struct(info)
        head = {k: v for k, v in {"apiVersion": kind.API_VERSION, "kind": kind.KIND}.items() if v}
        schema["properties"] = {k: {"const": v} for k, v in head.items()} | schema["properties"]
        schema["required"] = [*head, *schema["required"]]
        return schema

    def struct(self, info: Any) -> JSON:
        out: JSON = {"title": info.cls.__name__, "type": "object"}
        if own := vars(info.cls).get("__doc__"):
            out["description"] = " ".join(own.split("\n\n")[0].split())
        if isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False):
            return out | self._positions(info)
        tag = {info.tag_field: {"const": info.tag}} if getattr(info, "tag_field", None) else {}
        out["properties"] = tag | {f.encode_name: self.of(f.type) | _default(f) for f in info.fields}
        out["required"] = [f.encode_name for f in info.fields if f.required]
        if getattr(info, "forbid_unknown_fields", False):
            out["additionalProperties"] = False
        return out

    def of(self, info: Any) -> JSON:
        if isinstance(info, inspect.Metadata):
            return self.of(info.type) | (info.extra_json_schema or {})
        if (text := _TEXTS.get(type(info))) is not None:
            return _text(text)
        match info:
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
                return self._reference(info)
            case inspect.CustomType():
                return self._form(info.cls)
            case inspect.UnionType():
                structs = [t for t in info.types if isinstance(t, inspect.StructType)]
                return {"anyOf": [self.of(t) | (self._tagged(t) if len(structs) > 1 else {}) for t in info.types]}
            case inspect.LiteralType():
                return {"enum": list(info.values)}
            case inspect.EnumType():
                return {"enum": [member.value for member in info.cls]}
            case inspect.DictType():
                names = self._key(info.key_type)
                values = {"additionalProperties": self.of(info.value_type)}
                return (
                    {"type": "object"}
                    | ({"propertyNames": names} if names else {})
                    | values
                    | _sizes(info, "Properties")
                )
            case inspect.TupleType():
                items = [self.of(t) for t in info.item_types]
                return _array(items, len(items), closed=True)
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
                return {"contentEncoding": "base64"} | _text(_BASE64)
            case inspect.DateTimeType() | inspect.TimeType():
                day = f"{_DATE}[Tt ]" if isinstance(info, inspect.DateTimeType) else ""
                return _text(f"{day}{_TIME}" + {None: f"{_OFFSET}?", True: _OFFSET, False: ""}[info.tz])
            case inspect.DecimalType():
                return {"type": ["string", "number"]}
        return {}

    def _key(self, info: Any) -> JSON:
        """Returns the schema of a mapping's keys, which are text in JSON; empty if any text is allowed."""
        match info:
            case inspect.Metadata():
                return self._key(info.type)
            case inspect.LiteralType():
                return {"enum": [str(value) for value in info.values]}
            case inspect.EnumType():
                return {"enum": [str(member.value) for member in info.cls]}
            case inspect.IntType():
                return {"pattern": "^-?(0|[1-9][0-9]*)$"}
            case inspect.StrType():
                return _sizes(info, "Length") | _limits(info)
        return {"pattern": f"^({_TEXTS[type(info)]})$"} if type(info) in _TEXTS else {}

    def _tagged(self, info: Any) -> JSON:
        """Requires the tag of a struct in a union. A struct alone may omit its tag."""
        named = info.tag_field and not info.array_like
        return {"required": [info.tag_field]} if named else {}

    def _positions(self, info: Any) -> JSON:
        """Returns the schema of a type that is an object in Python and a list in JSON."""
        tag = [{"const": info.tag}] if getattr(info, "tag_field", None) else []
        needed = [f for f in info.fields if f.required]
        closed = isinstance(info, inspect.NamedTupleType) or info.forbid_unknown_fields
        return _array([*tag, *(self.of(f.type) for f in info.fields)], len(tag) + len(needed), closed=closed)

    def _form(self, cls: type) -> JSON:
        # `_reference` uses none of these names for an author's class.
        self.definitions |= {c.__name__: _FORMS.get(c, {}) for c in (cls, *_WITHIN.get(cls, ()))}
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _reference(self, info: Any) -> JSON:
        name = self._names.get(id(info))
        if name is None:
            own = info.cls.__name__
            taken = self.definitions.keys() | {c.__name__ for c in _FORMS}
            name = next(n for n in chain((own,), (f"{own}{i}" for i in count(2))) if n not in taken)
            self._names[id(info)] = name
            self.definitions[name] = {}  # ends the recursion of a type that contains itself
            self.definitions[name] = self.struct(info)
        return {"$ref": f"#/$defs/{name}"}


def _text(pattern: str) -> JSON:
    return {"type": "string", "pattern": f"^{pattern}$"}


def _array(items: list[JSON], least: int, *, closed: bool) -> JSON:
    sizes = {"minItems": least} | ({"maxItems": len(items)} if closed else {})
    return {"type": "array"} | ({"prefixItems": items} if items else {}) | sizes


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
