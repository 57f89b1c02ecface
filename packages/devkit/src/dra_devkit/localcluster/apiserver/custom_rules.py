"""CEL validation rules of custom resources (``x-kubernetes-validations``): compiles and evaluates them.

Source: Kubernetes' documentation, "Validation rules" of custom resources; KEP-2876; KEP-4008 (skips unchanged values).
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, required, unsupported

from ...scheduling.cel.ast import Ident, children
from ...scheduling.cel.expressions import DYN, Budget, CelEnvironment, Expression
from ...scheduling.cel.lexer import Source
from ...scheduling.cel.library_core import parse_duration, parse_timestamp
from ...scheduling.cel.parser import RESERVED, Parser
from ...scheduling.cel.values import NONE, CelError, CompileError, Optional, Type

Schema = Mapping[str, Any]
RULES = "x-kubernetes-validations"
_UNSUPPORTED = ("additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_LIST_TYPE, _LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
_ROOT = "<nil>"  # Kubernetes prints this as the path of the whole object
_BOOL, _STRING = Type("bool"), Type("string")
_SCALARS = {"string": "string", "boolean": "bool", "integer": "int", "number": "double"}
_FORMATS = {
    "byte": "bytes",
    "duration": "google.protobuf.Duration",
    "date": "google.protobuf.Timestamp",
    "date-time": "google.protobuf.Timestamp",
}
_META: Schema = {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}
_TYPED: Schema = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _META}
_KEYWORDS = RESERVED | {"true", "false", "null", "in"}
_ESCAPES = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_REASONS = {
    "FieldValueRequired": "Required value: {}",
    "FieldValueForbidden": "Forbidden: {}",
    "FieldValueInvalid": 'Invalid value: "{type}": {}',
    "FieldValueDuplicate": 'Duplicate value: "{type}"',
}


@dataclass(frozen=True)
class Rule:
    """A compiled rule.

    Attributes:
        transition: whether the rule uses the old value. Such a rule runs only on updates, unless ``optional_old`` is set.
        optional_old: whether ``oldSelf`` is an optional value, so that the rule also runs on creation.
    """

    expression: Expression
    message: str
    message_expression: Expression | None
    reason: str
    field_path: str
    transition: bool
    optional_old: bool


# --- types ------------------------------------------------------------------------------------------


def escaped(name: str) -> str:
    """Returns the name of a property in CEL expressions, in which some characters and words are escaped."""
    if name in _KEYWORDS:
        return f"__{name}__"
    for plain, word in _ESCAPES:
        name = name.replace(plain, word)
    return name


def _fields(schema: Schema, *, root: bool) -> Mapping[str, Schema]:
    fields: Mapping[str, Schema] = schema.get("properties") or {}
    return {**fields, **_TYPED} if root or schema.get("x-kubernetes-embedded-resource") else fields


class _Types:
    """The CEL types of a schema. ``objects`` contains the fields of each object type, by its name."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Type]] = {}

    def of(self, schema: Schema, *, root: bool = False) -> Type | None:
        """Returns the CEL type of a schema; None for a field without a known type, which expressions cannot use."""
        if schema.get("x-kubernetes-int-or-string"):
            return DYN
        kind = schema.get("type", "")
        if kind == "array":
            items = self.of(schema.get("items") or {})
            return items and Type("list", (items,))
        if kind == "object" or root:
            if isinstance(rest := schema.get("additionalProperties"), Mapping):
                values = self.of(rest)
                return values and Type("map", (_STRING, values))
            name = f"kubernetes.object{len(self.objects)}"
            fields = self.objects[name] = {}
            for key, inner in _fields(schema, root=root).items():
                if (found := self.of(inner)) is not None:
                    fields[escaped(key)] = found
            return Type(name)
        if kind == "string" and schema.get("format") in _FORMATS:
            return Type(_FORMATS[schema["format"]])
        return Type(_SCALARS[kind]) if kind in _SCALARS else None


def _value(value: Any, schema: Schema, *, root: bool = False) -> Any:
    """Converts a JSON value to the value that CEL expressions use."""
    if isinstance(value, dict):
        rest = schema.get("additionalProperties")
        if isinstance(rest, Mapping):
            return {k: _value(v, rest) for k, v in value.items()}
        fields = _fields(schema, root=root)
        return {escaped(k): _value(v, fields[k]) for k, v in value.items() if k in fields}
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [_value(v, items) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and schema.get("type") == "number":
        return float(value)
    if isinstance(value, str) and (read := _READ.get(schema.get("format", ""))):
        return read(value)
    return value


_READ: Mapping[str, Callable[[str], Any]] = {
    "date-time": parse_timestamp,
    "date": lambda text: parse_timestamp(f"{text}T00:00:00Z"),
    "duration": parse_duration,
    "byte": lambda text: base64.b64decode(text, validate=True),
}


def fits_format(text: str, name: str) -> bool:
    """Returns whether a text is valid for a format. Formats without a CEL type of their own accept any text."""
    read = _READ.get(name)
    try:
        return read is None or read(text) is not None
    except (ValueError, CelError):
        return False


# --- definitions ------------------------------------------------------------------------------------


def definition_faults(schema: Schema, path: str) -> list[FieldError]:
    """Returns the errors of a schema: rules that do not compile, keywords that Kubernetes refuses, and lists that cannot be merged.

    Args:
        path: the schema's path in its definition.
    """
    out: list[FieldError] = []
    for node, where, root in nodes(schema, path, root=True):
        out += [forbidden(f"{where}.{key}", f"{key} is not supported") for key in _UNSUPPORTED if node.get(key)]
        out += _list_faults(node, where)
        for i, declared in enumerate(node.get(RULES) or ()):
            try:
                _compile(declared, node, root=root)
            except CompileError as e:
                out.append(invalid(f"{where}.{RULES}[{i}].rule", declared.get("rule"), str(e)))
            except RecursionError:
                out.append(invalid(f"{where}.{RULES}[{i}].rule", declared.get("rule"), "the rule is nested too deeply"))
            if declared.get("reason", "FieldValueInvalid") not in _REASONS:
                out.append(
                    invalid(f"{where}.{RULES}[{i}].reason", declared["reason"], f"must be one of {', '.join(_REASONS)}")
                )
    return out


def _list_faults(node: Schema, where: str) -> Iterator[FieldError]:
    """Yields the errors of the schema of a list, because of which its values could not be merged."""
    items, kind, keys = node.get("items"), node.get(_LIST_TYPE), node.get(_LIST_KEYS) or ()
    if isinstance(items, list):
        yield forbidden(f"{where}.items", "items must be a schema object and not an array")
        return
    if items is None and (node.get("type") == "array" or kind == "map"):
        text = "must have a schema if x-kubernetes-list-type is map" if kind == "map" else "must be specified"
        yield required(f"{where}.items", text)
    if kind not in {None, "atomic", "set", "map"}:
        yield unsupported(f"{where}.{_LIST_TYPE}", kind, ("atomic", "map", "set"))
    if keys and kind != "map":
        at, text = f"{where}.{_LIST_TYPE}", "must be map if x-kubernetes-list-map-keys is non-empty"
        yield required(at, text) if kind is None else invalid(at, kind, text)
    if kind != "map" or items is None:
        return
    if not keys:
        yield required(f"{where}.{_LIST_KEYS}", "must not be empty if x-kubernetes-list-type is map")
    if items.get("type") != "object":
        text = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid(f"{where}.items.type", items.get("type", ""), text)
    properties = items.get("properties") or {}
    if not set(keys) <= properties.keys():
        yield invalid(f"{where}.{_LIST_KEYS}", keys, "entries must all be names of item properties")
    for key in keys:
        if key in properties and key not in (items.get("required") or ()) and properties[key].get("default") is None:
            text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            yield required(f"{where}.items.properties[{key}].default", text)


def nodes(schema: Schema, path: str, *, root: bool = False) -> Iterator[tuple[Schema, str, bool]]:
    """Yields a schema and each schema in it, with its path, and whether it is the schema of the whole object."""
    yield schema, path, root
    for name, inner in (schema.get("properties") or {}).items():
        yield from nodes(inner, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(inner := schema.get(key), Mapping):
            yield from nodes(inner, f"{path}.{key}")


def _compile(declared: Schema, schema: Schema, *, root: bool) -> Rule:
    """Compiles a rule. Raises :class:`CompileError`."""
    types = _Types()
    own = types.of(schema, root=root) or DYN
    text = str(declared.get("rule") or "")
    optional = bool(declared.get("optionalOldSelf"))
    old = Type("optional_type", (own,)) if optional else own
    environment = CelEnvironment({"self": own, "oldSelf": old}, types.objects)
    message = declared.get("messageExpression")
    return Rule(
        Expression(text, environment, _BOOL),
        str(declared.get("message") or ""),
        Expression(str(message), environment, _STRING) if message else None,
        str(declared.get("reason") or "FieldValueInvalid"),
        str(declared.get("fieldPath") or ""),
        _uses_old_self(text),
        optional,
    )


def _uses_old_self(text: str) -> bool:
    waiting = [Parser(Source(text)).parse()]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Ident) and node.name == "oldSelf":
            return True
        waiting += children(node)
    return False


@functools.lru_cache(maxsize=1024)
def _rules(schema: str, *, root: bool) -> tuple[Rule, ...]:
    """Returns the compiled rules of one schema node. Its JSON text is the cache key."""
    node = json.loads(schema)
    return tuple(_compile(declared, node, root=root) for declared in node.get(RULES) or ())


# --- objects ----------------------------------------------------------------------------------------


def faults(obj: JSON, old: JSON | None, schema: Schema) -> list[FieldError]:
    """Returns an error for each rule that an object breaks. The object must be valid for its schema."""
    return list(_violations(obj, old, schema, "", Budget(), root=True))


def _violations(
    value: Any, old: Any, schema: Schema, path: str, budget: Budget, *, root: bool = False
) -> Iterator[FieldError]:
    if value is None:
        return
    if RULES in schema:
        for rule in _rules(json.dumps(schema), root=root):
            yield from _broken(rule, value, old, schema, path, budget, root=root)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        rest, fields = schema.get("additionalProperties"), _fields(schema, root=root)
        for key, item in value.items():
            inner = fields.get(key) or (rest if isinstance(rest, Mapping) else None)
            if inner is not None:
                where = f"{path}[{key}]" if key not in fields else f"{path}.{key}" if path else key
                yield from _violations(item, before.get(key), inner, where, budget)
    elif isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        for i, item in enumerate(value):
            yield from _violations(item, _same_item(item, old, schema), items, f"{path}[{i}]", budget)


def _same_item(item: Any, old: Any, schema: Schema) -> Any:
    """Returns the old value of a list item: the old item with the same keys. Always None if the schema declares no keys."""
    keys = schema.get(_LIST_KEYS) or ()
    if not keys or not isinstance(old, list) or not isinstance(item, dict):
        return None
    return next((o for o in old if isinstance(o, dict) and all(o.get(k) == item.get(k) for k in keys)), None)


def _broken(
    rule: Rule, value: Any, old: Any, schema: Schema, path: str, budget: Budget, *, root: bool
) -> Iterator[FieldError]:
    if rule.transition and old is None and not rule.optional_old:
        return
    if not rule.transition and old is not None and old == value:
        return
    shown = str(schema.get("type") or "object")
    try:
        before = None if old is None else _value(old, schema, root=root)
        if rule.optional_old:
            before = NONE if old is None else Optional(True, before)
        known = {"self": _value(value, schema, root=root), "oldSelf": before}
        if rule.expression.evaluate(known, budget):
            return
        message = (
            message_of(rule.message_expression, known, budget) or rule.message or f"failed rule: {rule.expression.text}"
        )
    except CelError as e:
        yield FieldError(
            "FieldValueInvalid",
            path or _ROOT,
            f'Invalid value: "{shown}": {e} evaluating rule: {rule.message or rule.expression.text}',
        )
        return
    text = _REASONS.get(rule.reason, _REASONS["FieldValueInvalid"]).format(message, type=shown)
    where = f"{path}{rule.field_path}" if path else rule.field_path.removeprefix(".")
    yield FieldError(rule.reason, where or _ROOT, text)


def message_of(expression: Expression | None, known: Mapping[str, Any], budget: Budget) -> str:
    """Returns the result of a ``messageExpression``; empty if the evaluation fails or the text has several lines."""
    if expression is None:
        return ""
    try:
        text = str(expression.evaluate(known, budget)).strip()
    except CelError:
        return ""
    return "" if "\n" in text else text
