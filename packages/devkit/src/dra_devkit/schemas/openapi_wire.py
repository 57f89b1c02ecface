"""Encodes an OpenAPI v2 document as the protobuf message that kubectl requests.

kubectl before 1.29 always requests it, a newer kubectl only for lists of mixed kinds. Source of the field numbers:
OpenAPIv2.proto of github.com/google/gnostic. In the message, values without a fixed type are YAML; here they are
written as JSON, which is valid YAML.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_DOUBLE, _BYTES = 1, 2
_VERBS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_TEXTS = {"format": 2, "title": 3, "description": 4, "pattern": 13}
_DOUBLES = {"multipleOf": 6, "maximum": 7, "minimum": 9}
_INTEGERS = {"maxLength": 11, "minLength": 12, "maxItems": 14, "minItems": 15, "maxProperties": 17, "minProperties": 18}


def encode(document: ReadOnlyJSON) -> bytes:
    """Encodes a document in OpenAPI v2."""
    info = document["info"]
    paths = b"".join(_message(2, _named(p, _path(item))) for p, item in document["paths"].items())
    definitions = b"".join(_message(1, _named(n, _schema(s))) for n, s in document["definitions"].items())
    return b"".join(
        (
            _text(1, document["swagger"]),
            _message(2, _text(1, info["title"]) + _text(2, info["version"])),
            _message(8, paths),
            _message(9, definitions),
        )
    )


def _path(item: ReadOnlyJSON) -> bytes:
    return b"".join(_message(number, _operation(item[verb])) for verb, number in _VERBS.items() if verb in item)


def _operation(operation: ReadOnlyJSON) -> bytes:
    parameters = b"".join(_message(8, _query_parameter(p)) for p in operation.get("parameters") or ())
    responses = b"".join(
        _message(1, _named(code, _message(1, _text(1, response["description"]))))
        for code, response in operation["responses"].items()
    )
    return _text(5, operation["operationId"]) + parameters + _message(9, responses) + _extensions(13, operation)


def _query_parameter(parameter: ReadOnlyJSON) -> bytes:
    query = _text(2, "query") + _text(4, parameter["name"]) + _text(6, parameter["type"])
    # ParametersItem > Parameter > NonBodyParameter > QueryParameterSubSchema
    return _message(1, _message(2, _message(3, query)))


def _schema(schema: ReadOnlyJSON) -> bytes:
    out = [_text(number, schema[key]) for key, number in _TEXTS.items() if schema.get(key)]
    # In OpenAPI, a reference with other fields is inside allOf. The protobuf message has the reference as a field.
    for part in (schema, *(schema.get("allOf") or ())):
        if reference := part.get("$ref"):
            out.append(_text(1, reference))
    out += [_double(number, schema[key]) for key, number in _DOUBLES.items() if key in schema]
    out += [_integer(number, schema[key]) for key, number in _INTEGERS.items() if key in schema]
    if "default" in schema:
        out.append(_message(5, _any(schema["default"])))
    out += [_text(19, name) for name in schema.get("required") or ()]
    out += [_message(20, _any(value)) for value in schema.get("enum") or ()]
    rest = schema.get("additionalProperties")
    if isinstance(rest, Mapping):
        out.append(_message(21, _message(1, _schema(rest))))
    elif rest is not None:
        out.append(_message(21, _integer(2, int(rest))))
    if kind := schema.get("type"):
        out.append(_message(22, _text(1, kind)))
    if isinstance(items := schema.get("items"), Mapping):
        out.append(_message(23, _message(1, _schema(items))))
    if properties := schema.get("properties"):
        out.append(_message(25, b"".join(_message(1, _named(n, _schema(s))) for n, s in properties.items())))
    return b"".join(out) + _extensions(31, schema)


def _extensions(number: int, of: ReadOnlyJSON) -> bytes:
    return b"".join(_message(number, _named(k, _any(v))) for k, v in of.items() if k.startswith("x-"))


def _any(value: Any) -> bytes:
    return _text(2, json.dumps(value))


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _message(2, value)


# --- wire format ------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, body: bytes) -> bytes:
    return b"%b%b%b" % (_varint(number << 3 | _BYTES), _varint(len(body)), body)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | _DOUBLE) + struct.pack("<d", float(value))
