"""The protobuf form of any object of any served kind is read as the same object, and no bytes make the decoder fail unexpectedly."""

from __future__ import annotations

import base64
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_devkit.schemas import protobuf, shapes
from dra_devkit.schemas.shapes import Field, Form, ListShape, MapShape, Shape, Struct
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.protobuf_wire import MALFORMED, envelope, field, varint

SERVED = sorted({(k.group, v, k.kind) for k in KINDS if not k.refused for v in k.versions})
BODIES = [
    ("", "v1", "Binding"), ("", "v1", "DeleteOptions"), ("", "v1", "Status"), ("policy", "v1", "Eviction"),
    ("autoscaling", "v1", "Scale"), ("authentication.k8s.io", "v1", "TokenRequest"), ("", "v1", "APIVersions"),
    ("", "v1", "APIGroup"), ("", "v1", "APIGroupList"), ("", "v1", "APIResourceList"),
]  # fmt: skip
DEPTH = 8
"""Levels of optional structs in generated objects. Schemas of CustomResourceDefinitions contain schemas."""

texts = st.text(st.characters(codec="utf-8"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts, lambda v: st.dictionaries(texts, v, max_size=2)
)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
FORMS: dict[Form, st.SearchStrategy[Any]] = {
    Form.STRING: texts,
    Form.INT32: st.integers(-(2**31), 2**31 - 1),
    Form.INT64: st.integers(-(2**63), 2**63 - 1),
    Form.BOOL: st.booleans(),
    Form.NUMBER: st.floats(allow_nan=False, allow_infinity=False),
    Form.BYTES: st.binary(max_size=6).map(lambda b: base64.b64encode(b).decode()),
    Form.TIME: times.map(lambda t: t.replace(microsecond=0).isoformat().replace("+00:00", "Z")),
    Form.MICRO_TIME: times.map(lambda t: t.isoformat(timespec="microseconds").replace("+00:00", "Z")),
    Form.QUANTITY: st.sampled_from(["0", "1", "-5m", "3Gi", "1e3"]),
    Form.INT_OR_STRING: st.integers(-(2**31), 2**31 - 1) | texts,
    Form.RAW: values.filter(lambda v: v is not None),
    Form.FIELDS: st.dictionaries(texts, st.just({}), max_size=2),
}


def any_value(shape: Shape, depth: int) -> st.SearchStrategy[Any]:
    match shape:
        case ListShape():
            return st.lists(any_value(shape.item.shape, depth), min_size=1, max_size=2)
        case MapShape():
            return st.dictionaries(texts, any_value(shape.value.shape, depth), min_size=1, max_size=2)
        case Struct():
            return any_struct(shape, depth + 1)
        case Form.SCHEMA_OR_LIST | Form.SCHEMA_OR_BOOL | Form.SCHEMA_OR_STRINGS:
            schema = any_value(shapes.named(shapes.SCHEMA), depth)
            others = {
                Form.SCHEMA_OR_LIST: st.lists(schema, min_size=1, max_size=2),
                Form.SCHEMA_OR_BOOL: st.booleans(),
                Form.SCHEMA_OR_STRINGS: st.lists(texts, min_size=1, max_size=2),
            }
            return schema | others[shape]
    return FORMS[shape]


def is_lost(value: Any, field: Field) -> bool:
    """Returns whether a Go server does not distinguish the value from an absent field."""
    is_plain = field.shape in (Form.STRING, Form.INT32, Form.INT64, Form.BOOL, Form.NUMBER, Form.BYTES)
    return is_plain and not value and not field.pointer and not field.always


@st.composite
def any_struct(draw: st.DrawFn, shape: Struct, depth: int = 0) -> JSON:
    """Draws an object with some of the fields that have a number."""
    names = sorted(name for name, field in shape.fields.items() if field.wire)
    out = {}
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=4)) if names and depth < DEPTH else []
    for name in chosen:
        field = shape.fields[name]
        value = draw(any_value(field.shape, depth))
        if not is_lost(value, field):
            out[name] = value
    return out


@pytest.mark.parametrize("kind", [*SERVED, *BODIES], ids="/".join)
@given(st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_encoded_object_is_decoded_to_the_same_object(kind: tuple[str, str, str], data: st.DataObject) -> None:
    group, version, name = kind
    shape = shapes.kind_shape(*kind)
    assert shape is not None
    head = {"apiVersion": f"{group}/{version}" if group else version, "kind": name}
    obj = data.draw(any_struct(shape))
    assert protobuf.decode(protobuf.encode({**head, **obj})) == {**obj, **head}
    if kind in SERVED:
        items = {**head, "kind": f"{name}List", "metadata": {"resourceVersion": "7"}, "items": [obj, {}]}
        assert protobuf.decode(protobuf.encode(items)) == items


def test_every_field_of_a_served_kind_has_a_number() -> None:
    without = {
        f"{shape.name}.{name}"
        for kind in [*SERVED, *BODIES]
        for shape in structs_of(kind)
        for name, field in shape.fields.items()
        if not field.wire and name not in {"apiVersion", "kind"}
    }
    # Fields of 1.37 for which neither the published messages nor KEP-6080 have a number; the versions would have different ones.
    newer = (
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


def test_the_messages_inside_a_watch_event_have_a_length_and_the_prefix() -> None:
    obj = {"apiVersion": "v1", "kind": "Secret", "data": {"k": "AP8="}}
    event = protobuf.encode_event("ADDED", obj)
    assert int.from_bytes(event[:4], "big") == len(event) - 4
    assert event[4:] == field(1, "ADDED") + field(2, field(1, protobuf.encode(obj)))
    assert protobuf.decode(protobuf.encode(obj)) == obj


def test_delete_options_may_have_the_group_of_the_object() -> None:
    body = envelope("resource.k8s.io/v1", "DeleteOptions", field(1, 5) + field(4, "Foreground"))
    expected = {"gracePeriodSeconds": 5, "propagationPolicy": "Foreground"}
    assert protobuf.decode(body) == {"apiVersion": "resource.k8s.io/v1", "kind": "DeleteOptions", **expected}


def test_an_unknown_kind_is_an_error_with_its_name() -> None:
    with pytest.raises(protobuf.UnknownKindError, match=r"example.com/v1 Foo has no protobuf message: use JSON"):
        protobuf.decode(envelope("example.com/v1", "Foo", b""))


@pytest.mark.parametrize(
    "body",
    [
        POD_BODY,
        protobuf.encode(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
        ),
    ],
)
def test_a_truncated_message_raises_a_wire_error_or_is_decoded(body: bytes) -> None:
    for size in range(len(body)):
        try:
            found = protobuf.decode(body[:size])
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
