"""From a driver's answer to a claim's CDI spec and to what the kubelet is told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..cdi import ClaimSpecs
from ..driver import AllocatedDevice, Claim, PreparedDevice
from ..errors import BadAnswerError, HostPathMissingError, InvalidSpecError
from .record import Record, allocated_json, request_names

JSON = dict[str, Any]


@dataclass(frozen=True)
class PreparedAnswer:
    """One device as the kubelet is told of it."""

    requests: Sequence[str]
    pool: str
    device: str
    cdi_ids: Sequence[str]
    share_id: str | None


def answer(record: Record) -> list[PreparedAnswer]:
    """What a prepared record says to the kubelet."""
    return [
        PreparedAnswer(
            request_names([d.get("request", "")]), d["pool"], d["device"], tuple(d.get("cdi") or ()), d.get("shareID")
        )
        for d in record.devices
    ]


def complete(record: Record, claim: Claim, prepared: Iterable[PreparedDevice], specs: ClaimSpecs, dev: Path) -> None:
    """Puts devices, CDI ids and the CDI spec into ``record``.

    Raises :class:`BadAnswerError` where the answer and the allocation do not fit, :class:`HostPathMissingError` where a
    device node is not there.
    """
    answers = _matched(claim, prepared)
    edits: list[tuple[str, JSON]] = []
    devices: list[JSON] = []
    for allocated, given in answers:
        entry = allocated_json(allocated)
        if given.edits:
            _check_paths(claim, given, dev)
            edits.append((specs.device_name(claim.uid, given.name, given.share_id), given.edits.json()))
            entry["cdi"] = [specs.device_id(claim.uid, given.name, given.share_id)]
        if given.data is not None:
            entry["data"] = _plain(claim, given)
        devices.append(entry)
    record.doc["devices"] = devices
    record.doc["complete"] = True
    if not edits:
        record.doc["cdi"] = None
        return
    try:
        record.doc["cdi"] = specs.build(edits)
    except InvalidSpecError as e:
        raise BadAnswerError(
            f"claim {claim.namespace}/{claim.name}: prepare answered CDI edits that no runtime takes: {e}"
        ) from None


def _matched(claim: Claim, prepared: Iterable[PreparedDevice]) -> list[tuple[AllocatedDevice, PreparedDevice]]:
    """Every allocated device with its one answer."""
    shown = f"claim {claim.namespace}/{claim.name}"
    given: dict[tuple[str, str, str | None, str], PreparedDevice] = {}
    try:
        answers = list(prepared)
    except TypeError:
        raise BadAnswerError(
            f"{shown}: prepare answered {type(prepared).__name__}, not a list of PreparedDevice"
        ) from None
    for p in answers:
        if not isinstance(p, PreparedDevice):
            raise BadAnswerError(f"{shown}: prepare answered {type(p).__name__}, not PreparedDevice")
        key = (p.pool, p.name, p.share_id, p.request)
        if key in given:
            raise BadAnswerError(f"{shown}: prepare answered device {p.name} twice for request {p.request}")
        given[key] = p
    out = []
    for allocated in claim.devices:
        found = given.pop((allocated.pool, allocated.name, allocated.share_id, allocated.request), None)
        if found is None:
            raise BadAnswerError(f"{shown}: prepare answered nothing for device {allocated.name}: answer every device")
        out.append((allocated, found))
    if given:
        raise BadAnswerError(f"{shown}: prepare answered device {next(iter(given))[1]}, which is not allocated to it")
    return out


def _check_paths(claim: Claim, given: PreparedDevice, dev: Path) -> None:
    """Device nodes and mount sources must be there, because the runtime's own error comes late and is not repeated."""
    for path in given.edits.host_paths():
        seen = dev / path.removeprefix("/dev/") if path.startswith("/dev/") and dev != Path("/dev") else Path(path)
        if path.startswith("/dev/") and not os.path.lexists(seen):
            raise HostPathMissingError(
                f"claim {claim.namespace}/{claim.name}: {path} of device {given.name} is not on the host"
            )


def _plain(claim: Claim, given: PreparedDevice) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(given.data))
    except (TypeError, ValueError) as e:
        raise BadAnswerError(
            f"claim {claim.namespace}/{claim.name}: data of device {given.name} is no JSON: {e}"
        ) from None
