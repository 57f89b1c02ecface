"""What claims take of counters and capacity: what is short, by how much, and who has it, case by case."""

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


class Stock:
    """Counter sets and capacities by pool; devices that are known draw what is given here."""

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


def draws(amount: str = "1", of: str = "s", counter: str = "c") -> dict[str, Any]:
    return {"counters": {of: {counter: amount}}}


def part(amount: str = "1", of: str = "m") -> dict[str, Any]:
    return {"capacity": {of: amount}}


ONE_SET = Stock({("p", "s"): {"c": "4"}})


def short(found: Shortage | None) -> Any:
    """What is asked, what there is, what is held, by whom, and of whom nobody knows what he has."""
    if found is None:
        return None
    return (
        list(found.devices),
        found.requested // N,
        found.limit // N,
        found.held // N,
        set(found.holders),
        set(found.unknown),
    )


@pytest.mark.parametrize(
    ("wanted", "held", "stock", "found"),
    [
        # As much as there is, and one more.
        ([hold("a", draws("4"))], [], ONE_SET, None),
        ([hold("a", draws("5"))], [], ONE_SET, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", draws("2")), hold("b", draws("2"))], [], ONE_SET, None),
        ([hold("a", draws("2")), hold("b", draws("3"))], [], ONE_SET, (["a", "b"], 5, 4, 0, set(), set())),
        # What others hold counts, wherever it is of the same set in the same pool.
        ([hold("a", draws("2"))], [hold("b", draws("2"), "x")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x")], ONE_SET, (["a"], 2, 4, 3, {"x"}, set())),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x", pool="q")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3", of="t"), "x")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3", counter="d"), "x")], ONE_SET, None),
        ([hold("a", draws("2"))], [hold("b", draws("3"), "x"), hold("e", draws("0"), "y"), hold("f", draws("9", of="t"), "z")], ONE_SET, (["a"], 2, 4, 3, {"x"}, set())),
        # To the billionth.
        ([hold("a", draws("4"))], [hold("b", draws("3", counter="d"), "x")], ONE_SET, None),
        ([hold("a", draws("4")), hold("b", draws("1", counter="d"))], [], ONE_SET, None),
        ([hold("a", draws("4")), hold("b", draws("1n"))], [], ONE_SET, (["a", "b"], 4, 4, 0, set(), set())),
        # What is held beyond the limit keeps nobody from what takes nothing.
        ([hold("a", draws("0"))], [hold("b", draws("9"), "x")], ONE_SET, None),
        ([hold("a", draws("1"))], [hold("b", draws("9"), "x")], ONE_SET, (["a"], 1, 4, 9, {"x"}, set())),
        # Shares of one device draw once.
        ([hold("a", draws("3"), share="1")], [hold("a", draws("3"), "x", share="2"), hold("b", draws("1"), "y")], ONE_SET, None),
        ([hold("a", draws("4"), share="1")], [hold("a", draws("3"), "x", share="2"), hold("b", draws("1"), "y")], ONE_SET, (["a"], 1, 4, 4, {"x", "y"}, set())),
        ([hold("a", draws("4"), share="1"), hold("a", draws("4"), share="2")], [], ONE_SET, None),
        # What is not known.
        ([hold("a", "")], [hold("b", draws("9"), "x")], ONE_SET, None),
        ([hold("a", draws("1"))], [hold("b", "", "x")], ONE_SET, (["a"], 1, 4, 4, {"x"}, {"x"})),
        ([hold("a", draws("0"))], [hold("b", "", "x")], ONE_SET, None),
        ([hold("a", draws("1"))], [hold("b", "", "x")], Stock({("p", "s"): {"c": "4"}}, draws={("p", "b"): {"s": {"c": "3"}}}), None),
        ([hold("a", draws("2"))], [hold("b", "", "x")], Stock({("p", "s"): {"c": "4"}}, draws={("p", "b"): {"s": {"c": "3"}}}), (["a"], 2, 4, 3, {"x"}, set())),
        ([hold("a", draws("4"))], [hold("b", "", "x")], Stock({("p", "s"): {"c": "4"}}, draws={("p", "b"): {}}), None),
        ([hold("a", draws("5"))], [], Stock(), None),
        ([hold("a", draws("5", counter="gone"))], [], ONE_SET, None),
        # One that is there no more hides none that is.
        ([hold("a", {"counters": {"gone": {"c": "9"}, "s": {"gone": "9", "c": "5"}}})], [], ONE_SET, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", draws("9"), pool="q"), hold("b", draws("1"))], [], ONE_SET, None),
        ([hold("a", draws("9"), pool="q"), hold("b", draws("5"))], [], ONE_SET, (["b"], 5, 4, 0, set(), set())),
        ([hold("a", draws("3")), hold("b", draws("3", of="t"))], [], Stock({("p", "s"): {"c": "4"}, ("p", "t"): {"c": "4"}}), None),
    ],
)  # fmt: skip
def test_counters(wanted: list[Hold], held: list[Hold], stock: Stock, found: Any) -> None:
    assert short(shortage(wanted, held, stock)) == found


LANES = Stock(capacity={("p", "a"): {"m": "4"}, ("p", "b"): {"m": "4"}})


@pytest.mark.parametrize(
    ("wanted", "held", "stock", "found"),
    [
        ([hold("a", part("4"), share="1")], [], LANES, None),
        ([hold("a", part("5"), share="1")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", part("2"), share="1"), hold("a", part("3"), share="2")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        ([hold("a", part("2"), share="1"), hold("b", part("3"), share="2")], [], LANES, None),
        ([hold("a", part("2"), share="1")], [hold("a", part("2"), "x", share="2")], LANES, None),
        ([hold("a", part("2"), share="1")], [hold("a", part("3"), "x", share="2"), hold("a", part("0"), "y", share="3")], LANES, (["a"], 2, 4, 3, {"x"}, set())),
        ([hold("a", part("2"), share="1")], [hold("b", part("3"), "x", share="2"), hold("a", part("3"), "y", pool="q")], LANES, None),
        ([hold("a", part("2"), share="1")], [hold("a", part("3", of="other"), "x", share="2")], LANES, None),
        ([hold("a", part("0"), share="1")], [hold("a", part("9"), "x", share="2")], LANES, None),
        ([hold("a", part("1"), share="1")], [hold("a", "", "x", share="2")], LANES, (["a"], 1, 4, 4, {"x"}, {"x"})),
        ([hold("a", part("4"), share="1")], [hold("a", part("3", of="other"), "x", share="2")], LANES, None),
        ([hold("a", part("4"), share="1"), hold("a", part("3", of="other"), share="2")], [], LANES, None),
        ([hold("a", part("1n"), share="1")], [hold("a", part("4"), "x", share="2")], LANES, (["a"], 0, 4, 4, {"x"}, set())),
        # A whole device has all of it: nobody else has any.
        ([hold("a", part("9"))], [], LANES, None),
        ([hold("a", part("9"), share="1")], [], Stock(), None),
        ([hold("a", part("9", of="gone"), share="1")], [], LANES, None),
        ([hold("a", {"capacity": {"gone": "9", "m": "5"}}, share="1")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        ([hold("gone", part("9"), share="1"), hold("a", part("5"), share="1")], [], LANES, (["a"], 5, 4, 0, set(), set())),
        # Counters come first.
        ([hold("a", draws("5") | part("5"), share="1")], [], Stock({("p", "s"): {"c": "4"}}, {("p", "a"): {"m": "3"}}), (["a"], 5, 4, 0, set(), set())),
        ([hold("a", draws("4") | part("5"), share="1")], [], Stock({("p", "s"): {"c": "4"}}, {("p", "a"): {"m": "3"}}), (["a"], 5, 3, 0, set(), set())),
    ],
)  # fmt: skip
def test_capacity(wanted: list[Hold], held: list[Hold], stock: Stock, found: Any) -> None:
    assert short(shortage(wanted, held, stock)) == found


def test_a_shortage_in_words() -> None:
    stock = Stock({("p", "s"): {"c": "4Gi"}}, {("p", "a"): {"m": "1500m"}})
    found = shortage([hold("a", draws("3Gi"))], [hold("b", draws("2Gi"), "x")], stock)
    assert (
        str(found) == "3Gi of counter c in counter set s of pool p are requested and 4Gi exist, of which 2Gi are held"
    )
    found = shortage([hold("a", part("2"), share="1")], [], stock)
    assert str(found) == "2 of capacity m of device a in pool p are requested and 1500m exist"


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


@pytest.mark.parametrize("odd", ["", "[]", "7", "{", '{"counters": 1}', '{"capacity": {"a": "x"}}', None, b"{}", 7])
def test_what_cannot_be_read_is_not_known(odd: Any) -> None:
    assert read_takes(odd) is None
    assert decoded(odd) is None


def test_what_is_written_is_what_is_read() -> None:
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
    ("wanted", "found"),
    [
        ([], []),
        ([hold("a", {})], []),
        ([hold("a", "")], []),
        ([hold("a", ""), hold("b", part(), share="1")], [("p", "b")]),
        ([hold("a", part(), share="1"), hold("a", part(), share="2"), hold("b", part(), share="1")], [("p", "a"), ("p", "b")]),
        ([hold("a", part(), share="1"), hold("b", draws()), hold("c", draws(), pool="q")], [("p", None), ("q", None)]),
        ([hold("a", draws() | part())], [("p", None)]),
        ([hold("a", part(), pool="q"), hold("b", draws())], [("q", "a"), ("p", None)]),
    ],
)  # fmt: skip
def test_where_others_holds_matter(wanted: list[Hold], found: list[tuple[str, str | None]]) -> None:
    assert shared_supplies(wanted) == found


def test_an_amount_below_zero_gives_nobody_more() -> None:
    stock = Stock(capacity={("p", "d"): {"m": "10"}})
    full = hold("d", part("10"), "full", share="1")
    below = hold("d", part("-10"), "below", share="2")
    wanted = hold("d", part("10"), share="3")
    assert shortage([wanted], [full], stock) is not None
    assert shortage([wanted], [full, below], stock) is not None
    assert shortage([wanted, hold("d", part("-10"), share="4")], [full], stock) is not None


def test_an_amount_that_is_nested_without_end_is_not_known() -> None:
    assert read_takes('{"x":' + "[" * 200_000) is None
    assert read_takes('{"counters":' + '{"a":' * 200_000) is None


@pytest.mark.parametrize(
    ("holders", "shown"),
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
def test_of_those_who_hold_what_is_missing_a_message_names_four(holders: int, shown: str | None) -> None:
    who = [Record(f"u-{i}", "ns", f"c-{i}", State.PREPARED, "boot", "", {}) for i in range(holders)]
    missing = Shortage(
        "counter c", ["d-0"], 2 * N, N, N if who else 0, Format.DECIMAL, frozenset(r.uid for r in who), frozenset()
    )
    told = str(OverdrawnByError(missing, who))
    assert told.startswith("device d-0: 2 of counter c are requested and 1 exist")
    if shown:
        assert f"of which 1 are held{shown} is free when their pods have stopped" in told
    else:
        assert told.endswith("1 exist")
