"""Partitions of one physical device, and shares of one device, never consume more than exists, and are never refused
when they fit.

A model with its own bookkeeping checks this in any order of steps, with dead processes, holds of earlier versions and
changing supplies.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_kubeletplugin import Device, Quantity
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.capacity import draws_of, takes_json
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.transitions import (
    AlreadyPrepared,
    OverdrawnByError,
    Prepare,
    RollBack,
    StaleHolders,
    Transitions,
)
from dra_kubeletplugin.errors import DeviceHeldError, OverdrawnError
from tests.helpers.crash.record_stores import BOOT, PoolSupply, memory_database

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


def make_supply(memory: int, engines: int, lanes: int) -> PoolSupply:
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


requested_devices = st.one_of(
    st.builds(entry, st.sampled_from([d.name for d in PARTITIONS] + ["plain"])),
    st.builds(entry, st.sampled_from([d.name for d in LINES]), st.sampled_from("stuv"), st.sampled_from(SHARES)),
    st.builds(entry, st.just("x-shared"), st.sampled_from("stuv")),
    st.builds(entry, st.sampled_from([d.name for d in PARTITIONS]), adminAccess=st.just(True)),
)


class CapacityModel(RuleBasedStateMachine):
    """Two instances, each with its own view of the supplies. The model keeps its own bookkeeping, in fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = memory_database()
        self.numbers = itertools.count()
        self.claims: dict[str, list[dict[str, Any]]] = {}  # the devices of each claim, by UID
        self.supplies = [make_supply(7, 7, 8), make_supply(7, 7, 8)]
        self.is_supply_equal = True
        self.instances = [self.make_instance() for _ in self.supplies]

    def teardown(self) -> None:
        for instance in self.instances:
            instance.process.release()
        self.folder.cleanup()

    def make_instance(self) -> Transitions:
        process = InstanceLock(Path(self.folder.name))
        process.acquire()
        return Transitions(process, BOOT, lambda uid: False)

    # --- the bookkeeping of the model -----------------------------------------------------------

    def consumed(self, claims: dict[str, list[dict[str, Any]]], supply: tuple[str, str, str]) -> dict[str, Fraction]:
        """Returns the consumed amount of (counters, set, counter) or (capacity, device, name), by device or by
        share.
        """
        kind, owner, name = supply
        out: dict[str, Fraction] = {}
        for uid, devices in claims.items():
            for d in devices:
                takes = d.get("takes") or takes_json(draws_of(DEVICES[d["device"]]))
                if d.get("adminAccess"):
                    continue
                if kind == "counters":
                    out[d["device"]] = number(takes.get("counters", {}).get(owner, {}).get(name, "0"))
                elif d["device"] == owner:
                    out[f"{uid} {d.get('shareID')}"] = number(takes.get("capacity", {}).get(name, "0"))
        return out

    def limit(self, index: int, supply: tuple[str, str, str]) -> Fraction:
        kind, owner, name = supply
        pool_supply = self.supplies[index]
        if kind == "counters":
            return number(pool_supply.counter_sets[owner][name])
        return number(pool_supply.devices[owner].json()["capacity"][name]["value"])

    @property
    def kinds(self) -> list[tuple[str, str, str]]:
        counters = [("counters", card, name) for card in ("x", "y") for name in UNITS]
        return counters + [("capacity", d.name, "lanes") for d in LINES]

    def shortages(
        self, index: int, new_devices: list[dict[str, Any]], claims: dict[str, list[dict[str, Any]]]
    ) -> set[tuple[str, str, str]]:
        """Returns the supplies that the new devices and the claims exceed together."""
        out = set()
        for supply in self.kinds:
            consumed_before = sum(self.consumed(claims, supply).values())
            consumed_after = sum(self.consumed({**claims, "new": new_devices}, supply).values())
            if consumed_after > consumed_before and consumed_after > self.limit(index, supply):
                out.add(supply)
        return out

    def is_stale(self, index: int, uid: str) -> bool:
        """Whether the claim was in preparation by an earlier process, or by this one, which prepares nothing in this test."""
        row = self.db.read(uid)
        assert isinstance(row, Record)
        return row.state is State.PREPARING and row.owner != self.instances[1 - index].process.id

    def is_free(self, new_devices: list[dict[str, Any]]) -> bool:
        held = [d for devices in self.claims.values() for d in devices if not d.get("adminAccess")]
        return not any(
            w["device"] == h["device"] and not (w.get("shareID") and h.get("shareID") and w["shareID"] != h["shareID"])
            for w in new_devices
            if not w.get("adminAccess")
            for h in held
        )

    # --- rules ----------------------------------------------------------------------------------

    @rule(
        new_devices=st.lists(requested_devices, min_size=1, max_size=2, unique_by=lambda d: d["device"]),
        index=st.integers(0, 1),
    )
    def prepare(self, new_devices: list[dict[str, Any]], index: int) -> None:
        uid = f"uid-{next(self.numbers)}"
        instance = self.instances[index]
        while True:
            record = Record(uid, "ns", f"name-{uid}", State.PREPARING, BOOT, instance.process.id, new_devices)
            try:
                decision = instance.begin(self.db, record, None, self.supplies[index])
            except OverdrawnError as e:
                assert self.is_free(new_devices)
                assert self.shortages(index, new_devices, self.claims)
                assert isinstance(e, OverdrawnByError)
                # The error is about one supply. The named holders have a part of it. Without them and the stale claims, which are
                # rolled back when this is enough, the supply suffices, unless the claim exceeds the whole supply.
                named = {r.uid for r in e.holders}
                others = {u: c for u, c in self.claims.items() if u not in named and not self.is_stale(index, u)}
                short = self.shortages(index, new_devices, self.claims)
                held = {u: {s for s in short if sum(self.consumed({u: self.claims[u]}, s).values())} for u in named}
                assert short & self.shortages(index, new_devices, {}) or any(
                    named and all(supply in held[u] for u in named)
                    for supply in short - self.shortages(index, new_devices, others)
                )
                assert all(f"ns/name-{u}" in str(e) for u in sorted(named)[:4])
                return
            except DeviceHeldError:
                assert not self.is_free(new_devices)
                return
            if isinstance(decision, StaleHolders):
                for holder in decision.holders:
                    assert holder.uid in self.claims
                    assert isinstance(instance.free(self.db, holder.uid), RollBack)
                    self.end(holder.uid)
                continue
            assert isinstance(decision, Prepare)
            break
        assert self.is_free(new_devices)
        assert not self.shortages(index, new_devices, self.claims)
        self.claims[uid] = new_devices

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def commit(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.claims)))
        row = self.db.read(uid)
        assert isinstance(row, Record)
        fence = row.fence
        row.state, row.owner = State.PREPARED, ""
        assert self.db.update(row, fence)
        # A repetition succeeds whatever the supply is.
        repetition = Record(uid, "ns", row.name, State.PREPARING, BOOT, self.instances[0].process.id, row.devices)
        assert isinstance(self.instances[0].begin(self.db, repetition, None, make_supply(0, 0, 0)), AlreadyPrepared)

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def unprepare(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.claims))))

    def end(self, uid: str) -> None:
        self.db.forget(uid)
        del self.claims[uid]

    @rule(index=st.integers(0, 1))
    def kill_instance(self, index: int) -> None:
        self.instances[index].process.release()
        self.instances[index] = self.make_instance()

    @rule(index=st.integers(0, 1), memory=st.integers(3, 9), engines=st.integers(3, 9), lanes=st.integers(3, 9))
    def change_supply(self, index: int, memory: int, engines: int, lanes: int) -> None:
        self.supplies[index] = make_supply(memory, engines, lanes)
        self.is_supply_equal = False

    @rule(device=st.sampled_from([d.name for d in PARTITIONS]))
    def insert_record_without_amounts(self, device: str) -> None:
        new_devices = [{"request": "r", "pool": "node", "device": device}]
        if self.is_free(new_devices) and not self.shortages(0, [entry(device)], self.claims):
            uid = f"old-{next(self.numbers)}"
            self.db.insert(Record(uid, "ns", f"name-{uid}", State.PREPARED, BOOT, "", new_devices))
            self.claims[uid] = new_devices

    @invariant()
    def check_amounts(self) -> None:
        if self.is_supply_equal:
            for supply in self.kinds:
                assert sum(self.consumed(self.claims, supply).values()) <= self.limit(0, supply)

    @invariant()
    def check_claims(self) -> None:
        assert self.db.uids() == set(self.claims)


def number(text: str) -> Fraction:
    return Fraction(Quantity(text).value)


CapacityModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_decisions_against_a_model = CapacityModel.TestCase


class LongCapacityModel(CapacityModel):
    """The same with more examples."""


LongCapacityModel.TestCase.settings = settings(CapacityModel.TestCase.settings, max_examples=110)
test_decisions_against_a_model_in_more_examples = pytest.mark.full(LongCapacityModel.TestCase)


@contextlib.contextmanager
def records_and_transitions(tmp_path: Path) -> Iterator[tuple[Any, Transitions]]:
    process = InstanceLock(tmp_path / "processes")
    process.acquire()
    yield memory_database(), Transitions(process, BOOT, lambda uid: False)
    process.release()


@pytest.mark.parametrize(
    ("old", "refused", "allowed"),
    [
        ({"device": "line-0", "shareID": "s"}, entry("line-0", "t", "500m"), entry("line-1", "t", "8")),
        ({"device": "gone"}, entry("x-a"), entry("plain")),
    ],
    ids=["a share has its whole device", "an unknown device draws everything of its pool"],
)
def test_a_record_without_amounts_counts_as_much_as_it_can_have(
    tmp_path: Path, old: dict[str, Any], refused: dict[str, Any], allowed: dict[str, Any]
) -> None:
    with records_and_transitions(tmp_path) as (records, transitions):
        records.insert(Record("old", "ns", "c", State.PREPARED, BOOT, "", [{"pool": "node", **old}]))
        wanted = [Record(uid, "ns", uid, State.PREPARING, BOOT, "", [d]) for uid, d in (("r", refused), ("a", allowed))]
        with pytest.raises(OverdrawnError, match=r"held by claim ns/c \(UID old\) \(amount unknown\)"):
            transitions.begin(records, wanted[0], None, make_supply(7, 7, 8))
        assert isinstance(transitions.begin(records, wanted[1], None, make_supply(7, 7, 8)), Prepare)
