"""Protobuf messages in bytes, as a client encodes them, and messages with one fault each."""

from __future__ import annotations

from dra_devkit.schemas import protobuf


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (2**64 - 1))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return (
        protobuf.MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")
    )


def nested(levels: int) -> bytes:
    """Returns a definition whose schema contains schemas of properties, each inside the other."""
    schema = b""
    for _ in range(levels):
        schema = field(29, field(1, "p") + field(2, schema))
    version = field(1, "v1") + field(4, field(1, schema))
    return envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", field(2, field(7, version)))


MALFORMED = {
    "number for a message": (envelope("v1", "Pod", field(1, 5)), "a number is where a text or a message should be"),
    "message for a number": (envelope("v1", "Pod", field(2, field(4, "x"))), "a value is where an integer should be"),
    "double for a text": (envelope("v1", "Pod", field(1, varint(1 << 3 | 1) + bytes(8))), "a number is where"),
    "fixed 32 bits": (envelope("v1", "Pod", varint(1 << 3 | 5) + bytes(4)), "wire type 5 of field 1"),
    "a group": (envelope("v1", "Pod", varint(1 << 3 | 3)), "wire type 3 of field 1"),
    "huge length": (envelope("v1", "Pod", varint(1 << 3 | 2) + varint(2**62)), "the message is cut off"),
    "endless number": (envelope("v1", "Pod", b"\xff" * 40), "a number is too long"),
    "not UTF-8": (envelope("v1", "Pod", field(1, field(1, b"\xff"))), "a string is not UTF-8"),
    "time out of range": (envelope("v1", "Pod", field(1, field(8, field(1, 2**62)))), "a time is out of range"),
    "no JSON": (
        envelope("resource.k8s.io/v1", "DeviceClass", field(2, field(2, field(1, field(1, field(1, "d") + field(2, field(1, "{"))))))),
        "an embedded object is not JSON",
    ),
    "nesting": (nested(2000), "the message is nested too deeply"),
    "no prefix": (b"{}", "does not begin with the prefix"),
}  # fmt: skip
