"""The record alone: which documents are accepted, which devices a claim holds, and the round trip through JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.capacity import Hold
from dra_kubeletplugin.claims.record import (
    InFlightRecords,
    UnreadableRecord,
    check_doc,
    decode_record,
    encode_record,
    holds_of,
    request_names,
    shown_key,
)

DEVICE = {"request": "r", "pool": "p", "device": "d"}
STEP = {"step": "release", "data": {"n": 1}}
SHARED = STEP | {"key": "card-0", "ready": True}
METADATA = {"generation": 1, "podClaim": "", "requests": {"r": [{"driver": "x", "pool": "p", "name": "d"}]}}


@pytest.mark.parametrize(
    "doc",
    [
        {},
        {"devices": None, "undo": None, "metadata": None, "cdi": None},
        {"devices": [], "undo": []},
        {"devices": [DEVICE], "undo": [STEP], "metadata": METADATA, "unknown": 1},
        {"shared": None},
        {"shared": [SHARED]},
        {"devices": [{"pool": "p", "device": "d", "shareID": None, "cdi": None}]},
        {"devices": [DEVICE | {"shareID": "s", "cdi": ["a=b"]}]},
        {"metadata": METADATA | {"updates": None}},
        {"metadata": METADATA | {"updates": {"r": 3}, "requests": {}}},
    ],
)
def test_a_document_of_the_known_shape_is_returned_unchanged(doc: dict[str, Any]) -> None:
    assert check_doc(doc) is doc


DEVICES = "a device has no pool or no name"
STEPS = "an undo step has no name or no data"
SHARED_STEPS = "a shared step has no name, no key or no data"
SHAPE = "the device metadata has an unknown shape"


@pytest.mark.parametrize(
    ("doc", "fault"),
    [
        (None, "the document is not an object"),
        ([], "the document is not an object"),
        ({"devices": {"a": 1}}, DEVICES),
        ({"devices": "text"}, DEVICES),
        ({"devices": [DEVICE, None]}, DEVICES),
        ({"devices": [{"pool": "p"}]}, DEVICES),
        ({"devices": [{"device": "d"}]}, DEVICES),
        ({"devices": [DEVICE | {"pool": 1}]}, DEVICES),
        ({"devices": [DEVICE | {"device": None}]}, DEVICES),
        ({"devices": [DEVICE | {"request": None}]}, DEVICES),
        ({"devices": [DEVICE | {"shareID": 1}]}, DEVICES),
        ({"devices": [DEVICE | {"cdi": "a=b"}]}, DEVICES),
        ({"undo": {"a": 1}}, STEPS),
        ({"undo": [STEP, 1]}, STEPS),
        ({"undo": [{"step": "release"}]}, STEPS),
        ({"undo": [{"data": {}}]}, STEPS),
        ({"undo": [STEP | {"step": 1}]}, STEPS),
        ({"undo": [STEP | {"data": []}]}, STEPS),
        ({"shared": {"a": 1}}, SHARED_STEPS),
        ({"shared": [SHARED, 1]}, SHARED_STEPS),
        ({"shared": [STEP]}, SHARED_STEPS),
        ({"shared": [SHARED | {"key": 1}]}, SHARED_STEPS),
        ({"shared": [SHARED | {"step": None}]}, SHARED_STEPS),
        ({"metadata": []}, SHAPE),
        ({"metadata": {}}, SHAPE),
        ({"metadata": METADATA | {"requests": []}}, SHAPE),
        ({"metadata": METADATA | {"generation": "1"}}, SHAPE),
        ({"metadata": METADATA | {"podClaim": None}}, SHAPE),
        ({"metadata": METADATA | {"updates": [1]}}, SHAPE),
        ({"metadata": METADATA | {"updates": {"r": "1"}}}, SHAPE),
        ({"metadata": METADATA | {"requests": {"r": {"driver": "x"}}}}, SHAPE),
        ({"metadata": METADATA | {"requests": {"r": [1]}}}, SHAPE),
        ({"metadata": METADATA | {"requests": {"r": [{"driver": "x", "pool": "p"}]}}}, SHAPE),
        ({"metadata": METADATA | {"requests": {"r": [{"driver": "x", "pool": "p", "name": 1}]}}}, SHAPE),
        ({"cdi": [1]}, "the CDI spec cannot be used"),
    ],
)
def test_a_document_of_another_shape_is_refused_with_the_reason(doc: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_doc(doc)


def record(**fields: Any) -> Record:
    return Record(**({"uid": "u", "namespace": "ns", "name": "c", "state": State.PREPARED, "boot_id": "b"} | fields))


def encoded(**change: Any) -> bytes:
    fields = json.loads(encode_record(record(doc={"devices": [DEVICE]}), {}))
    return json.dumps(fields | change).encode()


def test_a_record_and_the_fields_of_a_newer_version_survive_a_round_trip() -> None:
    original = record(
        owner="7-x", doc={"devices": [DEVICE], "new": [1]}, error="e", attempts=2, created=1.5, updated=2.5
    )
    body = encode_record(original, {"later": msgspec.Raw(b'{"a":1}')})
    assert decode_record(body) == original
    assert json.loads(body)["later"] == {"a": 1}
    assert json.loads(encode_record(record(error="\x1b[2J"), {}))["error"].isprintable()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"uid": ""}, "field uid"),
        ({"uid": 7}, "field uid"),
        ({"uid": "a\nb"}, "field uid"),
        ({"namespace": "\x1b"}, "field namespace"),
        ({"name": "\x1b"}, "field name"),
        ({"name": None}, "field name"),
        ({"owner": None}, "field owner"),
        ({"boot_id": 1}, "field boot_id"),
        ({"error": []}, "field error"),
        ({"state": "Hibernating"}, "Hibernating"),
        ({"attempts": "2"}, "field attempts"),
        ({"attempts": 1e12}, "field attempts"),
        ({"created": -1e12}, "field created"),
        ({"updated": None}, "field updated"),
        ({"doc": 7}, "not an object"),
    ],
)
def test_a_body_with_another_value_is_unreadable_with_the_field_in_the_reason(change: Any, reason: str) -> None:
    decoded = decode_record(encoded(**change))
    assert isinstance(decoded, UnreadableRecord)
    assert reason in decoded.reason


def test_texts_and_numbers_at_their_limits_are_read() -> None:
    decoded = decode_record(encoded(owner="\x00", error="\x1b", namespace="", name="", attempts=999_999_999_999.5))
    assert isinstance(decoded, Record)
    assert (decoded.owner, decoded.error, decoded.name, decoded.attempts) == ("\x00", "\x1b", "", 999_999_999_999)
    for text in (b"", b"[]", b"{", b'{"uid":' + b"[" * 100_000):
        unreadable = decode_record(text)
        assert (type(unreadable), unreadable.uid) == (UnreadableRecord, "")


def test_a_claim_holds_each_device_once_and_none_with_admin_access() -> None:
    devices = [
        DEVICE | {"device": "z", "request": "b", "takes": {"capacity": {"m": "1"}}, "shareID": "s"},
        DEVICE,
        DEVICE | {"request": "other"},
        DEVICE | {"device": "seen", "adminAccess": True},
    ]
    holds = [Hold("p", "d", "", "", "u"), Hold("p", "z", "s", '{"capacity":{"m":"1"}}', "u")]
    assert record(doc={"devices": devices}).holds() == holds
    assert holds_of(record(doc={"devices": devices})) == tuple(holds)
    assert holds_of(UnreadableRecord("u", "newer", {"doc": {"devices": devices}})) == tuple(holds)
    assert holds_of(UnreadableRecord("u", "newer", {"doc": {"devices": 7}})) == ()
    assert holds_of(UnreadableRecord("u", "newer", {})) == ()


def test_the_same_devices_in_any_order_are_the_same_allocation() -> None:
    device_1, device_2 = DEVICE, DEVICE | {"device": "e"}
    stored = record(doc={"devices": [device_1, device_2]})
    assert stored.same_allocation(record(doc={"devices": [device_2, device_1 | {"request": "x", "data": 1}]}))
    for devices in ([device_1], [device_1, device_2, device_2], [device_1, device_2 | {"shareID": "s"}]):
        assert not stored.same_allocation(record(doc={"devices": devices}))


def test_a_rebuilt_record_gets_its_missing_name_and_requests() -> None:
    stored = record(name="", namespace="", doc={"devices": [DEVICE | {"request": ""}, DEVICE | {"device": "e"}]})
    devices = [DEVICE | {"request": "q"}, DEVICE | {"device": "e", "request": "q"}]
    stored.complete_from(record(doc={"devices": devices}))
    assert (stored.namespace, stored.name) == ("ns", "c")
    assert [d["request"] for d in stored.devices] == ["q", "r"]
    stored = record(doc={"devices": [{"pool": "p", "device": "d"}]})
    stored.complete_from(record())
    assert stored.devices[0]["request"] == ""


@pytest.mark.parametrize(
    ("doc", "partial"),
    [({}, False), ({"complete": True}, False), ({"rebuilt": True}, True), ({"rebuilt": True, "complete": True}, False)],
)
def test_only_a_rebuilt_record_without_edits_is_partial(doc: Any, partial: bool) -> None:
    assert record(doc=doc).partial is partial


def test_the_driver_gets_its_claim_as_it_was_prepared() -> None:
    devices = [DEVICE | {"shareID": "s", "adminAccess": True, "data": {"n": 1}}, {"pool": "p", "device": "e"}]
    claim = record(doc={"devices": devices, "complete": True}).prepared_claim("b")
    assert (claim.namespace, claim.name, claim.uid, claim.complete, claim.same_boot) == ("ns", "c", "u", True, True)
    device_fields = [(d.request, d.pool, d.name, d.share_id, d.admin_access, d.data) for d in claim.devices]
    assert device_fields == [("r", "p", "d", "s", True, {"n": 1}), ("", "p", "e", None, False, None)]
    empty_claim = record(doc={"devices": []}).prepared_claim("another boot")
    assert (empty_claim.complete, empty_claim.same_boot, list(empty_claim.devices)) == (False, False, [])
    assert (record().attempts, record().owner, record().error, record().steps) == (0, "", "", [])


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5.0), (-7.5, -7.5), (1e12, None), (-1e12, None), (None, None), ("5", None)]
)
def test_the_time_of_a_retry_is_a_number_of_possible_size(value: Any, expected: float | None) -> None:
    assert record(doc={"retryAt": value}).retry_at == expected


def test_messages_name_a_claim_by_namespace_name_and_uid() -> None:
    assert record().shown == "ns/c (UID u)"
    assert record(namespace="", name="").shown == "?/? (UID u)"
    assert UnreadableRecord("u", "", {"namespace": "ns"}).shown == "ns/? (UID u)"
    assert UnreadableRecord("u", "", {"namespace": "n" * 253, "name": "c"}).shown == f"{'n' * 253}/c (UID u)"
    assert len(UnreadableRecord("u", "", {"namespace": "n" * 254, "name": "c"}).shown) < 254 + len("/c (UID u)")
    assert shown_key("a\n\tb\x1b").isprintable()
    assert request_names(["b/x", "a", "", "b/y"]) == ["a", "b"]


def test_a_record_in_flight_is_kept_unchanged() -> None:
    records, stored = InFlightRecords(), record(doc={"devices": [DEVICE]})
    records.put(stored)
    stored.doc["undo"] = [STEP]
    stored.state = State.UNPREPARING
    (kept_record,) = records.records()
    assert (kept_record.state, kept_record.steps) == (State.PREPARED, [])
    records.drop("u")
    records.drop("u")
    assert records.records() == []
