"""The decoder of kubectl's protobuf bodies accepts or rejects any bytes, also truncated and random ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.resourceapi.schemas import protobuf


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


META = field(1, field(1, "n") + field(11, field(1, "label") + field(2, "value")))

CONTAINER = (
    field(1, "c")
    + field(2, "image")
    + field(3, "sh")
    + field(3, "-c")
    + field(6, field(1, "") + field(2, 0) + field(3, 80) + field(4, "TCP"))
    + field(8, field(1, field(1, "cpu") + field(2, field(1, "500m"))))
)

VOLUME = field(1, "v") + field(2, field(2, field(1, "Memory")))

POD_SPEC = field(1, VOLUME) + field(2, CONTAINER) + field(4, 2**64 - 1) + field(11, 1)

POD_BODY = envelope("v1", "Pod", META + field(2, POD_SPEC))


def test_the_message_of_a_pod_is_decoded() -> None:
    assert protobuf.decode(POD_BODY) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "n", "labels": {"label": "value"}},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
            "containers": [
                {
                    "name": "c",
                    "image": "image",
                    "command": ["sh", "-c"],
                    "ports": [{"name": "", "hostPort": 0, "containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "500m"}},
                }
            ],
            "terminationGracePeriodSeconds": -1,
            "hostNetwork": True,
        },
    }


def test_bytes_times_and_numeric_or_named_ports_are_decoded() -> None:
    secret = envelope("v1", "Secret", META + field(2, field(1, "k") + field(2, b"\x00\xff")) + field(3, "Opaque"))
    assert protobuf.decode(secret)["data"] == {"k": "AP8="}
    lease = envelope("coordination.k8s.io/v1", "Lease", META + field(2, field(4, field(1, 60) + field(2, 5000))))
    assert protobuf.decode(lease)["spec"] == {"renewTime": "1970-01-01T00:01:00.000005Z"}
    ports = field(1, field(3, 80) + field(4, field(1, 1) + field(3, "http"))) + field(
        1, field(4, field(1, 0) + field(2, 8080))
    )
    service = protobuf.decode(envelope("v1", "Service", META + field(2, ports)))
    assert [p["targetPort"] for p in service["spec"]["ports"]] == ["http", 8080]


def test_an_unknown_kind_is_an_error_with_its_name() -> None:
    with pytest.raises(protobuf.UnknownKindError, match=r"example.com/v1 Foo .* send it as JSON"):
        protobuf.decode(envelope("example.com/v1", "Foo", b""))


def test_a_truncated_message_raises_a_wire_error_or_is_decoded() -> None:
    for size in range(len(POD_BODY)):
        try:
            found = protobuf.decode(POD_BODY[:size])
        except protobuf.WireError:
            continue
        assert json.dumps(found)


@given(st.binary(max_size=200))
def test_any_bytes_raise_a_wire_error_or_are_decoded(data: bytes) -> None:
    for body in (data, protobuf.MAGIC + data, envelope("v1", "Pod", data)):
        try:
            json.dumps(protobuf.decode(body))
        except protobuf.WireError as e:
            assert str(e)
