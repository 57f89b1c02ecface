"""Counters and capacity that claims consume: which supply is short, by how much, and which claims hold it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dra_kubeletplugin import Device
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.capacity import (
    Hold,
    Shortage,
    Takes,
    decoded,
    encoded,
    nano,
    read_takes,
    shared_supplies,
    shortage,
    takes_json,
)
from dra_kubeletplugin.claims.holders import OverdrawnByError
from dra_kubeletplugin.resourceapi.quantity import Format, Quantity

N = 10**9


class FakeSupply:
    """Counter sets and capacities by pool, and the draws of known devices."""

    def __init__(
        self,
        counters: dict[tuple[str, str], dict[str, str]] | None = None,
        capacity: dict[tuple[str, str], dict[str, str]] | None = None,
        draws: dict[tuple[str, str], Any] | None = None,
    ) -> None:
        self._counters, self._capacity, self._draws = counters or {}, capacity or {}, draws or {}

    def draws(self, pool: str, name: str) -> Any:
        return self._draws.get((pool, name))

    def capacity(self, pool: str, name: str) -> Any:
        return self._capacity.get((pool, name))

    def counters(self, pool: str, counter_set: str) -> Any:
        return self._counters.get((pool, counter_set))


def hold(device: str, takes: Any, uid: str = "mine", pool: str = "p", share: str = "") -> Hold:
    return Hold(pool, device, share, takes if isinstance(takes, str) else json.dumps(takes), uid)


def draws(amount: str = "1", source: str = "s", counter: str = "c") -> dict[str, Any]:
    return {"counters": {source: {counter: amount}}}


def amount_of(amount: str = "1", source: str = "m") -> dict[str, Any]:
    return {"capacity": {source: amount}}


ONE_SET = FakeSupply({("p", "s"): {"c": "4"}})


def summary(shortage_found: Shortage | None) -> Any:
    """Returns devices, request, limit, held amount, holders, and holders with unknown amounts."""
    if shortage_found is None:
        return None
    return (
        list(shortage_found.devices),
        shortage_found.requested // N,
        shortage_found.limit // N,
        shortage_found.held // N,
        set(shortage_found.holders),
        set(shortage_found.unknown),
    )


@pytest.mark.parametrize(
    ("requested", "held", "supply", "expected"),
    [
        # The whole supply, and one more.
        ([hold("a", draws("4"))], [], ONE_SET, None),
        ([hold("a", draws("5"))], [], ONE_SET, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", draws("2")), hold("b", draws("2"))], [], ONE_SET, None),
        ([hold("a", draws("2")), hold("b", draws("3"))], [], ONE_SET, (["a", "b"], 5, 4, 0, set(), set())),
        # Holds of other claims count on every device of the same set in the same pool.
        ([hold("a", draws("2"))], [hold("b", draws("2"), "x")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x")], ONE_SET, (["a"], 2, 4, 3, {"x"}, set())),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x", pool="q")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3", source="t"), "x")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3", counter="d"), "x")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x"), hold("e", draws("0"), "y"), hold("f", draws("9", source="t"), "z")], ONE_SET, (["a"], 2, 4, 3, {"x"}, set())),
        # One billionth more.
        ([hold("a", draws("4"))], [hold("b", draws("3", counter="d"), "x")], ONE_SET, None),
        ([hold("a", draws("4")), hold("b", draws("1", counter="d"))], [], ONE_SET, None),
        ([hold("a", draws("4")), hold("b", draws("1n"))], [], ONE_SET, (["a", "b"], 4, 4, 0, set(), set())),
        # Holds beyond the limit do not block a claim that consumes nothing.
        ([hold("a", draws("0"))], [hold("b", draws("9"), "x")], ONE_SET, None),
        ([hold("a", draws("1"))], [hold("b", draws("9"), "x")], ONE_SET, (["a"], 1, 4, 9, {"x"}, set())),
        # Shares of one device draw once.
        ([hold("a", draws("3"), share="1")], [hold("a", draws("3"), "x", share="2"), hold("b", draws("1"), "y")], ONE_SET, None),
        ([hold("a", draws("4"), share="1")], [hold("a", draws("3"), "x", share="2"), hold("b", draws("1"), "y")], ONE_SET, (["a"], 1, 4, 4, {"x", "y"}, set())),
        ([hold("a", draws("4"), share="1"), hold("a", draws("4"), share="2")], [], ONE_SET, None),
        # Unknown amounts.
        ([hold("a", "")], [hold("b", draws("9"), "x")], ONE_SET, None),
        ([hold("a", draws("1"))], [hold("b", "", "x")], ONE_SET, (["a"], 1, 4, 4, {"x"}, {"x"})),
        ([hold("a", draws("0"))], [hold("b", "", "x")], ONE_SET, None),
        ([hold("a", draws("1"))], [hold("b", "", "x")], FakeSupply({("p", "s"): {"c": "4"}}, draws={("p", "b"): {"s": {"c": "3"}}}), None),
        ([hold("a", draws("2"))], [hold("b", "", "x")], FakeSupply({("p", "s"): {"c": "4"}}, draws={("p", "b"): {"s": {"c": "3"}}}), (["a"], 2, 4, 3, {"x"}, set())),
        ([hold("a", draws("4"))], [hold("b", "", "x")], FakeSupply({("p", "s"): {"c": "4"}}, draws={("p", "b"): {}}), None),
        ([hold("a", draws("5"))], [], FakeSupply(), None),
        ([hold("a", draws("5", counter="gone"))], [], ONE_SET, None),
        # A removed device does not hide an existing device.
        ([hold("a", {"counters": {"gone": {"c": "9"}, "s": {"gone": "9", "c": "5"}}})], [], ONE_SET, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", draws("9"), pool="q"), hold("b", draws("1"))], [], ONE_SET, None),
        ([hold("a", draws("9"), pool="q"), hold("b", draws("5"))], [], ONE_SET, (["b"], 5, 4, 0, set(), set())),
        ([hold("a", draws("3")), hold("b", draws("3", source="t"))], [], FakeSupply({("p", "s"): {"c": "4"}, ("p", "t"): {"c": "4"}}), None),
    ],
)  # fmt: skip
def test_counters(requested: list[Hold], held: list[Hold], supply: FakeSupply, expected: Any) -> None:
    assert summary(shortage(requested, held, supply)) == expected


LANES = FakeSupply(capacity={("p", "a"): {"m": "4"}, ("p", "b"): {"m": "4"}})


@pytest.mark.parametrize(
    ("requested", "held", "supply", "expected"),
    [
        ([hold("a", amount_of("4"), share="1")], [], LANES, None),
        ([hold("a", amount_of("5"), share="1")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", amount_of("2"), share="1"), hold("a", amount_of("3"), share="2")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", amount_of("2"), share="1"), hold("b", amount_of("3"), share="2")], [], LANES, None),
        ([hold("a", amount_of("2"), share="1")], [hold("a", amount_of("2"), "x", share="2")], LANES, None),
        ([hold("a", amount_of("2"), share="1")], [hold("a", amount_of("3"), "x", share="2"), hold("a", amount_of("0"), "y", share="3")], LANES, (["a"], 2, 4, 3, {"x"}, set())),
        ([hold("a", amount_of("2"), share="1")], [hold("b", amount_of("3"), "x", share="2"), hold("a", amount_of("3"), "y", pool="q")], LANES, None),
        ([hold("a", amount_of("2"), share="1")], [hold("a", amount_of("3", source="other"), "x", share="2")], LANES, None),
        ([hold("a", amount_of("0"), share="1")], [hold("a", amount_of("9"), "x", share="2")], LANES, None),
        ([hold("a", amount_of("1"), share="1")], [hold("a", "", "x", share="2")], LANES, (["a"], 1, 4, 4, {"x"}, {"x"})),
        ([hold("a", amount_of("4"), share="1")], [hold("a", amount_of("3", source="other"), "x", share="2")], LANES, None),
        ([hold("a", amount_of("4"), share="1"), hold("a", amount_of("3", source="other"), share="2")], [], LANES, None),
        ([hold("a", amount_of("1n"), share="1")], [hold("a", amount_of("4"), "x", share="2")], LANES, (["a"], 0, 4, 4, {"x"}, set())),
        # A whole device has its whole capacity: no share can have any.
        ([hold("a", amount_of("9"))], [], LANES, None),
        ([hold("a", amount_of("9"), share="1")], [], FakeSupply(), None),
        ([hold("a", amount_of("9", source="gone"), share="1")], [], LANES, None),
        ([hold("a", {"capacity": {"gone": "9", "m": "5"}}, share="1")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        ([hold("gone", amount_of("9"), share="1"), hold("a", amount_of("5"), share="1")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        # Counters come first.
        ([hold("a", draws("5") | amount_of("5"), share="1")], [], FakeSupply({("p", "s"): {"c": "4"}}, {("p", "a"): {"m": "3"}}), (["a"], 5, 4, 0, set(), set())),
        ([hold("a", draws("4") | amount_of("5"), share="1")], [], FakeSupply({("p", "s"): {"c": "4"}}, {("p", "a"): {"m": "3"}}), (["a"], 5, 3, 0, set(), set())),
    ],
)  # fmt: skip
def test_capacity(requested: list[Hold], held: list[Hold], supply: FakeSupply, expected: Any) -> None:
    assert summary(shortage(requested, held, supply)) == expected


def test_the_message_of_a_shortage_names_amounts_and_units() -> None:
    supply = FakeSupply({("p", "s"): {"c": "4Gi"}}, {("p", "a"): {"m": "1500m"}})
    shortage_found = shortage([hold("a", draws("3Gi"))], [hold("b", draws("2Gi"), "x")], supply)
    assert (
        str(shortage_found)
        == "3Gi of counter c in counter set s of pool p are requested and 4Gi exist, of which 2Gi are held"
    )
    shortage_found = shortage([hold("a", amount_of("2"), share="1")], [], supply)
    assert str(shortage_found) == "2 of capacity m of device a in pool p are requested and 1500m exist"


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1", N),
        ("1n", 1),
        ("-1n", -1),
        ("1.5", 3 * N // 2),
        ("1Ki", 1024 * N),
        (f"1{'0' * 80}", 10**89),
        (f"1{'0' * 81}", 10**80),
        (f"-1{'0' * 81}", -(10**80)),
        ("1e80", 10**89),
        ("1e1000", 10**80),
        ("-1e1000", -(10**80)),
        ("-1E999999999", -(10**80)),
        ("1e-999999999", 1),
    ],
)
def test_amounts_are_whole_billionths(text: str, amount: int) -> None:
    assert nano(text) == amount
    with pytest.raises(ValueError):
        nano(f"{text}?")


@pytest.mark.parametrize("text", ["", "[]", "7", "{", '{"counters": 1}', '{"capacity": {"a": "x"}}', None, b"{}", 7])
def test_a_malformed_amount_is_unknown(text: Any) -> None:
    assert read_takes(text) is None
    assert decoded(text) is None


def test_written_amounts_are_read_back() -> None:
    device = Device("d", consumes_counters={"s": {"c": "1Gi"}})
    takes = takes_json({"s": {"c": "1Gi"}}, {"m": Quantity("500m")})
    assert takes == {"counters": {"s": {"c": "1Gi"}}, "capacity": {"m": "500m"}}
    assert device.consumes_counters
    text = encoded(takes)
    assert decoded(text) == takes
    assert read_takes(text) == Takes({"s": {"c": 1024**3 * N}}, {"m": N // 2})
    assert takes_json({}) == {}
    assert takes_json({}, {}) == {"capacity": {}}
    assert (encoded({}), encoded(None), encoded([])) == ("{}", "", "")
    assert read_takes("{}") == Takes({}, {})
    assert decoded("{}") == {}


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ([], []),
        ([hold("a", {})], []),
        ([hold("a", "")], []),
        ([hold("a", ""), hold("b", amount_of(), share="1")], [("p", "b")]),
        ([hold("a", amount_of(), share="1"), hold("a", amount_of(), share="2"), hold("b", amount_of(), share="1")], [("p", "a"), ("p", "b")]),
        ([hold("a", amount_of(), share="1"), hold("b", draws()), hold("c", draws(), pool="q")], [("p", None), ("q", None)]),
        ([hold("a", draws() | amount_of())], [("p", None)]),
        ([hold("a", amount_of(), pool="q"), hold("b", draws())], [("q", "a"), ("p", None)]),
    ],
)  # fmt: skip
def test_only_holds_on_shared_supplies_are_checked(
    requested: list[Hold], expected: list[tuple[str, str | None]]
) -> None:
    assert shared_supplies(requested) == expected


def test_an_amount_below_zero_adds_nothing_for_other_claims() -> None:
    supply = FakeSupply(capacity={("p", "d"): {"m": "10"}})
    full = hold("d", amount_of("10"), "full", share="1")
    below = hold("d", amount_of("-10"), "below", share="2")
    requested = hold("d", amount_of("10"), share="3")
    assert shortage([requested], [full], supply) is not None
    assert shortage([requested], [full, below], supply) is not None
    assert shortage([requested, hold("d", amount_of("-10"), share="4")], [full], supply) is not None


def test_a_deeply_nested_amount_is_unknown() -> None:
    assert read_takes('{"x":' + "[" * 200_000) is None
    assert read_takes('{"counters":' + '{"a":' * 200_000) is None


@pytest.mark.parametrize(
    ("holders", "expected_holders"),
    [
        (0, None),
        (1, " by claim ns/c-0 (UID u-0): this amount"),
        (4, " by claims ns/c-0 (UID u-0), ns/c-1 (UID u-1), ns/c-2 (UID u-2), ns/c-3 (UID u-3): this amount"),
        (
            6,
            " by claims ns/c-0 (UID u-0), ns/c-1 (UID u-1), ns/c-2 (UID u-2), ns/c-3 (UID u-3) and 2 more: this amount",
        ),
    ],
)
def test_a_shortage_message_names_at_most_four_holders(holders: int, expected_holders: str | None) -> None:
    records = [Record(f"u-{i}", "ns", f"c-{i}", State.PREPARED, "boot", "", {}) for i in range(holders)]
    missing = Shortage(
        "counter c",
        ["d-0"],
        2 * N,
        N,
        N if records else 0,
        Format.DECIMAL,
        frozenset(r.uid for r in records),
        frozenset(),
    )
    message = str(OverdrawnByError(missing, records))
    assert message.startswith("device d-0: 2 of counter c are requested and 1 exist")
    if expected_holders:
        assert f"of which 1 are held{expected_holders} is free when their pods have stopped" in message
    else:
        assert message.endswith("1 exist")
