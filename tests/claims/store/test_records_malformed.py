"""A record of an unknown shape affects only itself: other claims work, its device stays held, it is listed, and it can be forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.claims.record import checked_line, checked_text, encode_record
from dra_kubeletplugin.claims.store.files import forget, read_rows
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import DeviceHeldError, DraError
from tests.helpers.crash.claim_drivers import PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER, make_record

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

DEVICES = [{"request": "r", "pool": "node", "device": "d-0"}]


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


# Changes of the body, or of the head if its fields are named.
MALFORMED: dict[str, dict[str, Any]] = {
    "an unknown state": {"state": "Hibernating"},
    "a newer format": {"version": 2},
    "undo steps of another kind": {"undo": [1]},
    "a device nested without end": {"devices": raw("[" * 100_000)},
    "an endless creation time": {"created": 1e300},
}


def write_malformed(path: Path, **change: Any) -> None:
    """Writes the file of the claim ``odd``, which holds d-0, with ``change`` applied. Its checksums match."""
    record = make_record("odd", "d-0", complete=True)
    head = msgspec.json.decode(checked_text(encode_record(record, record.holds()).partition(b"\n")[0]) or b"")
    head |= {key: value for key, value in change.items() if key in head and key != "devices"}
    body = {"devices": DEVICES, "complete": True} | {
        key: value for key, value in change.items() if key not in head or key == "devices"
    }
    (path / "odd.json").write_bytes(checked_line(head) + checked_line(body))


async def check_other_claims(folder: Path) -> None:
    api = FakeApiServer()
    async with running_manager(folder, PlainDriver(), api) as restarted:
        assert not isinstance(await restarted.prepare(api.allocate("fine", "fine", "d-1", DRIVER)), DraError)
        held_error = await restarted.prepare(api.allocate("second", "second", "d-0", DRIVER))
        assert isinstance(held_error, DeviceHeldError), held_error
        assert ("node", "d-0") in await restarted.claims.held()
        await restarted.claims.reconciler.once()
        assert any("(UID odd) cannot be read" in note for note in await restarted.claims.notes())
        assert await restarted.claims.faults() == []
        assert await restarted.unprepare(api.allocate("fine", "fine", "d-1", DRIVER)) == ()


@pytest.mark.cases(10)
@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_record_stays_held_is_listed_until_it_is_forgotten_and_other_claims_work(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_manager(tmp_path, PlainDriver()) as first_manager:
        path = first_manager.settings.records_path
        await first_manager.claims.store.all()
    write_malformed(path, **change)
    content = (path / "odd.json").read_bytes()
    await check_other_claims(tmp_path)
    await check_other_claims(tmp_path)
    assert (path / "odd.json").read_bytes() == content
    options = ["--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi"), "--driver-name", DRIVER]
    assert main(["claims", *options, "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["claims"]
    assert (row["uid"], row["state"]) == ("odd", "Unreadable")
    assert main(["claims", *options]) == 0
    output = capsys.readouterr().out
    assert "Unreadable" in output
    assert output.replace("\n", "").isprintable()
    forget(path, 1, "odd")
    assert read_rows(path) == []


async def test_a_malformed_record_of_a_requested_claim_is_an_error_that_names_the_next_step(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("odd", "odd", "d-0", DRIVER)
    async with running_manager(tmp_path, PlainDriver(), api) as first_manager:
        path = first_manager.settings.records_path
        await first_manager.claims.store.all()
    write_malformed(path, state="Hibernating")
    async with running_manager(tmp_path, PlainDriver(), api) as restarted:
        for response in (await restarted.prepare(ref), await restarted.unprepare(ref)):
            assert isinstance(response, DraError)
            assert "dra claims forget odd" in str(response)
