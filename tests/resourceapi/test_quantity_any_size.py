"""Quantities of any exponent and length are parsed, compared, added and printed without expanding their digits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.scheduling import cel
from dra_devkit.scheduling.allocator import capacity
from dra_kubeletplugin import Config, Quantity
from dra_kubeletplugin.claims.capacity import nano
from dra_kubeletplugin.errors import ConfigError
from dra_kubeletplugin.resourceapi.quantity import QuantityError, QuantityRangeError, parse, stored
from tests.helpers.parameters import decode

LARGEST = "1e2147483647"
HUGE = [
    "1e999999999",
    "-1e999999999",
    LARGEST,
    "1.5e2147483647",
    "1" + "0" * 5000,
    "9" * 5000 + "e2147480000",
    "1e99999999999",
]
TINY = ["1e-999999999", "-1e-2147483648", "0." + "0" * 5000 + "1", "0e999999999"]
USUAL = ["0", "1", "-3", "1n", "0Ki", "1Ki", "7Ei", "1e5000"]
BITS = 5000  # The limit for an integer. A number of 1,000 digits has 3,322 bits.
OPERATIONS: list[Callable[[Quantity, Quantity], object]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: str(a + b),
    lambda a, b: (a < b, a <= b, a == b, a > b, a >= b),
    lambda a, b: hash(a) == hash(b),
    lambda a, b: f"{a} {b!r}",
    lambda a, b: float(a),
    lambda a, b: (bool(a), a.rounded_up, a.is_integer),
    lambda a, b: 3 * a,
    lambda a, b: json.dumps(str(a)),
]


@pytest.mark.parametrize("text", [*HUGE, *TINY, *USUAL])
def test_every_operation_with_text_that_the_api_server_accepts_is_fast(text: str) -> None:
    """Without the limit, this test does not end: ``1Ki + 1e999999999`` has a billion digits."""
    for other, operation in itertools.product([*HUGE, *TINY, *USUAL], OPERATIONS):
        operation(parse(text), parse(other))
        operation(parse(other), parse(text))
    assert len(stored(text)) < len(text) + 20


@pytest.mark.parametrize("text", [*HUGE, "-1e1000", "1e1000"])
def test_a_quantity_of_a_driver_has_at_most_a_thousand_digits(text: str) -> None:
    if parse(text).value.adjusted() < 1000:
        pytest.skip("its exponent is reduced to 32 bits")
    with pytest.raises(QuantityRangeError, match="more than 1000 digits: use a smaller quantity") as raised:
        Quantity(text)
    assert len(str(raised.value)) < 250
    with pytest.raises(QuantityRangeError):
        int(parse(text))
    with pytest.raises(OverflowError):
        int(parse(text))
    with pytest.raises(QuantityRangeError):
        Quantity(Decimal(text))


def test_the_largest_quantity_is_an_integer_of_a_thousand_digits() -> None:
    assert int(Quantity("9" * 1000)) == 10**1000 - 1
    assert int(Quantity("-1e999")) == -(10**999)


class Parameters(Config):
    memory: Quantity

    def check(self) -> None:
        if int(self.memory) - 1 > round(self.memory.value):
            raise ValueError("unreachable")


def test_parameters_with_too_many_digits_are_rejected_with_their_path() -> None:
    assert decode({"memory": "80Gi"}, [Parameters], "d.example.com") == Parameters(memory=Quantity("80Gi"))
    with pytest.raises(ConfigError, match=r"memory.*'1e999999999' has more than 1000 digits"):
        decode({"memory": "1e999999999"}, [Parameters], "d.example.com")


def test_a_capacity_request_beyond_every_device_does_not_fit() -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1500m"}}
    for available in ("80Gi", LARGEST):
        device = {"name": "d", "capacity": {"memory": {"value": available, "requestPolicy": policy}}}
        requested = {"requests": {"memory": "1e999999999"}}
        assert capacity.consumed(device, requested, fractions=True) is None
    assert not capacity.fits({"name": "d", "capacity": {"memory": {"value": "80Gi"}}}, requested)


def test_amounts_of_claims_are_limited_to_a_finite_number() -> None:
    assert nano("-1e999999999") < -(10**30) < 10**30 < nano("1e999999999")
    assert nano("1e-999999999") == 1


@pytest.mark.parametrize("other", ["1Ki", "1", "1e999999999", "-5n"])
def test_cel_expressions_compute_with_very_large_quantities(other: str) -> None:
    device = cel.Device("d.example.com", {"name": "d", "capacity": {"memory": {"value": "1e999999999"}}})
    memory = 'device.capacity["d.example.com"].memory'
    small = f'quantity("{other}")'
    assert cel.Selector(f"{small}.add({memory}).sub({memory}).compareTo({memory}) <= 0").matches(device)
    assert cel.Selector(f'{memory}.compareTo(quantity("1")) > 0 && !{memory}.isInteger()').matches(device)
    assert cel.Selector(f"{memory}.asApproximateFloat() > 1e300").matches(device)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1e99999999999999999999", "unable to parse quantity's suffix"),
        ("1" * 5000 + "x", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
        ("1" * 5000 + "Kii", "unable to parse quantity's suffix"),
        ("." * 2 + "1", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
    ],
)  # fmt: skip
def test_text_that_the_api_server_rejects_is_rejected_with_the_same_message(text: str, reason: str) -> None:
    with pytest.raises(QuantityError) as raised:
        parse(text)
    assert raised.value.reason == reason
    assert len(str(raised.value)) < 300


mantissas = st.from_regex(r"\A[+-]?[0-9]{1,30}(\.[0-9]{0,12})?\Z")
exponents = st.integers(-(2**31) + 100, 2**31 - 100) | st.integers(-1100, 1100)


@given(mantissas, exponents, mantissas, exponents)
def test_quantities_of_any_exponent_stay_small_in_memory_and_compare_correctly(a: str, e: int, b: str, f: int) -> None:
    x, y = parse(f"{a}e{e}"), parse(f"{b}e{f}")
    for found in (x, y, x + y, x - y, 7 * x):
        digits = found.value.as_tuple().digits
        assert len(digits) <= 130
        assert len(str(found)) <= 150
        try:
            assert abs(int(found)).bit_length() <= BITS
        except QuantityRangeError:
            assert found.value.adjusted() >= 1000
    if (
        max(x.value.adjusted(), y.value.adjusted()) < 1000
    ):  # The model expands all digits, so it is used only for small exponents.
        assert (x < y) == (Fraction(x.value) < Fraction(y.value))
    assert (x < y, x == y, x > y) == _compare(x.value, y.value)


def _compare(a: Decimal, b: Decimal) -> tuple[bool, bool, bool]:
    """Compares by sign, then magnitude, then digits, without expanding a number."""

    def key(value: Decimal) -> tuple[Any, ...]:
        sign, digits, _ = value.as_tuple()
        if not value:
            return (0,)
        size = (value.adjusted(), "".join(map(str, digits)).rstrip("0"))
        return (-1, -size[0], [-int(d) for d in size[1]] + [1]) if sign else (1, size[0], [int(d) for d in size[1]])

    x, y = key(a), key(b)
    return x < y, x == y, x > y
