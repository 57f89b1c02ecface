"""The archive of ``dra gather`` contains the records without the driver's private data."""

from __future__ import annotations

from dra_kubeletplugin.analysis.doctor.gathering import _row
from dra_kubeletplugin.claims import Record, State


def test_gather_writes_steps_and_shared_steps_without_their_data() -> None:
    doc = {
        "devices": [{"pool": "p", "device": "d", "data": {"password": "x"}}],
        "undo": [{"step": "cut", "data": {"password": "x"}}],
        "shared": [{"step": "firmware", "key": "card-0", "data": {"password": "x"}, "ready": True}],
    }
    row = _row(Record("uid", "ns", "name", State.PREPARED, "boot", "", doc))
    assert row["steps"] == ["cut"]
    assert row["shared"] == [{"step": "firmware", "key": "card-0", "ready": True}]
    assert "password" not in str(row)
