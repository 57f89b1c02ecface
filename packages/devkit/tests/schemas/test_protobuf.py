"""Every field of a served kind can be read from protobuf, and no bytes make the decoder fail unexpectedly.

The test of the recordings reads the bytes of a Go client for every served kind.
"""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_devkit.schemas import protobuf, shapes
from dra_devkit.schemas.shapes import ListShape, MapShape, Shape, Struct
from tests.helpers.protobuf_wire import MALFORMED, envelope, field, varint

SERVED = sorted({(k.group, v, k.kind) for k in KINDS if not k.refused for v in k.versions})
BODIES = [
    ("", "v1", "Binding"), ("", "v1", "DeleteOptions"), ("", "v1", "Status"), ("policy", "v1", "Eviction"),
    ("autoscaling", "v1", "Scale"), ("authentication.k8s.io", "v1", "TokenRequest"),
]  # fmt: skip


def test_every_field_of_a_served_kind_has_a_number() -> None:
    without = {
        f"{shape.name}.{name}"
        for kind in [*SERVED, *BODIES]
        for shape in structs_of(kind)
        for name, field in shape.fields.items()
        if not field.wire and name not in {"apiVersion", "kind"}
    }
    # Fields of 1.37 for which the published messages have no number yet.
    newer = (
        "compatibilityGroups",
        "derivedAttributes",
        "DeviceDerivedAttribute.name",
        "DeviceDerivedAttribute.expression",
    )
    assert {w for w in without if not w.endswith(newer)} == set()


@pytest.mark.parametrize("kind", [*SERVED, *BODIES], ids="/".join)
def test_two_fields_of_a_message_have_different_numbers(kind: tuple[str, str, str]) -> None:
    """A row of the table of fields has one number for all versions, and types of v1beta1 have other numbers than those of v1."""
    for shape in structs_of(kind):
        numbers = [field.wire for field in shape.fields.values() if field.wire]
        assert len(set(numbers)) == len(numbers), shape.name


def structs_of(kind: tuple[str, str, str]) -> list[Struct]:
    """Returns all structs of a kind."""
    found: dict[str, Struct] = {}
    waiting: list[Shape | None] = [shapes.kind_shape(*kind)]
    while waiting:
        shape = waiting.pop()
        if isinstance(shape, ListShape):
            waiting.append(shape.item.shape)
        elif isinstance(shape, MapShape):
            waiting.append(shape.value.shape)
        elif isinstance(shape, Struct) and shape.name not in found:
            found[shape.name] = shape
            waiting += [f.shape for f in shape.fields.values()]
    return list(found.values())


# --- malformed bytes ----------------------------------------------------------------------------------


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


def test_the_message_of_a_pod_is_decoded_without_zero_values() -> None:
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
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "500m"}},
                }
            ],
            "terminationGracePeriodSeconds": -1,
            "hostNetwork": True,
        },
    }


def test_delete_options_may_have_the_group_of_the_object() -> None:
    body = envelope("resource.k8s.io/v1", "DeleteOptions", field(1, 5) + field(4, "Foreground"))
    expected = {"gracePeriodSeconds": 5, "propagationPolicy": "Foreground"}
    assert protobuf.decode(body) == {"apiVersion": "resource.k8s.io/v1", "kind": "DeleteOptions", **expected}


def test_an_unknown_kind_is_an_error_with_its_name() -> None:
    with pytest.raises(protobuf.UnknownKindError, match=r"example.com/v1 Foo has no protobuf message: use JSON"):
        protobuf.decode(envelope("example.com/v1", "Foo", b""))


def test_a_truncated_message_raises_a_wire_error_or_is_decoded() -> None:
    for size in range(len(POD_BODY)):
        try:
            found = protobuf.decode(POD_BODY[:size])
        except protobuf.WireError:
            continue
        assert json.dumps(found)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes_raise_a_wire_error(name: str) -> None:
    body, message = MALFORMED[name]
    with pytest.raises(protobuf.WireError, match=message):
        protobuf.decode(body)


def test_a_length_beyond_the_message_takes_no_memory() -> None:
    body = envelope("v1", "ConfigMap", varint(2 << 3 | 2) + varint(2**40))
    tracemalloc.start()
    try:
        with pytest.raises(protobuf.WireError):
            protobuf.decode(body)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.sampled_from([*SERVED, *BODIES]))
def test_any_bytes_raise_a_wire_error_or_are_decoded(data: bytes, kind: tuple[str, str, str]) -> None:
    group, version, name = kind
    for body in (data, protobuf.MAGIC + data, envelope(f"{group}/{version}" if group else version, name, data)):
        try:
            json.dumps(protobuf.decode(body))
        except protobuf.WireError as e:
            assert str(e)
