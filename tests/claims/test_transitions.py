"""Each decision for a claim, from each state of its record: the returned decision, and the changed records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import pytest

from dra_kubeletplugin.claims import Record, State, transitions
from dra_kubeletplugin.claims.record import encode_record
from dra_kubeletplugin.claims.store.records import RECOVER, HeldByError, Records, file_name, stored_of
from dra_kubeletplugin.claims.transitions import (
    AlreadyPrepared,
    Decision,
    InProgress,
    NothingToDo,
    Prepare,
    RollBack,
    StaleHolders,
    Transitions,
)
from dra_kubeletplugin.errors import ClaimError, HardwareUnknownError, RecordUnreadableError
from tests.helpers.crash.record_stores import BOOT, PoolSupply

THIS_PROCESS, RUNNING_PROCESS, DEAD_PROCESS = "1-mine", "2-alive", "3-dead"
NO_SUPPLY = PoolSupply()


class FakeProcess:
    id = THIS_PROCESS

    def __init__(self) -> None:
        self.other_processes: list[str] = []

    def alive(self, id: str) -> bool:
        return id in {THIS_PROCESS, RUNNING_PROCESS}

    def others(self) -> list[str]:
        return self.other_processes


def make_transitions(node: str = "", *prepares: str) -> Transitions:
    return Transitions(cast(Any, FakeProcess()), BOOT, lambda uid: uid in prepares, node)


def record(
    uid: str = "u", device: str = "d-0", state: State = State.PREPARED, owner: str = "", **fields: Any
) -> Record:
    devices = [{"request": "r", "pool": "node", "device": device}]
    return Record(uid, "ns", "c", state, fields.pop("boot", BOOT), owner, devices, **{"complete": True, **fields})


def make_records(*rows: Record) -> Records:
    all_records = Records()
    for row in rows:
        all_records.insert(row, shared=True)
    return all_records


def unreadable(uid: str = "u") -> Records:
    all_records, existing = Records(), record(uid)
    head, _, _ = encode_record(existing, existing.holds()).partition(b"\n")
    stored = stored_of(head + b"\n{\n", file_name(uid))
    assert stored
    all_records.load(stored)
    return all_records


def begin(
    all_records: Records, existing: Record | None = None, deciding: Transitions | None = None, fault: Any = None
) -> Any:
    new_record = existing or record(state=State.PREPARING, owner=THIS_PROCESS)
    return (deciding or make_transitions()).begin(all_records, new_record, fault, NO_SUPPLY)


def states(all_records: Records) -> dict[str, tuple[str, str]]:
    return {r.uid: (str(r.state), r.owner) for r in all_records.read_all() if isinstance(r, Record)}


UNPREPARING = {"u": ("Unpreparing", THIS_PROCESS)}


# --- prepare -----------------------------------------------------------------------------------------------


def test_a_new_claim_is_written_and_holds_its_devices() -> None:
    all_records = make_records(record("other", "d-1"))
    new_record = record(state=State.PREPARING, owner=THIS_PROCESS)
    assert begin(all_records, new_record) == Prepare(new_record)
    assert states(all_records)["u"] == ("Preparing", THIS_PROCESS)
    with pytest.raises(HeldByError):
        all_records.insert(record("thief"))


def test_a_fault_or_a_pending_recovery_stops_a_new_claim_but_no_prepared_one() -> None:
    fault = ClaimError("no")
    with pytest.raises(ClaimError):
        begin(Records(), fault=fault)
    all_records = make_records(record())
    all_records.set_meta(RECOVER, "pending")
    assert begin(all_records, fault=fault) == AlreadyPrepared(all_records.read("u"))  # type: ignore[arg-type]
    with pytest.raises(HardwareUnknownError, match="recover"):
        begin(all_records, record("new", "d-1"))


@pytest.mark.parametrize("existing", [record(device="d-9"), record(recovered=True, complete=False)])
def test_a_prepared_claim_is_rolled_back_if_its_devices_changed_or_its_edits_are_unknown(existing: Record) -> None:
    all_records = make_records(existing)
    assert isinstance(begin(all_records), RollBack)
    assert states(all_records) == UNPREPARING


@pytest.mark.parametrize(
    ("name", "other_processes", "is_written"), [("c", [], False), ("", [], True), ("c", [RUNNING_PROCESS], True)]
)
def test_a_repetition_completes_a_recovered_record_and_protects_it_from_another_instance(
    name: str, other_processes: list[str], is_written: bool
) -> None:
    existing = record()
    existing.name = name
    existing.devices[0]["request"] = ""
    all_records, deciding = make_records(existing), make_transitions()
    deciding.process.other_processes = other_processes  # type: ignore[attr-defined]
    all_records.commit()
    assert isinstance(begin(all_records, deciding=deciding), AlreadyPrepared)
    assert bool(all_records.changes) is is_written
    row = all_records.read("u")
    assert isinstance(row, Record)
    assert (row.name, row.devices[0]["request"]) == (("c", "r") if is_written else ("c", ""))


def test_an_unreadable_record_is_an_error_with_the_next_step() -> None:
    with pytest.raises(RecordUnreadableError, match="dra claims forget u"):
        begin(unreadable())


def test_a_stale_claim_is_not_rolled_back_for_another_claim_while_it_is_prepared_again() -> None:
    holder = record("h", boot="earlier")
    assert begin(make_records(holder)) == StaleHolders([holder])
    with pytest.raises(HeldByError):
        begin(make_records(holder), deciding=make_transitions("", "h"))
    for row, expected in ((holder, RollBack), (record("h"), NothingToDo)):
        assert isinstance(make_transitions().free(make_records(row), "h"), expected)


def test_the_error_names_only_the_holders_that_use_the_device() -> None:
    with pytest.raises(HeldByError) as caught:
        begin(make_records(record("used"), record("stale", boot="earlier")))
    assert [h.uid for h in caught.value.holders] == ["used"]


# --- the name of the node ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("former_name", "node", "rows", "expected_after"),
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
def test_claims_of_a_renamed_node_block_new_claims_until_they_have_ended(
    former_name: str | None, node: str, rows: list[Record], expected_after: str | None
) -> None:
    all_records = make_records(*rows)
    if former_name is not None:
        all_records.set_meta("node_name", former_name)
    if expected_after is None:
        with pytest.raises(HardwareUnknownError, match=r"1 claims were prepared when this node was named m.*\(other\)"):
            begin(all_records, deciding=make_transitions(node))
        expected_after = former_name
    else:
        assert isinstance(begin(all_records, deciding=make_transitions(node)), Prepare)
    assert all_records.get_meta("node_name").get("", "") == expected_after


# --- unprepare, rollback and reconcile ---------------------------------------------------------------------


def test_an_unprepare_without_a_readable_record_decides_by_the_note() -> None:
    no_note = cast(Any, lambda: None)
    assert make_transitions().end(Records(), "u", no_note) == NothingToDo()
    with pytest.raises(RecordUnreadableError):
        make_transitions().end(unreadable(), "u", no_note)
    for all_records in (Records(), unreadable()):
        assert isinstance(make_transitions().end(all_records, "u", record), RollBack)
        assert states(all_records) == UNPREPARING


def test_a_claim_without_a_record_is_not_rolled_back_if_its_device_belongs_to_another_claim(
    caplog: pytest.LogCaptureFixture,
) -> None:
    all_records = make_records(record("other"))
    assert make_transitions().end(all_records, "u", record) == NothingToDo()
    assert "its devices have another holder" in caplog.text
    assert all_records.uids() == {"other"}


@pytest.mark.parametrize(
    ("row", "expected", "expected_after"),
    [
        (None, RollBack, UNPREPARING),
        (record(state=State.PREPARING, owner=THIS_PROCESS), RollBack, UNPREPARING),
        (record(), AlreadyPrepared, {"u": ("Prepared", "")}),
        (record(device="d-9"), InProgress, {"u": ("Prepared", "")}),
        (record(boot="earlier"), InProgress, {"u": ("Prepared", "")}),
        (record(state=State.PREPARING, owner=RUNNING_PROCESS), InProgress, {"u": ("Preparing", RUNNING_PROCESS)}),
        (record(state=State.PREPARING, owner=DEAD_PROCESS), InProgress, {"u": ("Preparing", DEAD_PROCESS)}),
    ],
)
def test_a_failed_prepare_is_rolled_back_unless_its_record_belongs_to_another_instance(
    row: Record | None, expected: type, expected_after: Any
) -> None:
    all_records = make_records(*([row] if row else []))
    assert isinstance(
        make_transitions().fail_prepare(all_records, record(state=State.PREPARING, owner=THIS_PROCESS)), expected
    )
    assert states(all_records) == expected_after


def test_a_failed_prepare_with_an_unreadable_record_changes_nothing() -> None:
    all_records = unreadable()
    assert make_transitions().fail_prepare(all_records, record()) == NothingToDo()
    assert all_records.changes == 0


def test_a_vanished_claim_is_unprepared_only_if_its_record_is_unchanged() -> None:
    for change in ({}, {"created": 1.0}, {"updated": 1.0}, {"owner": RUNNING_PROCESS}, {"state": State.UNPREPARING}):
        all_records = make_records(record())
        stored = all_records.read("u")
        assert isinstance(stored, Record)
        for name, value in change.items():
            setattr(stored, name, value)
        assert isinstance(make_transitions().reclaim(all_records, stored), NothingToDo if change else RollBack), change
    assert make_transitions().reclaim(Records(), record()) == NothingToDo()
    assert make_transitions().reclaim(unreadable(), record()) == NothingToDo()
    assert make_transitions().free(unreadable(), "u") == NothingToDo()
    assert make_transitions().tidy(unreadable(), "u") == make_transitions().tidy(Records(), "u") == NothingToDo()


def test_an_ended_claim_is_remembered_while_the_driver_may_still_report_it() -> None:
    all_records = Records()
    make_transitions().remember_end(all_records, "u")
    assert all_records.get_meta("ended:") == {}
    all_records.set_meta(RECOVER, "pending")
    make_transitions().remember_end(all_records, "u")
    assert all_records.get_meta("ended:") == {"u": ""}


# --- the table in the docstring ------------------------------------------------------------------------------

OWNERS = {"none": "", "this process": THIS_PROCESS, "a living process": RUNNING_PROCESS, "a dead process": DEAD_PROCESS}
BOOTS = {"this": BOOT, "earlier": "earlier"}
HEADER = ("state", "boot", "owner", "prepare", "unprepare", "other claim wants it", "start")


def name(decide: Callable[[Records], Decision], records: Records) -> str:
    try:
        return type(decide(records)).__name__
    except HeldByError as e:
        return type(e).__name__


def decisions(state: State, owner: str, boot: str) -> tuple[str, ...]:
    """Returns the decision of each column for a record of this kind."""
    own, other = record("u", state=State.PREPARING), record("v", state=State.PREPARING)
    deciding = make_transitions()
    columns: list[Callable[[Records], Decision]] = [
        lambda records: deciding.begin(records, own, None, NO_SUPPLY),
        lambda records: deciding.end(records, "u", lambda: None),
        lambda records: deciding.begin(records, other, None, NO_SUPPLY),
        lambda records: deciding.tidy(records, "u"),
    ]
    return tuple(name(c, make_records(record("u", state=state, owner=owner, boot=boot))) for c in columns)


def table() -> list[str]:
    owners = defaultdict[tuple[str, ...], list[str]](list)
    for state, (boot_name, boot), (owner_name, owner) in product(State, BOOTS.items(), OWNERS.items()):
        found = decisions(state, owner, boot)
        owners[str(state), boot_name, *found].append(owner_name)
    rows = [HEADER]
    for (state_name, boot_name, *found), names in owners.items():
        rows.append((state_name, boot_name, "any" if len(names) == len(OWNERS) else " or ".join(names), *found))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def test_the_table_of_decisions_is_complete_and_true() -> None:
    documented = [line.strip() for line in (transitions.__doc__ or "").splitlines()]
    wanted = table()
    start = documented.index(wanted[0]) if wanted[0] in documented else 0
    assert documented[start : start + len(wanted)] == wanted, "\n".join(["the table must be:", *wanted])
