"""Partitions of one physical device and shares of one device never have more together than there is, and are never refused
when they fit: the guard against a model of its own, in any order, with dead processes, legacy holds and changing stock."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_kubeletplugin import Device, Quantity
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.capacity import Hold, draws_of, read_takes, shortage, takes_json
from dra_kubeletplugin.claims.holders import OverdrawnByError
from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.claims.transitions import AlreadyPrepared, Prepare, RollBack, StaleHolders, Transitions
from dra_kubeletplugin.errors import DeviceHeldError, OverdrawnError
from tests.helpers.crash.record_stores import BOOT, DRIVER, PoolSupply, memory_database

pytestmark = pytest.mark.gates("DRAPartitionableDevices", "DRAConsumableCapacity")

UNITS = {"memory": "10Gi", "engines": "1"}
SIZES = {"a": (1, 0), "b": (2, 1), "c": (3, 2), "d": (4, 4), "whole": (7, 7)}  # memory in tens of Gi, engines
SHARES = ("0", "500m", "1", "2500m", "7")


def partition(name: str, card: str, memory: int, engines: int) -> Device:
    return Device(
        name, consumes_counters={card: {"memory": f"{10 * memory}Gi", "engines": str(engines)}}, allow_multiple_allocations=name.endswith("shared")
    )  # fmt: skip


PARTITIONS = [partition(f"{card}-{size}", card, *amounts) for card in ("x", "y") for size, amounts in SIZES.items()]
LINES = [Device(f"line-{i}", capacity={"lanes": "8"}, allow_multiple_allocations=True) for i in range(2)]
DEVICES = {d.name: d for d in [*PARTITIONS, *LINES, partition("x-shared", "x", 2, 1), Device("plain")]}


def stock(memory: int, engines: int, lanes: int) -> PoolSupply:
    cards = {card: {"memory": f"{10 * memory}Gi", "engines": str(engines)} for card in ("x", "y")}
    lines = {d.name: Device(d.name, capacity={"lanes": str(lanes)}, allow_multiple_allocations=True) for d in LINES}
    return PoolSupply([*(DEVICES | lines).values()], cards)


def entry(name: str, share: str = "", lanes: str = "", **more: Any) -> dict[str, Any]:
    device = DEVICES[name]
    consumed = {"lanes": Quantity(lanes)} if lanes else {}
    out = {
        "request": "r",
        "pool": "node",
        "device": name,
        "takes": takes_json(draws_of(device), consumed if share else None),
        **more,
    }
    return out | ({"shareID": share} if share else {})


wishes = st.one_of(
    st.builds(entry, st.sampled_from([d.name for d in PARTITIONS] + ["plain"])),
    st.builds(entry, st.sampled_from([d.name for d in LINES]), st.sampled_from("stuv"), st.sampled_from(SHARES)),
    st.builds(entry, st.just("x-shared"), st.sampled_from("stuv")),
    st.builds(entry, st.sampled_from([d.name for d in PARTITIONS]), adminAccess=st.just(True)),
)


class Guard(RuleBasedStateMachine):
    """Two instances, each with its own view of what there is; the model keeps its own books, in fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = memory_database()
        self.numbers = itertools.count()
        self.claims: dict[str, list[dict[str, Any]]] = {}  # what holds something, by UID
        self.stocks = [stock(7, 7, 8), stock(7, 7, 8)]
        self.same = True
        self.judges = [self.judge() for _ in self.stocks]

    def teardown(self) -> None:
        for judge in self.judges:
            judge.process.release()
        self.folder.cleanup()

    def judge(self) -> Transitions:
        process = InstanceLock(Path(self.folder.name))
        process.acquire()
        return Transitions(DRIVER, process, BOOT, lambda uid: False)

    # --- the model's books ----------------------------------------------------------------------

    def drawn(self, claims: dict[str, list[dict[str, Any]]], what: tuple[str, str, str]) -> dict[str, Fraction]:
        """Who has how much of (counters, set, counter) or (capacity, device, name): by device, or by share."""
        kind, where, name = what
        out: dict[str, Fraction] = {}
        for uid, devices in claims.items():
            for d in devices:
                takes = d.get("takes")
                if d.get("adminAccess"):
                    continue
                if kind == "counters":
                    if takes is None:
                        takes = takes_json(draws_of(DEVICES[d["device"]]))
                    amount = takes.get("counters", {}).get(where, {}).get(name, "0")
                    out[d["device"]] = number(amount)
                elif d["device"] == where:
                    out[f"{uid} {d.get('shareID')}"] = (
                        self.limit(0, what) if takes is None else number(takes.get("capacity", {}).get(name, "0"))
                    )
        return out

    def limit(self, which: int, what: tuple[str, str, str]) -> Fraction:
        kind, where, name = what
        found = self.stocks[which]
        if kind == "counters":
            return number(found.counter_sets[where][name])
        return number(found.devices[where].json()["capacity"][name]["value"])

    @property
    def kinds(self) -> list[tuple[str, str, str]]:
        counters = [("counters", card, name) for card in ("x", "y") for name in UNITS]
        return counters + [("capacity", d.name, "lanes") for d in LINES]

    def fits(self, which: int, wanted: list[dict[str, Any]], claims: dict[str, list[dict[str, Any]]]) -> bool:
        for what in self.kinds:
            before = sum(self.drawn(claims, what).values())
            after = sum(self.drawn({**claims, "new": wanted}, what).values())
            if after > before and after > self.limit(which, what):
                return False
        return True

    def is_free(self, wanted: list[dict[str, Any]]) -> bool:
        held = [d for devices in self.claims.values() for d in devices if not d.get("adminAccess")]
        return not any(
            w["device"] == h["device"] and (not w.get("shareID") or w.get("shareID") in {"", None, h.get("shareID")} or not h.get("shareID"))
            for w in wanted if not w.get("adminAccess") for h in held
        )  # fmt: skip

    # --- rules ----------------------------------------------------------------------------------

    @rule(wanted=st.lists(wishes, min_size=1, max_size=2, unique_by=lambda d: d["device"]), which=st.integers(0, 1))
    def prepare(self, wanted: list[dict[str, Any]], which: int) -> None:
        uid = f"uid-{next(self.numbers)}"
        judge = self.judges[which]
        while True:
            record = Record(uid, "ns", f"name-{uid}", State.PREPARING, BOOT, judge.process.id, {"devices": wanted})
            try:
                verdict = judge.begin(self.db, record, None, self.stocks[which])
            except OverdrawnError as e:
                assert self.is_free(wanted)
                assert not self.fits(which, wanted, self.claims)
                assert isinstance(e, OverdrawnByError)
                # Who is named holds some of it, and without those it would fit.
                named = {r.uid for r in e.holders}
                rest = {u: c for u, c in self.claims.items() if u not in named}
                alone = rest if named else {}
                assert bool(named) != (not self.fits(which, wanted, {})) or not self.fits(which, wanted, alone)
                assert all(f"ns/name-{u}" in str(e) for u in sorted(named)[:4])
                return
            except DeviceHeldError:
                assert not self.is_free(wanted)
                return
            if isinstance(verdict, StaleHolders):
                for holder in verdict.holders:
                    assert holder.uid in self.claims
                    assert isinstance(judge.free(self.db, holder.uid), RollBack)
                    self.end(holder.uid)
                continue
            assert isinstance(verdict, Prepare)
            break
        assert self.is_free(wanted)
        assert self.fits(which, wanted, self.claims)
        self.claims[uid] = wanted

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def committed(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.claims)))
        row = self.db.read(uid)
        assert isinstance(row, Record)
        fence = row.fence
        row.state, row.owner = State.PREPARED, ""
        assert self.db.update(row, fence)
        # A repetition is answered whatever there is now.
        again = Record(uid, "ns", row.name, State.PREPARING, BOOT, self.judges[0].process.id, {"devices": row.devices})
        assert isinstance(self.judges[0].begin(self.db, again, None, stock(0, 0, 0)), AlreadyPrepared)

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def unprepared(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.claims))))

    def end(self, uid: str) -> None:
        self.db.forget(uid)
        del self.claims[uid]

    @rule(which=st.integers(0, 1))
    def killed(self, which: int) -> None:
        self.judges[which].process.release()
        self.judges[which] = self.judge()

    @rule(which=st.integers(0, 1), memory=st.integers(3, 9), engines=st.integers(3, 9), lanes=st.integers(3, 9))
    def the_driver_says_otherwise(self, which: int, memory: int, engines: int, lanes: int) -> None:
        self.stocks[which] = stock(memory, engines, lanes)
        self.same = False

    @rule(device=st.sampled_from([d.name for d in PARTITIONS]))
    def held_by_a_version_that_kept_no_amounts(self, device: str) -> None:
        wanted = [{"request": "r", "pool": "node", "device": device}]
        if self.is_free(wanted) and self.fits(0, [entry(device)], self.claims):
            uid = f"old-{next(self.numbers)}"
            self.db.insert(Record(uid, "ns", f"name-{uid}", State.PREPARED, BOOT, "", {"devices": wanted}))
            self.claims[uid] = wanted

    @invariant()
    def nothing_is_overdrawn(self) -> None:
        if self.same:
            for what in self.kinds:
                assert sum(self.drawn(self.claims, what).values()) <= self.limit(0, what)

    @invariant()
    def every_hold_is_known(self) -> None:
        assert self.db.uids() == set(self.claims)


def number(text: str) -> Fraction:
    return Fraction(Quantity(text).value)


Guard.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_guard_against_a_model = Guard.TestCase


class LongGuard(Guard):
    """The same with more examples."""


LongGuard.TestCase.settings = settings(Guard.TestCase.settings, max_examples=110)
test_the_guard_against_a_model_in_more_examples = pytest.mark.full(LongGuard.TestCase)


@contextlib.contextmanager
def guard(tmp_path: Path) -> Iterator[tuple[Any, Transitions]]:
    process = InstanceLock(tmp_path / "processes")
    process.acquire()
    yield memory_database(), Transitions(DRIVER, process, BOOT, lambda uid: False)
    process.release()


def claim(uid: str, *devices: dict[str, Any], state: State = State.PREPARED) -> Record:
    return Record(uid, "ns", f"name-{uid}", state, BOOT, "", {"devices": list(devices)})


def test_a_refusal_reports_which_counter_how_much_and_who_holds_it(tmp_path: Path) -> None:
    with guard(tmp_path) as (records, judge):
        records.insert(claim("one", entry("x-d")))
        records.insert(claim("two", entry("x-b")))
        records.insert(claim("other card", entry("y-d")))
        with pytest.raises(OverdrawnError) as e:
            judge.begin(records, claim("new", entry("x-c")), None, stock(7, 7, 8))
        assert str(e.value) == (
            "device x-c: 30Gi of counter memory in counter set x of pool node are requested and 70Gi exist, of which 60Gi are "
            "held by claims ns/name-one (UID one), ns/name-two (UID two): this amount is free when their pods have stopped"
        )
        assert records.read("new") is None


def test_a_refused_share_reports_which_capacity_how_much_and_who_holds_it(tmp_path: Path) -> None:
    with guard(tmp_path) as (records, judge):
        records.insert(claim("one", entry("line-0", "s", "2500m")))
        with pytest.raises(OverdrawnError) as e:
            judge.begin(records, claim("new", entry("line-0", "t", "7")), None, stock(7, 7, 8))
        assert str(e.value) == (
            "device line-0: 7 of capacity lanes of device line-0 in pool node are requested and 8 exist, of which 2500m are held "
            "by claim ns/name-one (UID one): this amount is free when their pods have stopped"
        )


def test_shares_of_one_partition_draw_its_counters_once(tmp_path: Path) -> None:
    with guard(tmp_path) as (records, judge):
        for share in "stuv":
            verdict = judge.begin(records, claim(share, entry("x-shared", share)), None, stock(2, 1, 8))
            assert isinstance(verdict, Prepare)


def test_a_share_of_which_nobody_knows_what_it_takes_has_its_device_whole(tmp_path: Path) -> None:
    with guard(tmp_path) as (records, judge):
        records.insert(claim("old", {"pool": "node", "device": "line-0", "shareID": "s"}))
        with pytest.raises(OverdrawnError, match="amount unknown"):
            judge.begin(records, claim("new", entry("line-0", "t", "500m")), None, stock(7, 7, 8))
        assert isinstance(judge.begin(records, claim("else", entry("line-1", "t", "8")), None, stock(7, 7, 8)), Prepare)


def test_a_device_that_nobody_knows_any_more_draws_everything_of_its_pool(tmp_path: Path) -> None:
    with guard(tmp_path) as (records, judge):
        records.insert(claim("old", {"pool": "node", "device": "gone"}))
        with pytest.raises(OverdrawnError, match=r"ns/name-old \(UID old\) \(amount unknown\)"):
            judge.begin(records, claim("new", entry("x-a")), None, stock(7, 7, 8))
        assert isinstance(judge.begin(records, claim("plain", entry("plain")), None, stock(7, 7, 8)), Prepare)


def test_admin_access_takes_nothing_and_is_never_refused_for_what_others_hold(tmp_path: Path) -> None:
    with guard(tmp_path) as (records, judge):
        records.insert(claim("all", entry("x-whole")))
        admin = claim("admin", entry("x-a", adminAccess=True))
        assert isinstance(judge.begin(records, admin, None, stock(7, 7, 8)), Prepare)
        records.forget("all")
        assert isinstance(judge.begin(records, claim("new", entry("x-whole")), None, stock(7, 7, 8)), Prepare)


amounts = st.integers(0, 10**30).map(lambda n: f"{n}n")


@given(limit=amounts, held=st.lists(amounts, max_size=6), asked=amounts)
def test_amounts_are_exact_however_large_and_small(limit: str, held: list[str], asked: str) -> None:
    """Also beyond 64 bits, and a billionth above."""
    device = Device("d", capacity={"c": limit}, allow_multiple_allocations=True)
    takes = [takes_json({}, {"c": Quantity(a)}) for a in [asked, *held]]
    wanted, *others = [Hold("node", "d", f"s{i}", rows_text(t), f"u{i}") for i, t in enumerate(takes)]
    found = shortage([wanted], others, PoolSupply([device]))
    numbers = [Fraction(Quantity(a).value) for a in [asked, *held]]
    assert (found is not None) == (numbers[0] > 0 and sum(numbers) > Fraction(Quantity(limit).value))


def rows_text(takes: dict[str, Any]) -> str:
    return claim("u", {"pool": "node", "device": "d", "takes": takes}).holds()[0].takes


@given(text=st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.none(), st.sampled_from([
    "{}", "[]", "1", '{"counters": 1}', '{"counters": {"s": {"c": "x"}}}', '{"capacity": {"c": "1K"}}', '{"capacity": {"c": 1}}'])))  # fmt: skip
def test_a_damaged_amount_is_one_that_nobody_knows(text: object) -> None:
    found = read_takes(text)
    assert found is None or text == "{}" or isinstance(text, str)
