"""Reads the fields of a claim that has all of them, and of claims that lack one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.claims.claim_fields import ClaimFields, ClaimIdentity

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


def values(fields: ClaimFields) -> tuple[Any, ...]:
    return (
        fields.allocated_at,
        fields.node,
        list(fields.reserved_for),
        len(fields.config()),
        [r.key for r in fields.results("x")],
        fields.device_statuses(dict),
        fields.managed_fields(),
    )


ALL = ("2026-01-01T00:00:00Z", "n", [{"name": "p"}], 1, [("p", "d", "s")], [{"driver": "x"}], MANAGED)
NONE = ("", "", [], 0, [], [], [])


def without(path: str) -> dict[str, Any]:
    status = json.loads(json.dumps(STATUS))
    *parents, last = path.split(".")
    parent = status
    for name in parents:
        parent = parent[name]
    parent[last] = None
    return status


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (decode(STATUS, managedFields=MANAGED), ALL),
        (decode(), NONE),
        (decode({}), NONE),
        (decode({"allocation": {}}, managedFields=None), NONE),
        (decode(without("allocation")), ("", "", [{"name": "p"}], 0, [], [{"driver": "x"}], [])),
        (decode(without("allocation.devices")), (*ALL[:3], 0, [], [{"driver": "x"}], [])),
        (decode(without("allocation.devices.results")), (*ALL[:4], [], [{"driver": "x"}], [])),
        (decode(without("allocation.devices.config")), (*ALL[:3], 0, *ALL[4:6], [])),
        (decode(without("allocation.allocationTimestamp")), ("", *ALL[1:6], [])),
        (decode(without("allocation.nodeSelector")), (ALL[0], "", *ALL[2:6], [])),
        (decode(without("reservedFor")), (*ALL[:2], [], *ALL[3:6], [])),
        (decode(without("devices")), (*ALL[:5], [], [])),
    ],
)
def test_each_field_is_empty_if_the_claim_lacks_it(fields: ClaimFields, expected: tuple[Any, ...]) -> None:
    assert values(fields) == expected


def test_a_device_without_a_share_has_an_empty_share_in_its_key() -> None:
    status = {"allocation": {"devices": {"results": [RESULT | {"shareID": None}]}}}
    assert decode(status).results("x")[0].key == ("p", "d", "")
    assert (decode(status).allocation is None, decode().allocation is None) == (False, True)
    assert str(ClaimIdentity("ns", "c", "u")) == "ns/c"


def test_statuses_and_managed_fields_of_another_shape_raise() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode({"devices": {}}).device_statuses(dict)
    with pytest.raises(msgspec.DecodeError):
        decode(managedFields={}).managed_fields()
