"""One odd row ends nothing: the others work, its device stays held, it is listed, and it can be forgotten."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.store import rows
from dra_kubeletplugin.claims.store.offline import forget, read_rows
from dra_kubeletplugin.claims.store.schema import make_tables
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import DeviceHeldError, DraError, printable
from tests.helpers.crash.claim_manager import Api, room
from tests.helpers.crash.record_stores import DRIVER, a_record

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

DOC = {"devices": [{"request": "r", "pool": "node", "device": "d-0"}], "complete": True}


class Plain(Driver):
    name = DRIVER

    async def devices(self) -> list[Device]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


def doc(**change: Any) -> str:
    return json.dumps(DOC | change)


ODD: dict[str, dict[str, Any]] = {
    "an unknown state": {"state": "Hibernating"},
    "a state that is a blob": {"state": b"Prepared"},
    "a document that is no JSON": {"doc": "{"},
    "a document that is no object": {"doc": "[1]"},
    "an empty document": {"doc": ""},
    "a document nested without end": {"doc": "[" * 100_000},
    "a document that is a blob": {"doc": b"\xff\xfe"},
    "a number as a document": {"doc": 7},
    "half a surrogate in the document": {"doc": '{"devices": [{"pool": "\\ud800", "device": "d-0"}]}'},
    "devices that are no list": {"doc": doc(devices={"a": 1})},
    "a device without a name": {"doc": doc(devices=[{"pool": "node"}])},
    "a device that is null": {"doc": doc(devices=[None])},
    "a share that is a list": {"doc": doc(devices=[{"pool": "p", "device": "d", "shareID": [1]}])},
    "steps that are no objects": {"doc": doc(undo=["release"])},
    "a step without data": {"doc": doc(undo=[{"step": "release"}])},
    "a CDI spec that is a list": {"doc": doc(cdi=[1])},
    "CDI devices that are numbers": {"doc": doc(cdi={"kind": "k8s.x/claim", "devices": [1]})},
    "a CDI device that is null": {"doc": doc(cdi={"kind": "k8s.x/claim", "devices": [None]})},
    "CDI edits of wrong types": {"doc": doc(cdi={"devices": [{"name": "n", "containerEdits": {"mounts": 5}}]})},
    "an endless creation time": {"created": float("inf")},
    "a creation time that is text": {"created": "yesterday"},
    "tries beyond all counting": {"attempts": 2**63 - 1},
    "tries that are text": {"attempts": "often"},
    "a UID with a NUL": {"uid": "u\0dd"},
    "a UID that is a blob": {"uid": b"odd\xff"},
    "a UID that is empty": {"uid": ""},
    "an owner that is a number": {"owner": b"\x00"},
    "a name that clears the terminal": {"name": "\x1b[2J"},
}


def put_odd(path: Path, **change: Any) -> str:
    """A row that holds d-0, changed; answers the name under which it is shown."""
    record = a_record("odd", "d-0")
    record.doc = dict(DOC)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA foreign_keys = ON")
    rows.insert(db, DRIVER, record)
    db.execute("DELETE FROM holds WHERE uid = 'odd'")
    for column, value in change.items():
        db.execute(f"UPDATE claims SET {column} = ? WHERE uid = 'odd'", (value,))  # noqa: S608  (our own columns)
    uid = change.get("uid", "odd")
    db.execute(
        "INSERT INTO holds (driver, pool, device, share_id, uid) VALUES (?, 'node', 'd-0', '', ?)", (DRIVER, uid)
    )
    db.close()
    return rows.shown_key(uid)


async def check_all_goes_on(folder: Path, shown: str) -> None:
    api = Api()
    async with room(folder, Plain(), api) as after:
        assert not isinstance(await after.prepare(api.allocate("fine", "fine", "d-1", DRIVER)), DraError)
        held = await after.prepare(api.allocate("second", "second", "d-0", DRIVER))
        assert isinstance(held, DeviceHeldError), held
        assert ("node", "d-0") in await after.claims.held()
        await after.claims.reconciler.once()
        assert any(shown in note for note in await after.claims.notes())
        assert await after.claims.faults() == []
        assert await after.unprepare(api.allocate("fine", "fine", "d-1", DRIVER)) == ()


@pytest.mark.cases(10)
@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
async def test_an_odd_row_stays_held_and_is_told_and_the_others_work(tmp_path: Path, change: dict[str, Any]) -> None:
    async with room(tmp_path, Plain()) as before:
        path = before.settings.records_path
        await before.claims.store.all()
    shown = put_odd(path, **change)
    await check_all_goes_on(tmp_path, shown)
    await check_all_goes_on(tmp_path, shown)


@pytest.mark.cases(20)
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
async def test_an_odd_row_is_listed_and_can_be_forgotten(
    tmp_path: Path,
    change: dict[str, Any],
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with room(tmp_path, Plain()) as before:
        path = before.settings.records_path
        await before.claims.store.all()
    shown = put_odd(path, **change)
    for name, value in (("KUBELET_ROOT", tmp_path), ("CDI_ROOT", tmp_path / "cdi"), ("DRIVER_NAME", DRIVER)):
        monkeypatch.setenv(name, str(value))
    assert main(["claims", "-o", output]) == 0
    listed = capsys.readouterr().out
    if output == "json":
        (row,) = json.loads(listed)["claims"]
        assert (row["uid"], row["state"]) == (shown, "Unreadable")
    else:
        assert "Unreadable" in listed
        assert listed.replace("\n", "").isprintable()
    (found,) = read_rows(path, 1)
    assert isinstance(found, UnreadableRecord)
    forget(path, 1, found.uid)
    db = sqlite3.connect(path)
    assert db.execute("SELECT uid FROM claims UNION SELECT uid FROM holds").fetchall() == []
    db.close()


async def test_the_row_of_a_claim_that_the_kubelet_asks_for_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    api = Api()
    ref = api.allocate("odd", "odd", "d-0", DRIVER)
    async with room(tmp_path, Plain(), api) as before:
        path = before.settings.records_path
        await before.claims.store.all()
    put_odd(path, state="Hibernating")
    async with room(tmp_path, Plain(), api) as after:
        for answer in (await after.prepare(ref), await after.unprepare(ref)):
            assert isinstance(answer, DraError)
            assert "dra claims forget odd" in str(answer)


values = st.one_of(
    st.none().map(lambda _: ""), st.text(max_size=20), st.binary(max_size=20), st.integers(-(2**63), 2**63 - 1),
    st.floats(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v, max_size=3)
    | st.dictionaries(st.sampled_from(["devices", "undo", "cdi", "pool", "device", "step", "data"]), v, max_size=4)).map(json.dumps),
)  # fmt: skip


@pytest.mark.full
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(change=st.dictionaries(st.sampled_from(rows.COLUMNS[1:]), values, max_size=3))
def test_a_row_of_any_values_is_a_record_or_is_set_aside_alone(change: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(f"{folder}/x.db", isolation_level=None)
        db.text_factory = lambda raw: raw.decode(errors="replace")
        rows_before = _filled(db, change)
        for row in rows_before:
            if isinstance(row, Record):
                assert row.prepared_claim("boot").uid == row.uid
                assert row.same_allocation(row)
                assert isinstance(row.shown, str)
                assert rows.update(db, row, row.fence)
            else:
                assert row.shown == printable(row.shown)
                assert "\n" not in row.shown
                assert row.reason
        db.close()


def _filled(db: sqlite3.Connection, change: dict[str, Any]) -> list[rows.Row]:
    make_tables(db)
    rows.insert(db, DRIVER, a_record("odd", "d-0"))
    for column, value in change.items():
        try:
            db.execute(f"UPDATE claims SET {column} = ?", (value,))  # noqa: S608  (our own columns)
        except (sqlite3.IntegrityError, UnicodeEncodeError):  # NaN is NULL to SQLite, and half a surrogate is no text
            continue
    return rows.read_all(db)
