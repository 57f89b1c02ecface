"""Encodes an OpenAPI v2 document as the protobuf message that kubectl requests.

kubectl before 1.29 always requests it, a newer kubectl only for lists of mixed kinds. Source of the field numbers:
OpenAPIv2.proto of github.com/google/gnostic. In the message, values without a fixed type are YAML; here they are
written as JSON, which is valid YAML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from .protobuf import double_field, integer_field, message_field, text_field

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_VERBS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_TEXTS = {"format": 2, "title": 3, "description": 4, "pattern": 13}
_DOUBLES = {"multipleOf": 6, "maximum": 7, "minimum": 9}
_INTEGERS = {"maxLength": 11, "minLength": 12, "maxItems": 14, "minItems": 15, "maxProperties": 17, "minProperties": 18}


def encode(document: ReadOnlyJSON) -> bytes:
    """Encodes a document in OpenAPI v2."""
    info = document["info"]
    paths = b"".join(message_field(2, _named(p, _path(item))) for p, item in document["paths"].items())
    definitions = b"".join(message_field(1, _named(n, _schema(s))) for n, s in document["definitions"].items())
    return b"".join(
        (
            text_field(1, document["swagger"]),
            message_field(2, text_field(1, info["title"]) + text_field(2, info["version"])),
            message_field(8, paths),
            message_field(9, definitions),
        )
    )


def _path(item: ReadOnlyJSON) -> bytes:
    return b"".join(message_field(number, _operation(item[verb])) for verb, number in _VERBS.items() if verb in item)


def _operation(operation: ReadOnlyJSON) -> bytes:
    parameters = b"".join(message_field(8, _query_parameter(p)) for p in operation.get("parameters") or ())
    responses = b"".join(
        message_field(1, _named(code, message_field(1, text_field(1, response["description"]))))
        for code, response in operation["responses"].items()
    )
    return (
        text_field(5, operation["operationId"]) + parameters + message_field(9, responses) + _extensions(13, operation)
    )


def _query_parameter(parameter: ReadOnlyJSON) -> bytes:
    query = text_field(2, "query") + text_field(4, parameter["name"]) + text_field(6, parameter["type"])
    # ParametersItem > Parameter > NonBodyParameter > QueryParameterSubSchema
    return message_field(1, message_field(2, message_field(3, query)))


def _schema(schema: ReadOnlyJSON) -> bytes:
    out = [text_field(number, schema[key]) for key, number in _TEXTS.items() if schema.get(key)]
    # In OpenAPI, a reference with other fields is inside allOf. The protobuf message has the reference as a field.
    for part in (schema, *(schema.get("allOf") or ())):
        if reference := part.get("$ref"):
            out.append(text_field(1, reference))
    out += [double_field(number, schema[key]) for key, number in _DOUBLES.items() if key in schema]
    out += [integer_field(number, schema[key]) for key, number in _INTEGERS.items() if key in schema]
    if "default" in schema:
        out.append(message_field(5, _any(schema["default"])))
    out += [text_field(19, name) for name in schema.get("required") or ()]
    out += [message_field(20, _any(value)) for value in schema.get("enum") or ()]
    rest = schema.get("additionalProperties")
    if isinstance(rest, Mapping):
        out.append(message_field(21, message_field(1, _schema(rest))))
    elif rest is not None:
        out.append(message_field(21, integer_field(2, int(rest))))
    if kind := schema.get("type"):
        out.append(message_field(22, text_field(1, kind)))
    if isinstance(items := schema.get("items"), Mapping):
        out.append(message_field(23, message_field(1, _schema(items))))
    if properties := schema.get("properties"):
        out.append(message_field(25, b"".join(message_field(1, _named(n, _schema(s))) for n, s in properties.items())))
    return b"".join(out) + _extensions(31, schema)


def _extensions(number: int, of: ReadOnlyJSON) -> bytes:
    return b"".join(message_field(number, _named(k, _any(v))) for k, v in of.items() if k.startswith("x-"))


def _any(value: Any) -> bytes:
    return text_field(2, json.dumps(value))


def _named(name: str, value: bytes) -> bytes:
    return text_field(1, name) + message_field(2, value)
