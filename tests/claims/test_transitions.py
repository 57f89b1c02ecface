"""Each decision for a claim, from each state of its record: what is returned, and what is written."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.holders import HeldByError
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.store.lines import PUT, Change, Line
from dra_kubeletplugin.claims.store.records import RECOVER, Records
from dra_kubeletplugin.claims.transitions import (
    AlreadyPrepared,
    InProgress,
    NothingToDo,
    Prepare,
    RollBack,
    StaleHolders,
    Transitions,
)
from dra_kubeletplugin.errors import ClaimError, HardwareUnknownError, RecordUnreadableError
from tests.helpers.crash.record_stores import BOOT, DRIVER, PoolSupply

MINE, ALIVE, DEAD = "1-mine", "2-alive", "3-dead"
NOTHING = PoolSupply()


class Process:
    id = MINE

    def __init__(self) -> None:
        self.living: list[str] = []

    def alive(self, id: str) -> bool:
        return id in {MINE, ALIVE}

    def others(self) -> list[str]:
        return self.living


def make(node: str = "", *prepares: str) -> Transitions:
    return Transitions(DRIVER, cast(Any, Process()), BOOT, lambda uid: uid in prepares, node)


def record(uid: str = "u", device: str = "d-0", state: State = State.PREPARED, owner: str = "", **more: Any) -> Record:
    doc = {"devices": [{"request": "r", "pool": "node", "device": device}], "complete": True, **more.pop("doc", {})}
    return Record(uid, "ns", "c", state, more.pop("boot", BOOT), owner, doc, **more)


def records(*rows: Record) -> Records:
    made = Records()
    for row in rows:
        made.insert(row, shared=True)
    return made


def unreadable(uid: str = "u") -> Records:
    made = Records()
    made.apply(Line(Change(PUT, uid, "ns/c", (("node", "d-0", "", "{}"),)), b"{", b""))
    return made


def begin(made: Records, found: Record | None = None, transitions: Transitions | None = None, fault: Any = None) -> Any:
    wanted = found or record(state=State.PREPARING, owner=MINE)
    return (transitions or make()).begin(made, wanted, fault, NOTHING)


def states(made: Records) -> dict[str, tuple[str, str]]:
    return {r.uid: (str(r.state), r.owner) for r in made.read_all() if isinstance(r, Record)}


UNPREPARING = {"u": ("Unpreparing", MINE)}


# --- prepare -----------------------------------------------------------------------------------------------


def test_a_new_claim_is_written_and_holds_its_devices() -> None:
    made = records(record("other", "d-1"))
    wanted = record(state=State.PREPARING, owner=MINE)
    assert begin(made, wanted) == Prepare(wanted)
    assert states(made)["u"] == ("Preparing", MINE)
    with pytest.raises(HeldByError):
        made.insert(record("thief"))


def test_a_fault_and_a_recovery_that_is_due_stop_a_new_claim_and_no_prepared_one() -> None:
    fault = ClaimError("no")
    with pytest.raises(ClaimError):
        begin(Records(), fault=fault)
    made = records(record())
    made.set_meta(RECOVER, "pending")
    assert begin(made, fault=fault) == AlreadyPrepared(made.read("u"))  # type: ignore[arg-type]
    with pytest.raises(HardwareUnknownError, match="recover"):
        begin(made, record("new", "d-1"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (record(), AlreadyPrepared),
        (record(boot="earlier"), RollBack),
        (record(device="d-9"), RollBack),
        (record(doc={"rebuilt": True, "complete": False}), RollBack),
        (record(state=State.PREPARING, owner=ALIVE), InProgress),
        (record(state=State.UNPREPARING, owner=ALIVE), InProgress),
        (record(state=State.PREPARING, owner=DEAD), RollBack),
        (record(state=State.UNPREPARING), RollBack),
        (record(state=State.PREPARING, owner=MINE), RollBack),
    ],
)
def test_a_repeated_prepare_decides_by_the_record(found: Record, expected: type) -> None:
    made = records(found)
    assert isinstance(begin(made), expected)
    if expected is RollBack:
        assert states(made) == UNPREPARING


@pytest.mark.parametrize(("name", "others", "written"), [("c", [], False), ("", [], True), ("c", [ALIVE], True)])
def test_a_repeat_completes_a_rebuilt_record_and_protects_it_from_another_instance(
    name: str, others: list[str], written: bool
) -> None:
    found = record()
    found.name = name
    found.devices[0]["request"] = ""
    made, transitions = records(found), make()
    transitions.process.living = others  # type: ignore[attr-defined]
    made.commit()
    assert isinstance(begin(made, transitions=transitions), AlreadyPrepared)
    assert bool(made.changes) is written
    row = made.read("u")
    assert isinstance(row, Record)
    assert (row.name, row.devices[0]["request"]) == (("c", "r") if written else ("c", ""))


def test_an_unreadable_record_is_an_error_with_what_to_do() -> None:
    with pytest.raises(RecordUnreadableError, match="dra claims forget u"):
        begin(unreadable())


@pytest.mark.parametrize(
    ("holder", "prepares", "stale"),
    [
        (record("h"), (), False),
        (record("h", boot="earlier"), (), True),
        (record("h", boot="earlier"), ("h",), False),
        (record("h", state=State.PREPARING, owner=DEAD), (), True),
        (record("h", state=State.UNPREPARING), (), True),
        (record("h", state=State.UNPREPARING, owner=ALIVE), (), False),
        (record("h", boot="earlier", owner=ALIVE), (), False),
    ],
)
def test_only_a_holder_that_does_not_use_its_device_is_rolled_back_for_another_claim(
    holder: Record, prepares: tuple[str, ...], stale: bool
) -> None:
    made, transitions = records(holder), make("", *prepares)
    if stale:
        decision = begin(made, transitions=transitions)
        assert isinstance(decision, StaleHolders)
        assert [h.uid for h in decision.holders] == ["h"]
        assert isinstance(transitions.free(made, "h"), RollBack)
    else:
        with pytest.raises(HeldByError):
            begin(made, transitions=transitions)
        if not prepares:
            assert isinstance(transitions.free(made, "h"), NothingToDo)
    assert "u" not in made.uids()


def test_of_several_holders_only_those_that_use_the_device_are_named() -> None:
    made = records(record("used"), record("stale", boot="earlier"))
    with pytest.raises(HeldByError) as caught:
        begin(made)
    assert [h.uid for h in caught.value.holders] == ["used"]


# --- the name of the node ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("former", "node", "rows", "after"),
    [
        (None, "n", [], "n"),
        (None, "n", [record("other", "d-1")], "n"),
        ("n", "n", [record("other", "d-1")], "n"),
        ("m", "n", [], "n"),
        ("m", "n", [record("other", "d-1")], None),
        ("m", "", [record("other", "d-1")], "m"),
        (None, "", [], ""),
    ],
)
def test_claims_of_a_node_that_got_another_name_stop_new_claims_until_they_have_ended(
    former: str | None, node: str, rows: list[Record], after: str | None
) -> None:
    made = records(*rows)
    if former is not None:
        made.set_meta("node_name", former)
    if after is None:
        with pytest.raises(HardwareUnknownError, match=r"1 claims were prepared when this node was named m.*\(other\)"):
            begin(made, transitions=make(node))
        after = former
    else:
        assert isinstance(begin(made, transitions=make(node)), Prepare)
    assert made.get_meta("node_name").get("", "") == after


# --- unprepare, rollback and reconcile ---------------------------------------------------------------------


def test_an_unprepare_decides_by_the_record_or_by_the_note() -> None:
    none = cast(Any, lambda: None)
    for found, expected in (
        (record(), RollBack),
        (record(state=State.PREPARING, owner=ALIVE), InProgress),
        (record(state=State.PREPARING, owner=DEAD), RollBack),
    ):
        assert isinstance(make().end(records(found), "u", none), expected)
    assert make().end(Records(), "u", none) == NothingToDo()
    with pytest.raises(RecordUnreadableError):
        make().end(unreadable(), "u", none)
    for made in (Records(), unreadable()):
        assert isinstance(make().end(made, "u", record), RollBack)
        assert states(made) == UNPREPARING


def test_a_claim_without_a_record_whose_device_another_claim_has_is_not_undone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = records(record("other"))
    assert make().end(made, "u", record) == NothingToDo()
    assert "its devices have another holder" in caplog.text
    assert made.uids() == {"other"}


@pytest.mark.parametrize(
    ("row", "expected", "after"),
    [
        (None, RollBack, UNPREPARING),
        (record(state=State.PREPARING, owner=MINE), RollBack, UNPREPARING),
        (record(), AlreadyPrepared, {"u": ("Prepared", "")}),
        (record(device="d-9"), InProgress, {"u": ("Prepared", "")}),
        (record(boot="earlier"), InProgress, {"u": ("Prepared", "")}),
        (record(state=State.PREPARING, owner=ALIVE), InProgress, {"u": ("Preparing", ALIVE)}),
        (record(state=State.PREPARING, owner=DEAD), InProgress, {"u": ("Preparing", DEAD)}),
    ],
)
def test_a_failed_prepare_is_rolled_back_unless_its_record_is_another_instance_s(
    row: Record | None, expected: type, after: Any
) -> None:
    made = records(*([row] if row else []))
    assert isinstance(make().fail_prepare(made, record(state=State.PREPARING, owner=MINE)), expected)
    assert states(made) == after


def test_a_failed_prepare_with_an_unreadable_record_changes_nothing() -> None:
    made = unreadable()
    assert make().fail_prepare(made, record()) == NothingToDo()
    assert made.changes == 0


@pytest.mark.parametrize(
    ("found", "tidies"),
    [
        (record(), False),
        (record(state=State.PREPARING, owner=ALIVE), False),
        (record(state=State.PREPARING, owner=DEAD), True),
        (record(state=State.PREPARING, owner=MINE), True),
        (record(state=State.UNPREPARING), True),
    ],
)
def test_unfinished_work_of_dead_processes_is_rolled_back(found: Record, tidies: bool) -> None:
    made = records(found)
    before = states(made)
    assert isinstance(make().tidy(made, "u"), RollBack if tidies else NothingToDo)
    assert states(made) == (UNPREPARING if tidies else before)
    assert make().tidy(made, "unknown") == NothingToDo()
    assert make().tidy(unreadable(), "u") == NothingToDo()


def test_a_vanished_claim_is_unprepared_only_if_its_record_is_as_it_was_seen() -> None:
    for change in ({}, {"created": 1.0}, {"updated": 1.0}, {"owner": ALIVE}, {"state": State.UNPREPARING}):
        made = records(record())
        seen = made.read("u")
        assert isinstance(seen, Record)
        for name, value in change.items():
            setattr(seen, name, value)
        assert isinstance(make().reclaim(made, seen), NothingToDo if change else RollBack), change
    assert make().reclaim(Records(), record()) == NothingToDo()
    assert make().reclaim(unreadable(), record()) == NothingToDo()
    assert make().free(unreadable(), "u") == NothingToDo()


def test_an_ended_claim_is_remembered_while_the_driver_may_still_report_it() -> None:
    made = Records()
    make().remember_end(made, "u")
    assert made.get_meta("ended:") == {}
    made.set_meta(RECOVER, "pending")
    make().remember_end(made, "u")
    assert made.get_meta("ended:") == {"u": ""}


@pytest.mark.parametrize(("owner", "other"), [("", False), (MINE, False), (ALIVE, True), (DEAD, False)])
def test_only_another_living_process_is_another_owner(owner: str, other: bool) -> None:
    assert make().has_other_owner(record(owner=owner)) is other
    assert make().readable(None) is None
    with pytest.raises(RecordUnreadableError):
        make().readable(UnreadableRecord("u", "damaged", {}))
