"""A malformed row affects only itself: other claims work, its device stays held, it is listed, and it can be
forgotten.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.record import UnreadableRecord, shown_key
from dra_kubeletplugin.claims.store.journal_file import JournalFile, new_header
from dra_kubeletplugin.claims.store.lines import encode
from dra_kubeletplugin.claims.store.offline import forget, read_rows
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import DeviceHeldError, DraError, printable
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER, append_body, make_record

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

DOC = {"devices": [{"request": "r", "pool": "node", "device": "d-0"}], "complete": True}


class Plain(Driver):
    name = DRIVER

    async def devices(self) -> list[Device]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


def doc(**change: Any) -> msgspec.Raw:
    return raw(json.dumps(DOC | change))


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


MALFORMED: dict[str, dict[str, Any]] = {
    "an unknown state": {"state": "Hibernating"},
    "a state that is a list": {"state": ["Prepared"]},
    "a document that is no JSON": {"doc": raw("{")},
    "a document that is no object": {"doc": raw("[1]")},
    "an empty document": {"doc": raw("")},
    "a document nested without end": {"doc": raw("[" * 100_000)},
    "a document that is no text": {"doc": msgspec.Raw(b'"\xff\xfe"')},
    "a number as a document": {"doc": 7},
    "half a surrogate in the document": {"doc": raw('{"devices": [{"pool": "\\ud800", "device": "d-0"}]}')},
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
    "an endless creation time": {"created": 1e300},
    "a creation time that is text": {"created": "yesterday"},
    "tries beyond all counting": {"attempts": 2**63 - 1},
    "tries that are text": {"attempts": "often"},
    "a UID with a NUL": {"uid": "u\0dd"},
    "a UID that is empty": {"uid": ""},
    "an owner that is a number": {"owner": 0},
    "a name that clears the terminal": {"name": "\x1b[2J"},
}


def append_malformed(path: Path, **change: Any) -> str:
    """Appends a record that holds d-0, with ``change`` applied. Returns the UID under which it is listed."""
    record = make_record("odd", "d-0")
    record.doc = dict(DOC)
    fields = {c: getattr(record, c) for c in Record.__struct_fields__} | change
    append_body(path, record, msgspec.json.encode(fields), change.get("uid", "odd"))
    return shown_key(change.get("uid", "odd"))


async def check_other_claims(folder: Path, listed_uid: str) -> None:
    api = FakeApiServer()
    async with running_manager(folder, Plain(), api) as restarted:
        assert not isinstance(await restarted.prepare(api.allocate("fine", "fine", "d-1", DRIVER)), DraError)
        held_error = await restarted.prepare(api.allocate("second", "second", "d-0", DRIVER))
        assert isinstance(held_error, DeviceHeldError), held_error
        assert ("node", "d-0") in await restarted.claims.held()
        await restarted.claims.reconciler.once()
        assert any(listed_uid in note for note in await restarted.claims.notes())
        assert await restarted.claims.faults() == []
        assert await restarted.unprepare(api.allocate("fine", "fine", "d-1", DRIVER)) == ()


@pytest.mark.cases(10)
@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_row_stays_held_and_is_reported_and_other_claims_work(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async with running_manager(tmp_path, Plain()) as first_manager:
        path = first_manager.settings.records_path
        await first_manager.claims.store.all()
    listed_uid = append_malformed(path, **change)
    await check_other_claims(tmp_path, listed_uid)
    await check_other_claims(tmp_path, listed_uid)


@pytest.mark.cases(20)
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_row_is_listed_and_can_be_forgotten(
    tmp_path: Path,
    change: dict[str, Any],
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_manager(tmp_path, Plain()) as first_manager:
        path = first_manager.settings.records_path
        await first_manager.claims.store.all()
    listed_uid = append_malformed(path, **change)
    for name, value in (("KUBELET_ROOT", tmp_path), ("CDI_ROOT", tmp_path / "cdi"), ("DRIVER_NAME", DRIVER)):
        monkeypatch.setenv(name, str(value))
    assert main(["claims", "-o", output]) == 0
    output_text = capsys.readouterr().out
    if output == "json":
        (row,) = json.loads(output_text)["claims"]
        assert (row["uid"], row["state"]) == (listed_uid, "Unreadable")
    else:
        assert "Unreadable" in output_text
        assert output_text.replace("\n", "").isprintable()
    (row_left,) = read_rows(path)
    assert isinstance(row_left, UnreadableRecord)
    forget(path, 1, row_left.uid)
    assert read_rows(path) == []


async def test_a_malformed_row_of_a_requested_claim_is_an_error_that_names_the_next_step(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("odd", "odd", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as first_manager:
        path = first_manager.settings.records_path
        await first_manager.claims.store.all()
    append_malformed(path, state="Hibernating")
    async with running_manager(tmp_path, Plain(), api) as restarted:
        for response in (await restarted.prepare(ref), await restarted.unprepare(ref)):
            assert isinstance(response, DraError)
            assert "dra claims forget odd" in str(response)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(st.sampled_from(["devices", "undo", "cdi", "pool", "device", "step", "data"]), v, max_size=4)
    ),
)


@pytest.mark.full
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(change=st.dictionaries(st.sampled_from(Record.__struct_fields__[1:]), values, max_size=3))
def test_a_record_of_any_values_is_a_record_or_is_the_only_unreadable_one(change: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.journal"
        path.write_bytes(encode(new_header(DRIVER, 1, 1)))
        append_malformed(path, **change)
        file = JournalFile(path)
        (row,) = file.records.read_all()
        if isinstance(row, Record):
            assert row.prepared_claim("boot").uid == row.uid
            assert row.same_allocation(row)
            assert isinstance(row.shown, str)
            assert file.records.update(row, row.fence)
        else:
            assert row.shown == printable(row.shown)
            assert "\n" not in row.shown
            assert row.reason
        file.close()
