"""The archive of ``dra gather`` contains the records without the driver's private data."""

from __future__ import annotations

from dra_kubeletplugin.claims import Record, State
from dra_tools.doctor.gathering import record_json


def test_gather_writes_steps_and_shared_steps_without_their_data() -> None:
    secret = {"password": "x"}
    row = record_json(
        Record(
            *("uid", "ns", "name", State.PREPARED, "boot"),
            devices=[{"pool": "p", "device": "d", "data": secret}],
            undo=[{"step": "cut", "data": secret}],
            shared=[{"step": "firmware", "key": "card-0", "data": secret, "ready": True}],
        )
    )
    assert row["steps"] == ["cut"]
    assert row["shared"] == [{"step": "firmware", "key": "card-0", "ready": True}]
    assert "password" not in str(row)
