"""The record alone: which files are accepted, which devices a claim holds, and the round trip through its file."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.capacity import Hold
from dra_kubeletplugin.claims.record import (
    Row,
    UnreadableRecord,
    checked_line,
    decode_record,
    encode_record,
    read_head,
)

DEVICE = {"request": "r", "pool": "p", "device": "d"}
STEP = {"step": "release", "data": {"n": 1}}
SHARED = STEP | {"key": "card-0", "ready": True}
METADATA = {"generation": 1, "podClaim": "", "requests": {"r": [{"driver": "x", "pool": "p", "name": "d"}]}}


def record(**fields: Any) -> Record:
    return Record(**({"uid": "u", "namespace": "ns", "name": "c", "state": State.PREPARED, "boot_id": "b"} | fields))


def file_of(stored: Record, before: bytes = b"") -> bytes:
    return encode_record(stored, stored.holds(), before)


def fields_of(line: bytes) -> dict[str, Any]:
    fields = msgspec.json.decode(line)
    del fields["crc"]
    return fields  # type: ignore[no-any-return]


def row_of(data: bytes) -> Row:
    head = read_head(data)
    assert head
    return decode_record(head, data)


def with_head(**change: object) -> bytes:
    head, body, _ = file_of(record(devices=[DEVICE])).split(b"\n")
    return checked_line(fields_of(head) | change) + body + b"\n"


def with_body(body: object) -> bytes:
    head, _, _ = file_of(record(devices=[DEVICE])).split(b"\n")
    return head + b"\n" + checked_line(body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": None, "cdi": None},
        {"devices": [{"pool": "p", "device": "d"}]},
        {"devices": [], "undo": []},
        {"devices": [DEVICE], "undo": [STEP], "shared": [SHARED], "metadata": METADATA, "unknown": 1},
        {"devices": [DEVICE | {"shareID": "s", "cdi": ["a=b"]}]},
        {"metadata": METADATA | {"updates": None}},
        {"metadata": METADATA | {"updates": {"r": 3}, "requests": {}}},
        {"error": "\x1b", "attempts": 999_999_999_999, "retryAt": -7.5},
    ],
)
def test_a_body_of_the_known_shape_is_read_and_its_unknown_fields_stay(body: dict[str, Any]) -> None:
    data = with_body(body)
    stored = row_of(data)
    assert isinstance(stored, Record)
    wanted = {"devices": [], "undo": [], "shared": [], "metadata": None, "error": "", "attempts": 0} | body
    assert {name: getattr(stored, name) for name in wanted if name not in {"unknown", "retryAt"}} == {
        name: value for name, value in wanted.items() if name not in {"unknown", "retryAt"}
    }
    assert stored.retry_at == body.get("retryAt")
    assert fields_of(file_of(stored, data).split(b"\n")[1]).get("unknown") == body.get("unknown")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ([], "Expected `object`"),
        ({"devices": "text"}, "$.devices"),
        ({"devices": [DEVICE, None]}, "$.devices[1]"),
        ({"undo": [[]]}, "$.undo[0]"),
        ({"sharedUnknown": 1}, "$.sharedUnknown"),
        ({"metadata": []}, "$.metadata"),
        ({"cdi": [1]}, "$.cdi"),
        ({"attempts": 10**12}, "$.attempts"),
        ({"retryAt": -1e12}, "$.retryAt"),
    ],
)
def test_a_body_of_another_shape_is_unreadable_with_the_reason_and_the_claim_stays_known(body: Any, fault: str) -> None:
    row = row_of(with_body(body))
    assert isinstance(row, UnreadableRecord)
    assert fault in row.reason
    assert row.shown == "ns/c (UID u)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"state": "Hibernating"}, "Hibernating"), ({"created": -1e12}, "$.created"), ({"version": 2}, "newer version")],
)  # fmt: skip
def test_a_head_with_a_value_of_a_newer_version_is_unreadable_with_its_devices_held(
    change: dict[str, Any], reason: str
) -> None:
    data = with_head(**change)
    head, row = read_head(data), row_of(data)
    assert isinstance(row, UnreadableRecord)
    assert reason in row.reason
    assert head and head.holds == (Hold("p", "d", "", "", "u"),)


@pytest.mark.parametrize(
    "data",
    [
        *(with_head(uid=uid) for uid in (7, "a\nb")),
        *(with_head(**{name: value}) for name in ("namespace", "name") for value in ("\x1b", None)),
        with_head(owner=None),
        with_head(bootID=1),
        with_head(devices=[{"pool": "p"}]),
        with_head(version="1"),
        file_of(record())[1:],
        b"",
        b"[]\n",
        b"{",
        b'{"uid":' + b"[" * 100_000,
    ],
)
def test_a_damaged_head_is_no_head(data: bytes) -> None:
    assert read_head(data) is None


def test_a_record_and_the_fields_of_a_newer_version_survive_a_round_trip() -> None:
    original = record(
        owner="7-x", devices=[DEVICE], undo=[STEP], shared=[SHARED], shared_unknown=True, metadata=METADATA, operation="op",
        complete=True, recovered=True, superseded=True, undone=True, error="e", attempts=2, retry_at=3.5, created=1.5, updated=2.5,
    )  # fmt: skip
    head, body, _ = file_of(original).split(b"\n")
    later = checked_line(fields_of(head) | {"later": 1}) + checked_line(fields_of(body) | {"later": {"a": 1}})
    assert row_of(later) == original
    written = file_of(original, later)
    assert row_of(written) == original
    assert [fields_of(line)["later"] for line in written.split(b"\n")[:2]] == [1, {"a": 1}]
    unreadable = row_of(file_of(record(error="\x1b[2J")))
    assert isinstance(unreadable, Record) and unreadable.error.isprintable()


def test_a_claim_holds_each_device_once_and_none_with_admin_access() -> None:
    devices = [
        DEVICE | {"device": "z", "request": "b", "takes": {"capacity": {"m": "1"}}, "shareID": "s"},
        DEVICE,
        DEVICE | {"request": "other"},
        DEVICE | {"device": "seen", "adminAccess": True},
    ]
    holds = [Hold("p", "d", "", "", "u"), Hold("p", "z", "s", '{"capacity":{"m":"1"}}', "u")]
    stored = record(devices=devices)
    assert stored.holds() == holds
    head = read_head(file_of(stored))
    assert head and head.holds == tuple(holds)


def test_a_recovered_record_gets_its_missing_name_and_requests() -> None:
    stored = record(name="", namespace="", devices=[DEVICE | {"request": ""}, DEVICE | {"device": "e"}])
    devices = [DEVICE | {"request": "q"}, DEVICE | {"device": "e", "request": "q"}]
    stored.complete_from(record(devices=devices))
    assert (stored.namespace, stored.name) == ("ns", "c")
    assert [d["request"] for d in stored.devices] == ["q", "r"]
    stored = record(devices=[{"pool": "p", "device": "d"}])
    stored.complete_from(record())
    assert stored.devices[0]["request"] == ""


def test_the_driver_gets_its_claim_as_it_was_prepared() -> None:
    devices = [DEVICE | {"shareID": "s", "adminAccess": True, "data": {"n": 1}}, {"pool": "p", "device": "e"}]
    claim = record(devices=devices, complete=True).prepared_claim("b")
    assert (claim.namespace, claim.name, claim.uid, claim.complete, claim.same_boot) == ("ns", "c", "u", True, True)
    device_fields = [(d.request, d.pool, d.name, d.share_id, d.admin_access, d.data) for d in claim.devices]
    assert device_fields == [("r", "p", "d", "s", True, {"n": 1}), ("", "p", "e", None, False, None)]
    empty_claim = record(devices=[]).prepared_claim("another boot")
    assert (empty_claim.complete, empty_claim.same_boot, list(empty_claim.devices)) == (False, False, [])
    assert (record().attempts, record().owner, record().error, record().undo) == (0, "", "", [])


def test_messages_name_a_claim_by_namespace_name_and_uid() -> None:
    assert record().shown == "ns/c (UID u)"
    assert record(namespace="", name="").shown == "?/? (UID u)"
    assert UnreadableRecord("u", "", {"namespace": "ns"}).shown == "ns/? (UID u)"
