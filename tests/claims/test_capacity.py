"""Counters and capacity that claims consume: which supply is short, by how much, and which claims hold it."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Quantity
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.capacity import Hold, Supply, encoded, nano, read_takes, shortage, takes_json
from dra_kubeletplugin.claims.transitions import OverdrawnByError
from dra_kubeletplugin.devices.inventory import Inventory

N = 10**9


def make_supply(counters: dict[str, str] | None = None, capacity: str = "", drawn: str = "") -> Supply:
    """Returns pool p with counter set s, devices a and b with capacity m, and device b with an amount that it draws."""
    supply = Supply(Inventory("node"))
    for name in "ab":
        draws = {"s": {"c": drawn}} if drawn and name == "b" else {}
        device = Device(name, capacity={"m": capacity} if capacity else {}, consumes_counters=draws)
        supply.add("p", device, {} if counters is None else {"s": counters})
    return supply


def hold(device: str, takes: Any, uid: str = "mine", pool: str = "p", share: str = "") -> Hold:
    return Hold(pool, device, share, takes if isinstance(takes, str) else json.dumps(takes), uid)


def draws(amount: str = "1", source: str = "s", counter: str = "c") -> dict[str, Any]:
    return {"counters": {source: {counter: amount}}}


def lanes(amount: str = "1", name: str = "m") -> dict[str, Any]:
    return {"capacity": {name: amount}}


FOUR = make_supply({"c": "4"})
LANES = make_supply(capacity="4")


@pytest.mark.parametrize(
    ("requested", "held", "supply", "expected"),
    [
        # The whole supply, and one more.
        ([hold("a", draws("4")), hold("b", draws("1n"))], [], FOUR, (["a", "b"], "4000000001n", 4, 0, "", "")),
        # Holds of other claims count if they are of the same pool, counter set and counter.
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x"), hold("e", draws("0"), "y")], FOUR, (["a"], 2, 4, 3, "x", "")),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x", pool="q"), hold("c", draws("3", source="t"), "x"), hold("d", draws("3", counter="d"), "x")], FOUR, None),
        # Holds beyond the limit do not block a claim that consumes nothing.
        ([hold("a", draws("0"))], [hold("b", draws("9"), "x")], FOUR, None),
        # Shares of one device draw once.
        ([hold("a", draws("3"), share="1")], [hold("a", draws("3"), "x", share="2"), hold("b", draws("1"), "y")], FOUR, None),
        ([hold("a", draws("4"), share="1")], [hold("a", draws("3"), "x", share="2"), hold("b", draws("1"), "y")], FOUR, (["a"], 1, 4, 4, "xy", "")),
        # A device with unknown amounts draws what it would draw now, or everything if the device is unknown too.
        ([hold("a", "")], [hold("b", draws("9"), "x")], FOUR, None),
        ([hold("a", draws("1"))], [hold("e", "", "x")], FOUR, (["a"], 1, 4, 4, "x", "x")),
        ([hold("a", draws("1"))], [hold("b", "", "x")], make_supply({"c": "4"}, drawn="3"), None),
        ([hold("a", draws("2"))], [hold("b", "", "x")], make_supply({"c": "4"}, drawn="3"), (["a"], 2, 4, 3, "x", "")),
        # A counter or set that is no longer published sets no limit, and does not hide others.
        ([hold("a", draws("5"))], [], make_supply(), None),
        ([hold("a", {"counters": {"gone": {"c": "9"}, "s": {"gone": "9", "c": "4"}}})], [], FOUR, None),
        ([hold("a", {"counters": {"gone": {"c": "9"}, "s": {"gone": "9", "c": "5"}}})], [], FOUR, (["a"], 5, 4, 0, "", "")),
        ([hold("a", draws("9"), pool="q"), hold("b", draws("5"))], [], FOUR, (["b"], 5, 4, 0, "", "")),
        # Capacity: each share has its own amount of its device.
        ([hold("a", lanes("2"), share="1"), hold("b", lanes("3"), share="2")], [], LANES, None),
        ([hold("a", lanes("2"), share="1")], [hold("a", lanes("3"), "x", share="2"), hold("a", lanes("0"), "y", share="3")], LANES, (["a"], 2, 4, 3, "x", "")),
        ([hold("a", lanes("2"), share="1")], [hold("b", lanes("3"), "x", share="2"), hold("a", lanes("3"), "y", pool="q"), hold("a", lanes("3", "other"), "z", share="3")], LANES, None),
        ([hold("a", lanes("0"), share="1")], [hold("a", lanes("9"), "x", share="2")], LANES, None),
        ([hold("a", lanes("1n"), share="1")], [hold("a", lanes("4"), "x", share="2")], LANES, (["a"], "1n", 4, 4, "x", "")),
        ([hold("a", lanes("1"), share="1")], [hold("a", "", "x", share="2")], LANES, (["a"], 1, 4, 4, "x", "x")),
        ([hold("a", lanes("9"))], [], LANES, None),  # a whole device
        ([hold("gone", lanes("9"), share="1"), hold("a", {"capacity": {"gone": "9", "m": "5"}}, share="1")], [], LANES, (["a"], 5, 4, 0, "", "")),
        # A negative amount, which only a forged claim has, adds nothing for other claims.
        ([hold("a", lanes("4"), share="1")], [hold("a", lanes("4"), "x", share="2"), hold("a", lanes("-4"), "y", share="3")], LANES, (["a"], 4, 4, 4, "x", "")),
        # Counters come first.
        ([hold("a", draws("5") | lanes("5"), share="1")], [], make_supply({"c": "4"}, "3"), (["a"], 5, 4, 0, "", "")),
        ([hold("a", draws("4") | lanes("5"), share="1")], [], make_supply({"c": "4"}, "3"), (["a"], 5, 3, 0, "", "")),
    ],
)  # fmt: skip
def test_a_shortage_has_the_devices_amounts_and_holders(
    requested: list[Hold], held: list[Hold], supply: Supply, expected: tuple[Any, ...] | None
) -> None:
    found = shortage(requested, held, supply)
    if expected is None:
        assert found is None
        return
    assert found
    devices, requested_amount, limit, held_amount, holders, unknown = expected
    assert (found.devices, found.holders, found.unknown) == (devices, frozenset(holders), frozenset(unknown))
    rest = f", of which {held_amount} are held" if holders else ""
    assert found.text.startswith(f"{requested_amount} of ")
    assert found.text.endswith(f"pool p are requested and {limit} exist{rest}")


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1n", 1),
        ("-1n", -1),
        ("1.5", 3 * N // 2),
        ("1Ki", 1024 * N),
        (f"1{'0' * 80}", 10**89),
        (f"1{'0' * 81}", 10**80),
        ("1e1000", 10**80),
        ("-1E999999999", -(10**80)),
        ("1e-999999999", 1),
    ],
)
def test_amounts_are_whole_billionths(text: str, amount: int) -> None:
    assert nano(text) == amount
    with pytest.raises(ValueError):
        nano(f"{text}?")


DEEP = '{"counters":' + '{"a":' * 200_000


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{", '{"counters": 1}', '{"capacity": {"a": "x"}}', '{"capacity": {"a": 1}}', DEEP])  # fmt: skip
def test_a_malformed_amount_is_unknown(text: str) -> None:
    assert read_takes(text) is None


def test_a_share_without_capacity_differs_from_a_whole_device_and_from_unknown_amounts() -> None:
    assert (takes_json({}), takes_json({}, {})) == ({}, {"capacity": {}})
    assert (encoded({}), encoded(None), encoded([])) == ("{}", "", "")


amounts = st.integers(0, 10**30).map(lambda n: f"{n}n")


@given(limit=amounts, held=st.lists(amounts, max_size=6), requested=amounts)
def test_amounts_are_exact_at_any_size(limit: str, held: list[str], requested: str) -> None:
    """Also beyond 64 bits, and one billionth above the limit."""
    takes = [encoded(takes_json({}, {"m": Quantity(a)})) for a in [requested, *held]]
    wanted, *others = [hold("a", t, f"u{i}", share=f"s{i}") for i, t in enumerate(takes)]
    numbers = [Fraction(Quantity(a).value) for a in [requested, *held]]
    is_short = numbers[0] > 0 and sum(numbers) > Fraction(Quantity(limit).value)
    assert (shortage([wanted], others, make_supply(capacity=limit)) is not None) == is_short


@pytest.mark.parametrize("holders", [0, 1, 4, 6])
def test_a_message_has_the_amounts_in_the_published_form_and_at_most_four_holders(holders: int) -> None:
    records = [Record(f"u-{i}", "ns", f"c-{i}", State.PREPARED, "boot") for i in range(holders)]
    held = [hold(f"h-{i}", draws("1Gi"), r.uid) for i, r in enumerate(records)]
    found = shortage([hold("a", draws("7Gi"))], held, make_supply({"c": "6Gi"}))
    assert found
    start = "device a: 7Gi of counter c in counter set s of pool p are requested and 6Gi exist"
    names = [f"ns/c-{i} (UID u-{i})" for i in range(holders)]
    listed = {
        0: "",
        1: f" by claim {', '.join(names)}",
        4: f" by claims {', '.join(names)}",
        6: f" by claims {', '.join(names[:4])} and 2 more",
    }[holders]
    end = (
        f", of which {holders}Gi are held{listed}: this amount is free when their pods have stopped" if holders else ""
    )
    assert str(OverdrawnByError(found, records)) == start + end
