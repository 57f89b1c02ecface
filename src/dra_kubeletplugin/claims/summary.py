"""Summarises records for readers outside the claim manager: devices and state, without configuration and the driver's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..base.json_types import JSON
from .record import Record, UnreadableRecord


class ClaimSummary(msgspec.Struct, frozen=True):
    """A recorded claim. ``results`` are its devices, as in ``status.allocation.devices.results`` of a ResourceClaim."""

    namespace: str
    name: str
    state: str
    results: Sequence[JSON]


class ClaimSnapshot(msgspec.Struct, frozen=True):
    """All recorded claims at one moment. ``unreadable`` are the names of claims whose record cannot be read."""

    claims: Sequence[ClaimSummary] = ()
    unreadable: Sequence[str] = ()


def summarize(rows: Iterable[Record | UnreadableRecord], driver: str) -> ClaimSnapshot:
    """Returns the summary of all records of a driver."""
    claims, unreadable = [], []
    for row in rows:
        if isinstance(row, Record):
            results = [_result(d, driver) for d in row.devices]
            claims.append(ClaimSummary(row.namespace or "?", row.name or row.uid, str(row.state).lower(), results))
        else:
            unreadable.append(row.shown)
    return ClaimSnapshot(claims, unreadable)


def _result(device: JSON, driver: str) -> JSON:
    takes = device.get("takes")
    return {
        "driver": driver,
        "pool": device["pool"],
        "device": device["device"],
        "request": device.get("request") or "?",
        "shareID": device.get("shareID"),
        "adminAccess": device.get("adminAccess"),
        "consumedCapacity": takes.get("capacity") if isinstance(takes, Mapping) else None,
    }
