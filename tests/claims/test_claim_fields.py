"""Reads the fields of a claim that has all of them, and of claims that lack one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.claims.claim_fields import ClaimFields

RESULT = {"driver": "x", "pool": "p", "device": "d", "request": "r", "shareID": "s"}
ALLOCATION = {
    "devices": {"results": [RESULT, RESULT | {"driver": "y"}], "config": [{"source": "FromClaim"}]},
    "allocationTimestamp": "2026-01-01T00:00:00Z",
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    },
}
STATUS = {"allocation": ALLOCATION, "reservedFor": [{"name": "p"}], "devices": [{"driver": "x"}]}
MANAGED = [{"manager": "m"}]


def decode(status: Any = None, **metadata: Any) -> ClaimFields:
    obj = {"metadata": {"uid": "u", **metadata}} | ({} if status is None else {"status": status})
    return ClaimFields.decode(json.dumps(obj).encode())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (decode(STATUS, managedFields=MANAGED), ("2026-01-01T00:00:00Z", "n", b'[{"source": "FromClaim"}]', [("p", "d", "s")], [{"driver": "x"}], MANAGED)),
        (decode({"allocation": {"devices": {"results": [RESULT | {"shareID": None}]}}}), ("", "", b"null", [("p", "d", "")], [], [])),
        (decode({"allocation": {}}), ("", "", b"null", [], [], [])),
        (decode({}), ("", "", b"null", [], [], [])),
        (decode(), ("", "", b"null", [], [], [])),
    ],
)  # fmt: skip
def test_each_field_is_empty_if_the_claim_lacks_it(fields: ClaimFields, expected: tuple[Any, ...]) -> None:
    assert expected == (
        fields.allocated_at,
        fields.node,
        bytes(fields.encoded_config),
        [r.key for r in fields.results("x")],
        fields.device_statuses(dict),
        fields.managed_fields(),
    )


def test_statuses_and_managed_fields_of_another_shape_raise() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode({"devices": {}}).device_statuses(dict)
    with pytest.raises(msgspec.DecodeError):
        decode(managedFields={}).managed_fields()
