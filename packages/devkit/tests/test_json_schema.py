"""``dra schema``: for each type, the schema accepts and rejects the same values as the Config, where JSON Schema can express the rule."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from dra_devkit.json_schema import json_schema
from dra_kubeletplugin import Capacity, Config, Quantity, RequestPolicy, Version
from dra_kubeletplugin.errors import ConfigError
from tests.helpers.parameters import validate


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Inner(Config):
    size: Quantity = Quantity("1Gi")
    label: str = ""


class One(Config, tag="one"):
    size: int


class Two(Config, tag="two"):
    size: str
    unit: str = ""


class Listed(Struct, array_like=True):
    a: int
    b: str = ""


class TaggedList(Struct, array_like=True, tag="x", forbid_unknown_fields=True):
    a: int
    b: str = ""


class Open(Struct):
    a: int = 0


class Typed(TypedDict, total=False):
    a: int


@dataclasses.dataclass
class Data:
    a: int
    b: str = ""


class Pair(NamedTuple):
    a: int
    b: str = ""


SCALARS: list[Any] = [
    int, float, str, bool, None, Literal["a", 1, None], Colour, Number, Quantity, Version, bytes, uuid.UUID, datetime.date,
    datetime.datetime, datetime.time, datetime.timedelta, Any, int | str | None, float | Sequence[int], Inner | None,
    Annotated[int, Meta(ge=1, le=8)], Annotated[float, Meta(gt=0.5, lt=8)], Annotated[int, Meta(multiple_of=4)],
    Annotated[str, Meta(pattern="^a")], Annotated[str, Meta(min_length=1, max_length=3)], Annotated[datetime.datetime, Meta(tz=True)],
    Annotated[datetime.time, Meta(tz=False)],
]  # fmt: skip
LISTS: list[Any] = [
    Sequence[int], Annotated[Sequence[int], Meta(min_length=1, max_length=2)], set[int], frozenset[str], tuple[int, ...], tuple[int, bool],
    tuple[()], list, Listed, TaggedList, Pair,
]  # fmt: skip
OBJECTS: list[Any] = [
    Mapping[str, int], Annotated[Mapping[str, int], Meta(max_length=1)], Mapping[int, str], Mapping[Literal["a", "b"], int], dict,
    Mapping[Annotated[str, Meta(max_length=2)], int], Mapping[Colour, int], Mapping[datetime.date, int], Mapping[str, One], Inner, One, One | Two,
    One | None, Open, Typed, Data, Capacity, RequestPolicy,
]  # fmt: skip

TEXTS = [
    "", "a", "b", "abcd", "red", "one", "two", "x", "1", "12", "1Gi", "1.5", "+.5", "1e3", "-1Gi", "1Ki5", "1.2.3", "1.2.3-rc.1+b", "1..2", "v1.2.3",
    "01.2.3", "2020-01-01", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00", "2020-01-01 00:00:00.5+0100", "00:00:00", "00:00", "00:00:00Z",
    "P1D", "-PT1.5S", "P1DT1H", "P", "P1M", "d94f1a3e-9f3d-4b38-9b4d-0d6f7d8a7c11", "d94f1a3e9f3d4b389b4d0d6f7d8a7c11", "d94f1a3e", "YWJj", "YWI=",
    "YWJ", "NaN", "é", "\u0661",
]  # fmt: skip
# Not 1.0, which is an integer in JSON Schema. No nested null, which is an omitted field in Kubernetes.
_scalar = st.booleans() | st.integers(-3, 13) | st.sampled_from([0.5, 0.25, 1.5, 2**63, 2**64 - 1, -(2**63), *TEXTS])
_names = ["a", "b", "x", "size", "label", "type", "unit", "1", "-2", "01", "red", "2020-01-01", ""]
_list = st.lists(_scalar, max_size=3)
_object = st.dictionaries(st.sampled_from(_names), _scalar, max_size=3)
_near = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["one", "two", 1]), "size": _scalar, "unit": _scalar, "label": _scalar}
)
_amount = st.sampled_from(["1", "2Gi", 1, "x", 1.5])
_range = st.fixed_dictionaries(
    {}, optional={"min": st.just(1), "max": st.just("2"), "step": st.just(1), "other": _amount}
)
_policy = st.fixed_dictionaries(
    {}, optional={"default": st.just("1"), "validValues": st.sampled_from([[], ["1"], 0, ""]), "validRange": _range}
)
_capacity = _amount | st.fixed_dictionaries({}, optional={"value": _amount, "requestPolicy": _policy})
_nested = st.dictionaries(st.sampled_from(["a", "b"]), _near, max_size=2)
_any = st.none() | _scalar | _list | _object | _near | _nested | st.lists(_list, max_size=2)


@pytest.mark.cases(25)
@pytest.mark.parametrize("of", [*SCALARS, *LISTS, *OBJECTS], ids=repr)
def test_the_schema_and_the_config_accept_the_same_values(of: Any) -> None:
    import jsonschema  # The import takes a second, so only this test imports the module.

    kind: Any = type("Kind", (Config,), {"__annotations__": {"f": of}, "__module__": __name__})
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    probable_values = _scalar if of in SCALARS else _list if of in LISTS else _object | _near | _nested
    if of in (Capacity, RequestPolicy):
        probable_values = _capacity | _policy

    @settings(max_examples=25)
    @given(probable_values | _any)
    def agree(value: Any) -> None:
        try:
            validate({"f": value}, [kind], "d.example.com", "x")
            fault = ""
        except ConfigError as e:
            fault = e.message
        assert validator.is_valid({"f": value}) is not bool(fault), fault

    agree()


class WithInner(Config):
    KIND, API_VERSION = "WithInner", "d.example.com/v1"
    inner: Inner = Inner()


class Sized(Config):
    KIND, API_VERSION = "Sized", "d.example.com/v1"
    inner: Inner
    sizes: Annotated[list[Quantity], Meta(max_length=1)]


def test_the_schema_of_several_kinds_accepts_each_kind_and_no_mixture() -> None:
    import jsonschema

    schema = json_schema(WithInner, Sized)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    version = {"apiVersion": "d.example.com/v1"}
    assert validator.is_valid(version | {"kind": "WithInner", "inner": {"size": "2Gi"}})
    assert validator.is_valid(version | {"kind": "Sized", "inner": {}, "sizes": ["1Gi"]})
    assert not validator.is_valid(version | {"kind": "WithInner", "sizes": ["1Gi"]})
    assert not validator.is_valid(version | {"kind": "Sized", "inner": {"label": 1}})
    assert not validator.is_valid({"inner": {}}), "with several kinds, the parameters must name their kind"
