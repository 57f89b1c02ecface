"""Objects are decoded as a server written in Go decodes them: wrong types, unknown fields, absent fields, depth."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.schemas.decoding import DecodeError, decode, decode_strictly, empty, without_empty
from dra_devkit.schemas.shapes import dra_shape, kind_shape

SLICE = dra_shape("ResourceSlice")


def sliced(**device: Any) -> dict[str, Any]:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {"spec": {"driver": "d.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "d", **device}]}}


def test_unknown_fields_are_named_with_their_index_and_dropped() -> None:
    unknown: list[str] = []
    found = decode(sliced(colour="red"), SLICE, unknown)
    assert unknown == ["spec.devices[0].colour"]
    assert found["spec"]["devices"] == [{"name": "d"}]
    with pytest.raises(DecodeError, match=r'strict decoding error: unknown field "spec.devices\[0\].colour"'):
        decode_strictly(sliced(colour="red"), SLICE)


@pytest.mark.parametrize(("value", "message"), [
    ({"string": 1}, "cannot unmarshal number into Go struct field"),
    ({"int": "1"}, "cannot unmarshal string into Go struct field"),
    ({"bool": [True]}, "cannot unmarshal array into Go struct field"),
])  # fmt: skip
def test_a_value_of_a_wrong_type_is_an_error_in_the_words_of_go(value: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(sliced(attributes={"a": value}), SLICE, [])


def test_quantities_get_their_stored_form() -> None:
    found = decode(sliced(capacity={"memory": {"value": "1024Mi"}}), SLICE, [])
    assert found["spec"]["devices"][0]["capacity"] == {"memory": {"value": "1Gi"}}


def test_an_empty_list_in_a_pointer_field_stays_until_it_is_dropped() -> None:
    found = decode(sliced(attributes={}), SLICE, [])
    assert without_empty(found, SLICE, stored=True)["spec"]["devices"] == [{"name": "d"}]


def test_a_struct_without_fields_has_what_go_always_writes() -> None:
    pod = kind_shape("", "v1", "Pod")
    assert pod is not None
    assert empty(pod)["spec"] == {"containers": None}
    assert kind_shape("", "v1", "NoSuchKind") is None
