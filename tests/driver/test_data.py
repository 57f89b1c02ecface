"""Data of drivers is stored as plain JSON, or refused with a message."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.driver.data import MAX_DATA_BYTES, plain_json


class Colour(enum.StrEnum):
    RED = "red"


def test_data_is_copied_as_plain_json() -> None:
    assert plain_json({"colour": Colour.RED, "pair": (1, 2.5, None, True)}) == {
        "colour": "red",
        "pair": [1, 2.5, None, True],
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"b": [b"x"]}, r"data.b\[0\] is of type bytes, which JSON does not have"),
        (float("nan"), "data is nan"),
        ("\ud800", "data is not valid Unicode"),
        ({1: 2}, "data has the key 1, which is not text"),
        (2**64, "data is an integer of more than 64 bits"),
        ("x" * MAX_DATA_BYTES, "data is too large"),
    ],
)
def test_a_value_that_json_does_not_have_is_refused_with_its_path(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain_json(value)


ANY_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(max_size=3)
    | st.builds(object),
    lambda values: (
        st.lists(values, max_size=3)
        | st.tuples(values, values)
        | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=3) | st.integers(), values, max_size=3)
    ),
    max_leaves=8,
)


@given(ANY_VALUE)
def test_any_value_is_copied_or_refused_with_a_printable_error(value: Any) -> None:
    try:
        copy = plain_json(value)
    except ValueError as e:
        str(e).encode()
    else:
        assert plain_json(copy) == copy


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested deeper than 32"):
        plain_json(loop)
