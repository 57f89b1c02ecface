"""The summary of records, field by field."""

from __future__ import annotations

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.summary import ClaimSnapshot, ClaimSummary, summarize


def test_a_summary_has_the_devices_of_each_claim_and_the_names_of_unreadable_ones() -> None:
    devices = [
        {"request": "r", "pool": "p", "device": "d", "shareID": "s", "adminAccess": True,
         "takes": {"capacity": {"m": "1"}}, "data": {"secret": 1}},
        {"pool": "p", "device": "e", "takes": []},
        {"pool": "p", "device": "f", "takes": {"counters": {}}},
    ]  # fmt: skip
    rows = [
        Record("u", "ns", "c", State.PREPARED, "b", devices=devices),
        UnreadableRecord("v", "damaged", {"namespace": "ns", "name": "v"}),
        Record("w", "", "", State.UNPREPARING, "b"),
    ]
    empty_fields = {
        "driver": "x",
        "pool": "p",
        "request": "?",
        "shareID": None,
        "adminAccess": None,
        "consumedCapacity": None,
    }
    full = {"driver": "x", "pool": "p", "device": "d", "request": "r", "shareID": "s", "adminAccess": True}
    assert summarize(rows, "x") == ClaimSnapshot(
        [
            ClaimSummary(
                "ns",
                "c",
                "prepared",
                [
                    full | {"consumedCapacity": {"m": "1"}},
                    empty_fields | {"device": "e"},
                    empty_fields | {"device": "f"},
                ],
            ),
            ClaimSummary("?", "w", "unpreparing", []),
        ],
        ["ns/v (UID v)"],
    )
    assert summarize([], "x") == ClaimSnapshot([], [])
