"""All faults of parameters are reported together, each with its path, in the order of the document."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Capacity, Config, Quantity
from dra_kubeletplugin.driver.config.model import MAX_FAULTS
from dra_kubeletplugin.errors import ConfigError, DriverFailedError
from tests.helpers.parameters import decode, resolve, validate

DRIVER = "acme.example.com"


class Leaf(Config):
    size: int
    unit: Literal["a", "b"] = "a"

    def check(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {self.size}: give 0 or more")


class Round(Config, tag="round"):
    radius: int


class Flat(Config, tag="flat"):
    width: int
    height: int


class Tree(Config):
    count: int
    core_mhz: int = 0
    leaf: Leaf | None = None
    leaves: Annotated[Sequence[Leaf], msgspec.Meta(min_length=1)] = ()
    named: Mapping[str, Leaf] = msgspec.field(default_factory=dict)
    deep: Mapping[str, Mapping[str, int]] = msgspec.field(default_factory=dict)
    numbers: Annotated[Mapping[int, int], msgspec.Meta(min_length=2)] | None = None
    pair: tuple[int, bool] | None = None
    form: Round | Flat | None = None
    memory: Quantity = Quantity("1Gi")
    share: Capacity | None = None

    def check(self) -> None:
        if self.count > 8:
            raise ValueError("count must be at most 8")


def faults(parameters: Any, kind: type[Config] = Tree) -> list[str]:
    try:
        validate(parameters, [kind], DRIVER, "x")
    except ConfigError as e:
        return [fault.removeprefix("x: ") for fault in e.faults]
    return []


TABLE: list[tuple[dict[str, Any], list[str]]] = [
    ({"cuont": 1, "coreMHz": 2, "memory": "80GB"}, [
        "parameters: unknown field 'cuont', did you mean 'count'?",
        "parameters: unknown field 'coreMHz', did you mean 'coreMhz'?",
        "parameters.memory: '80GB' is not a quantity: write a number such as 16, 1.5 or 80Gi",
        "parameters: missing required field 'count'",
    ]),
    ({"count": "1"}, ["parameters.count: Expected `int`, got `str`"]),
    ({"count": "1", "leaf": {"unit": "c"}, "coreMhz": None}, [
        "parameters.count: Expected `int`, got `str`",
        "parameters.leaf.unit: Invalid enum value 'c': use one of 'a', 'b'",
        "parameters.leaf: missing required field 'size'",
        "parameters.coreMhz: Expected `int`, got `null`",
    ]),
    ({"count": 1, "leaves": [{"size": "x"}, {"size": 1}, {"siz": 1}, 7]}, [
        "parameters.leaves[0].size: Expected `int`, got `str`",
        "parameters.leaves[2]: unknown field 'siz', did you mean 'size'?",
        "parameters.leaves[2]: missing required field 'size'",
        "parameters.leaves[3]: Expected `object`, got `int`",
    ]),
    ({"count": 1, "leaves": [{"size": "x"}]}, ["parameters.leaves[0].size: Expected `int`, got `str`"]),
    ({"count": 1, "leaves": []}, ["parameters.leaves: Expected `array` of length >= 1, got 0"]),
    ({"count": 1, "named": {"l": {"size": 1}, "m": {"size": "x"}, "r": {"size": "x"}}}, [
        "parameters.named[m].size: Expected `int`, got `str`",
        "parameters.named[r].size: Expected `int`, got `str`",
    ]),
    ({"count": 1, "deep": {"a": {"x": 1, "y": "z"}, "b": {"x": 1}, "c": 3, "d": {"": "z"}}}, [
        "parameters.deep[a][y]: Expected `int`, got `str`",
        "parameters.deep[c]: Expected `object`, got `int`",
        "parameters.deep[d][]: Expected `int`, got `str`",
    ]),
    ({"count": 1, "numbers": {"1": 1, "x": 1, "2": "y"}}, [
        "parameters.numbers[x]: the key: Expected `int`, got `str`",
        "parameters.numbers[2]: Expected `int`, got `str`",
    ]),
    ({"count": 1, "numbers": {"1": 1}}, ["parameters.numbers: Expected `object` of length >= 2, got 1"]),
    ({"count": 1, "pair": [1]}, ["parameters.pair: Expected `array` of length 2, got 1"]),
    ({"count": 1, "pair": ["x", True]}, ["parameters.pair[0]: Expected `int`, got `str`"]),
    ({"count": 1, "form": {"type": "square"}, "a": 1}, [
        "parameters.form.type: Invalid value 'square'",
        "parameters: unknown field 'a': there are core",
    ]),
    ({"count": 1, "form": {"type": "flat"}}, [
        "parameters.form: missing required field 'width'",
        "parameters.form: missing required field 'height'",
    ]),
    ({"count": 1, "share": {"value": "1", "policy": {}}, "leaf": []}, [
        "parameters.share: unknown field 'policy'",
        "parameters.leaf: Expected `object | null`, got `array`",
    ]),
    ({"count": 9, "leaf": {"size": -1}, "leaves": [{"size": 1}, {"size": -2}]}, [
        "parameters.leaf: size is -1: give 0 or more",  # The check of the outer object does not run, because it may rely on valid inner objects.
        "parameters.leaves[1]: size is -2: give 0 or more",
    ]),
    ({"count": 9, "leaf": {"size": 1}}, ["parameters: count must be at most 8"]),
    ({"a - at `$.count": 1, "count": "` - at `$.x"}, [
        "parameters: unknown field 'a - at `$.count'",
        "parameters.count: Expected `int`, got `str`",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "expected"), TABLE)
def test_exactly_the_faults_are_reported_each_with_its_path(parameters: dict[str, Any], expected: list[str]) -> None:
    before = copy.deepcopy(parameters)
    found = faults(parameters)
    assert len(found) == len(expected), found
    assert [s for s, wanted in zip(found, expected, strict=True) if not s.startswith(wanted)] == []
    assert parameters == before


VALID: dict[str, Any] = {
    "count": 1,
    "coreMhz": 5,
    "leaf": {"size": 1, "unit": "b"},
    "leaves": [{"size": 1}, {"size": 2, "unit": "a"}, {"size": 3}],
    "named": {"l": {"size": 1}, "m.n": {"size": 2}, "[...]": {"size": 3}},
    "deep": {"a": {"x": 1, 'q"[': 2}, "b": {"y": 3}},
    "form": {"type": "flat", "width": 1, "height": 2},
    "memory": "2Gi",
}


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Returns the paths of all values that are neither objects nor lists. The tests replace these values one by one."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in places(v, (*at, k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in places(v, (*at, i))]
    return [at]


PLACES = [p for p in places(VALID) if p[-1] != "type"]


def shown(at: tuple[str | int, ...]) -> str:
    mapped = {1} if at[0] == "named" else {1, 2} if at[0] == "deep" else set()
    return "parameters" + "".join(
        f"[{step}]" if i in mapped or isinstance(step, int) else f".{step}" for i, step in enumerate(at)
    )


@given(data=st.data())
def test_all_wrong_values_are_reported_in_the_order_of_the_document(data: st.DataObject) -> None:
    wrong = data.draw(st.sets(st.sampled_from(PLACES), max_size=MAX_FAULTS))
    document = copy.deepcopy(VALID)
    if data.draw(st.booleans()):
        document = dict(reversed(document.items()))
    for at in wrong:
        node: Any = document
        for step in at[:-1]:
            node = node[step]
        node[at[-1]] = data.draw(st.sampled_from([True, 1.5, [], {"x": 1}]))
    found = [sentence.partition(": ")[0] for sentence in faults(document)]
    assert found == [shown(at) for at in places_of(document) if at in wrong]


def places_of(document: dict[str, Any]) -> list[tuple[str | int, ...]]:
    """Returns the paths of the valid values in the order of the document's fields."""
    return sorted(PLACES, key=lambda at: (list(document).index(at[0]), PLACES.index(at)))


_leaf = st.none() | st.booleans() | st.integers(-2, 10) | st.sampled_from(["a", "1Gi", "round", "x"])
_names = st.sampled_from(
    ["size", "unit", "l", "1", "type", "radius", "width", "value", "policy", "a.b", "[...]", "`$.x"]
)
_value = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=8
)
_field = st.sampled_from([f.encode_name for f in msgspec.structs.fields(Tree)]) | _names


@given(fields=st.dictionaries(_field, _value), required=st.sampled_from([{}, {"count": 1}, {"count": 9}]))
def test_any_document_is_valid_or_all_its_faults_are_reported_once(
    fields: dict[str, Any], required: dict[str, Any]
) -> None:
    """Each fault is reported once. If msgspec accepts the document, only checks may report faults."""
    fields = fields | required  # msgspec accepts no document without `count`
    found = faults(fields)
    assert len(found) == len(set(found))
    try:
        msgspec.convert(fields, Tree, dec_hook=None)
        decoded = True
    except (msgspec.ValidationError, NotImplementedError):
        decoded = False
    if decoded:
        assert not [s for s in found if not s.endswith(("give 0 or more", "at most 8"))]


def test_a_message_contains_ten_faults_and_states_if_there_may_be_more() -> None:
    class Long(Config):
        values: Sequence[int] = ()

    with pytest.raises(ConfigError) as e:
        decode({"values": ["x"] * MAX_FAULTS}, [Long], DRIVER)
    assert len(e.value.faults) == e.value.message.count("Expected `int`") == MAX_FAULTS
    assert "there may be more faults" not in e.value.message
    with pytest.raises(ConfigError) as e:
        decode({"values": ["x"] * (MAX_FAULTS + 1)}, [Long], DRIVER)
    assert len(e.value.faults) == MAX_FAULTS + 1
    assert e.value.faults[-1] == "there may be more faults: validation stopped here"
    assert e.value.message.endswith("; there may be more faults: validation stopped here")
    assert "there may be more faults: validation stopped here" in e.value.event()
    with pytest.raises(ConfigError) as e:
        decode({f"{i}{'x' * 300}": 1 for i in range(9)}, [Long], DRIVER)
    assert "more [" in e.value.event()  # The event keeps this part when long names are cut.


def test_wrong_entries_of_class_and_claim_are_reported_together() -> None:
    entries = [
        {"source": s, "opaque": {"driver": DRIVER, "parameters": p}}
        for s, p in (("FromClass", {"cuont": 1}), ("FromClaim", {"count": 9}))
    ]
    with pytest.raises(ConfigError) as e:
        resolve(entries, [Tree], DRIVER, "r")
    assert [f.partition(":")[0] for f in e.value.faults] == ["config[0] (FromClass)"] * 2 + ["config[1] (FromClaim)"]


class CheckedRange(Config):
    low: int = 0
    high: int = 10

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high") if self.high >= 0 else RuntimeError("boom")


class Two(Config):
    one: CheckedRange | None = None
    two: CheckedRange | None = None
    three: int = 0


def test_a_check_of_an_object_with_substituted_defaults_is_not_reported() -> None:
    """If a field is wrong, the object is created with defaults. An error of its ``__post_init__`` is then no fault of the document."""
    assert faults({"one": {"low": 20, "high": "30"}, "two": {"low": 2, "high": 1}, "three": "x"}, Two) == [
        "parameters.one.high: Expected `int`, got `str`",
        "parameters.two: low is above high",
        "parameters.three: Expected `int`, got `str`",
    ]


def test_a_failing_check_is_reported_alone_and_does_not_hide_earlier_faults() -> None:
    with pytest.raises(DriverFailedError, match="boom"):
        validate({"one": {"low": 1, "high": -1}}, [Two], DRIVER, "x")
    assert faults({"three": "x", "one": {"low": 1, "high": -1}}, Two) == ["parameters.three: Expected `int`, got `str`"]
