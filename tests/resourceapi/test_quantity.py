"""Quantities are parsed, compared and stored as by the API server. The server stores published quantities unchanged."""

from __future__ import annotations

import copy
import re
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_devkit.schemas.decoding import DecodeError, decode_strictly
from dra_devkit.schemas.shapes import dra_shape
from dra_kubeletplugin import Capacity, Config, Device, Quantity, RequestPolicy, Version
from dra_kubeletplugin.errors import ConfigError
from dra_kubeletplugin.resourceapi.quantity import Format, QuantityError, parse, stored
from tests.helpers.parameters import decode

SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
NANO = Fraction(1, 10**9)
CAP = 2**63 - 1

numbers = st.from_regex(r"\A[+-]?([0-9]{1,25}(\.[0-9]{0,14})?|\.[0-9]{1,14})\Z")
suffixes = st.sampled_from([*SUFFIXES, *BINARY]) | st.integers(-30, 30).map(lambda e: f"e{e}")
texts = st.builds("{}{}".format, numbers, suffixes)


def value_of(text: str) -> Fraction:
    """Returns the value by definition, computed independently of the code under test."""
    match = re.fullmatch(r"([+-]?[0-9.]+)(.*)", text)
    assert match
    number, suffix = Fraction(Decimal(match[1])), match[2]
    if suffix in BINARY:
        number *= 1024 ** (BINARY.index(suffix) + 1)
    else:
        exponent = SUFFIXES[suffix] if suffix in SUFFIXES else int(suffix[1:])
        number *= Fraction(10) ** exponent
    steps, rest = divmod(abs(number), NANO)
    rounded = (steps + (rest > 0)) * NANO
    rounded = min(rounded, Fraction(CAP)) if suffix in BINARY else rounded
    return rounded if number > 0 else -rounded


@given(texts)
@example("1.5Gi")
@example("-9.5000000001Gi")
@example("-20Ei")
@example("1.0000000001Ki")
@example("123456789012345678901234567890.1234567891")
def test_a_quantity_is_rounded_up_to_nano_and_a_binary_one_is_limited_to_63_bits(text: str) -> None:
    assert Fraction(Quantity(text).value) == value_of(text)


@given(texts)
@example("1000E")
@example("1.500")
@example("+1")
@example("007")
def test_a_published_quantity_is_stored_unchanged(text: str) -> None:
    published = str(Quantity(text))
    assert (stored(published), str(Quantity(published)), Quantity(published)) == (published, published, Quantity(text))


@given(texts)
def test_a_stored_quantity_is_stored_unchanged_again(text: str) -> None:
    once = stored(text)
    assert stored(once) == once
    if abs(parse(text).value) < Decimal("1e21"):
        assert parse(once) == parse(text)


@pytest.mark.parametrize(
    ("text", "stored_text"),
    [
        ("1.0", "1"), (".5", "500m"), ("0.5", "500m"), ("5.", "5."), ("1e19", "10e18"), ("1000m", "1"), ("1000", "1k"), ("1024Mi", "1Gi"),
        ("8Ei", "9223372036854775807"), ("-20Ei", "-9223372036854775807"), ("1e99999999999", "10e1215752190"), ("0.0001", "100u"),
        ("1.5Gi", "1536Mi"), ("2048Ki", "2Mi"), ("-1.5", "-1500m"), ("1E", "1E"), ("1e3", "1e3"), ("1E3", "1E3"), ("100k", "100k"),
        ("9999999999999999999999", "9999999999999999999999"), ("1.441", "1.441"), ("1.000001", "1.000001"), ("+1", "+1"), ("0Ki", "0"),
        ("100e-2", "1"), ("0.9n", "1n"), ("-0.9n", "-1n"), ("0", "0"), ("-0", "0"), ("0e5", "0"), (".", "0"), ("Gi", "0"), ("1e4294967296", "1e4294967296"),
        ("512Ki", "512Ki"), ("0.5Ki", "512"), ("0.0001Ki", "102400u"), ("1000Ki", "1000Ki"), ("1025", "1025"), ("100Ti", "100Ti"), ("1000E", "1"),
    ],
)  # fmt: skip
def test_the_server_keeps_some_texts_and_rewrites_others_canonically(text: str, stored_text: str) -> None:
    assert stored(text) == stored_text


@pytest.mark.parametrize(
    "text", ["1K", "1 Gi", "1e3Ki", "NaN", "Infinity", "1_000", "\uff11", "", "1e", "0x1", "1Gii", "--1", "1..5", "1e99999999999999999999", "Pi", "e-10"]
)  # fmt: skip
def test_text_that_kubernetes_rejects_is_no_quantity(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity"):
        parse(text)


@pytest.mark.parametrize("text", [".", "+", "-", "k", "Gi", "e5"])
def test_a_suffix_without_a_number_is_zero_for_the_server_and_an_error_for_drivers(text: str) -> None:
    assert parse(text) == Quantity(0)
    with pytest.raises(QuantityError, match="write a number such as 16"):
        Quantity(text)


@pytest.mark.parametrize(
    ("text", "accepted"), [(" 1", True), ("80Gi  ", True), ("\u00a01", True), ("1 Gi", False), ("\t1", False)]
)
def test_spaces_around_a_quantity_are_ignored_and_inner_spaces_are_rejected(text: str, accepted: bool) -> None:
    server = {"driver": "d.example.com", "devices": [{"name": "d", "capacity": {"memory": {"value": text}}}]}
    if accepted:
        assert str(Quantity(text)) == text.strip()
        spec = decode_strictly({"spec": server}, dra_shape("ResourceSlice"))["spec"]
        assert spec["devices"][0]["capacity"]["memory"]["value"] == text.strip()
    else:
        with pytest.raises(QuantityError):
            Quantity(text)
        with pytest.raises(DecodeError):
            decode_strictly({"spec": server}, dra_shape("ResourceSlice"))
    with pytest.raises(QuantityError):
        parse(text)  # CEL accepts no spaces.


@pytest.mark.parametrize("value", [1.5, True, None, Decimal("NaN"), Decimal("Infinity"), b"1"])
def test_a_value_other_than_text_or_integer_is_rejected(value: object) -> None:
    with pytest.raises(TypeError, match="is not a quantity: use text such as"):
        Quantity(value)  # type: ignore[arg-type]


@given(texts, texts)
def test_quantities_are_compared_by_value(a: str, b: str) -> None:
    x, y = Quantity(a), Quantity(b)
    assert (x < y, x <= y, x == y, x > y, x >= y) == (
        value_of(a) < value_of(b), value_of(a) <= value_of(b), value_of(a) == value_of(b), value_of(a) > value_of(b), value_of(a) >= value_of(b),
    )  # fmt: skip
    assert hash(x) == hash(Quantity(str(x)))
    assert (bool(x), x != "1") == (value_of(a) != 0, True)


@given(texts, texts, st.integers(-1000, 1000))
def test_addition_and_multiplication_are_exact(a: str, b: str, times: int) -> None:
    x, y = Quantity(a), Quantity(b)
    assert Fraction((x + y).value) == value_of(a) + value_of(b)
    assert Fraction((x - y).value) == value_of(a) - value_of(b)
    assert Fraction((x * times).value) == Fraction((times * x).value) == value_of(a) * times


def test_a_sum_has_the_format_of_the_left_operand_or_of_the_right_one_if_the_left_is_zero() -> None:
    assert str(Quantity("1Gi") + Quantity("512Mi")) == "1536Mi"
    assert str(Quantity("0") + Quantity("1Ki")) == "1Ki"
    assert str(Quantity("1k") + Quantity("24")) == "1024"
    assert str(Quantity(2048, Format.BINARY) * 3) == "6Ki"
    assert str(Quantity(Decimal("0.25"))) == "250m"


def test_a_quantity_is_immutable_and_can_be_copied() -> None:
    quantity = Quantity("1.5Gi")
    for other in (copy.copy(quantity), copy.deepcopy([quantity])[0], Quantity(quantity)):
        assert (other, str(other), other.is_integer) == (quantity, "1536Mi", False)
    with pytest.raises(AttributeError, match="cannot be changed"):
        quantity.value = Decimal(1)
    with pytest.raises(AttributeError, match="cannot be changed"):
        del Version("1.2.3").major
    assert repr(quantity) == "Quantity('1536Mi')"
    assert copy.deepcopy(Version("1.2.3-rc.1+b")) == Version("1.2.3-rc.1")
    with pytest.raises(TypeError):
        assert quantity < "2Gi"  # type: ignore[operator]


@given(st.integers(-(2**70), 2**70), st.sampled_from(["", "m", "u"]))
def test_rounded_up_rounds_away_from_zero_and_is_limited_to_64_bits(number: int, suffix: str) -> None:
    value = Fraction(number) * Fraction(10) ** SUFFIXES[suffix]
    rounded = -(-abs(value) // 1) * (1 if value > 0 else -1)
    assert Quantity(f"{number}{suffix}").rounded_up == max(-CAP - 1, min(CAP, rounded))


def test_a_capacity_with_a_policy_has_the_form_of_the_api() -> None:
    ranged = RequestPolicy(default="1024Mi", min="1Gi", max="8Gi", step="1Gi")
    listed = RequestPolicy(default=10, valid_values=[10, "1000", Quantity("2k")])
    capacity = {
        "memory": Capacity("81920Mi", ranged),
        "bandwidth": Capacity("10k", policy=listed),
        "slots": Quantity(7),
        "share": "0.5",
    }
    device = Device("d", capacity=capacity, allow_multiple_allocations=True)
    span = {"min": "1Gi", "max": "8Gi", "step": "1Gi"}
    assert device.json()["capacity"] == {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validRange": span}},
        "bandwidth": {"value": "10k", "requestPolicy": {"default": "10", "validValues": ["10", "1k", "2k"]}},
        "slots": {"value": "7"},
        "share": {"value": "500m"},
    }
    assert Capacity("1Gi") == Capacity("1024Mi")
    assert hash(Capacity("1Gi", ranged)) == hash(Capacity("1024Mi", ranged))
    assert [Capacity.from_json(c.json()) for c in capacity.values() if isinstance(c, Capacity)] == [
        c for c in capacity.values() if isinstance(c, Capacity)
    ]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (RequestPolicy(default="1", min="1", valid_values=["1"]), "use one of them"),
        (RequestPolicy(default="1", max="2"), "needs min"),
        (RequestPolicy(default="1", min="1", step="0"), "greater than zero, not 0"),
        (RequestPolicy(default="1", min="1", step="-1"), "greater than zero, not -1"),
        (RequestPolicy(default="11"), None),
        (RequestPolicy(default="1", min="2"), "default is less than min: 2"),
        (RequestPolicy(default="4", min="2", max="20"), "max is larger than capacity value: 10"),
        (RequestPolicy(default="5", min="2", max="8", step="2"), "not a multiple of a given step"),
        (RequestPolicy(default="3", valid_values=["1", "2"]), "default value is not valid"),
        (RequestPolicy(default="1", valid_values=["2", "1"]), "sorted in ascending order"),
        (RequestPolicy(default="1", valid_values=["1", "1000m"]), "Duplicate value"),
        (RequestPolicy(default="250m", min="200m", step="100m"), "not a multiple of a given step"),
        (RequestPolicy(default="20u", min="10u"), "cannot be represented as a milli value"),
        (RequestPolicy(default="1", valid_values=list(range(11))), "at most 10 items"),
        (RequestPolicy(default="1 Gi"), "'1 Gi' is not a quantity"),
        (RequestPolicy(default=None), "None is not a quantity"),  # type: ignore[arg-type]
        (RequestPolicy(default="1", valid_values="12"), "valid_values is '12': use a list of amounts"),
        ({"default": "1"}, "its policy is {'default': '1'}: use a RequestPolicy"),
    ],
)  # fmt: skip
def test_an_invalid_policy_is_a_fault_of_its_device(policy: RequestPolicy, message: str | None) -> None:
    faults = shared(policy).faults()
    assert (message is None and not faults) or (message and message in faults[0])


def shared(policy: RequestPolicy) -> Device:
    return Device("d", capacity={"bandwidth": Capacity("10", policy)}, allow_multiple_allocations=True)


class Limits(Config):
    least: Version = Version("1.0.0")
    by_name: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Memory(Config):
    KIND = "Memory"
    API_VERSION = "gpu.example.com/v1"
    size: Quantity = Quantity("1Gi")
    sizes: tuple[Quantity, ...] = ()
    whole: Capacity | None = None
    policy: RequestPolicy | None = None
    limits: Limits = Limits()


def read(parameters: dict[str, object]) -> Config | None:
    return decode(parameters, [Memory], "gpu.example.com")


def test_quantities_and_versions_are_read_from_and_written_to_json_of_a_config() -> None:
    whole = {"value": "80Gi", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}
    limits = {"least": "2.0.0", "byName": {"a": 5, "b": "1.5"}}
    found = read(
        {
            "size": "2048Mi",
            "sizes": ["1", 2000],
            "whole": whole,
            "policy": {"default": "1", "validValues": ["1"]},
            "limits": limits,
        }
    )
    assert found == Memory(
        size=Quantity("2Gi"),
        sizes=(Quantity(1), Quantity("2k")),
        whole=Capacity("80Gi", RequestPolicy(default=1, min=1)),
        policy=RequestPolicy(default="1", valid_values=["1"]),
        limits=Limits(least=Version("2.0.0"), by_name={"a": Quantity(5), "b": Quantity("1500m")}),
    )
    written = found.json()
    assert (written["apiVersion"], written["kind"], written["size"]) == ("gpu.example.com/v1", "Memory", "2Gi")
    assert written["limits"] == {"least": "2.0.0", "byName": {"a": "5", "b": "1500m"}}
    assert read(written) == found
    assert read({"whole": "80Gi"}) == Memory(whole=Capacity("80Gi"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"size": "80GB"}, "parameters.size: '80GB' is not a quantity: write a number such as 16"),
        ({"size": 1.5}, "parameters.size: Expected a quantity such as `80Gi`, got 1.5"),
        ({"size": True}, "parameters.size: Expected a quantity"),
        ({"sizes": ["1", "Gi"]}, "parameters.sizes[1]: 'Gi' is not a quantity"),
        ({"limits": {"least": "v1"}}, "parameters.limits.least: 'v1' is not a version"),
        ({"limits": {"least": 1}}, "parameters.limits.least: Expected a version such as `1.2.3`, got 1"),
        ({"whole": {}}, "parameters.whole: missing required field 'value'"),
        ({"whole": {"value": "1", "policy": {}}}, "parameters.whole: unknown field 'policy'"),
        ({"policy": {"default": "1", "validRange": {"max": "1"}}}, "parameters.policy: a RequestPolicy with max or step needs min"),
        ({"policy": {"default": "1", "validValues": "1"}}, "parameters.policy: Expected `array`"),
        ({"policy": 3}, "parameters.policy: Expected `object`, got 3"),
    ],
)  # fmt: skip
def test_an_invalid_field_is_rejected_with_its_path_and_a_correction(
    parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(parameters)
    assert message in str(raised.value)


@given(st.integers(-(10**20), 10**20))
def test_an_equal_whole_number_is_equal_and_has_the_same_hash(number: int) -> None:
    quantity = Quantity(number)
    assert quantity == number == quantity
    assert quantity != number + 1
    assert hash(quantity) == hash(number)
    assert {number: "found"}[quantity] == "found"  # type: ignore[index]


def test_text_is_never_equal_because_equal_quantities_have_different_texts() -> None:
    """Otherwise `Quantity("1Gi")` would equal two different texts, which have different hashes."""
    assert Quantity("1Gi") == Quantity("1024Mi")
    assert Quantity("1Gi") != "1Gi"
    assert str(Quantity("1024Mi")) == "1Gi"
