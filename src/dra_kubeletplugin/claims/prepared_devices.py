"""Converts a driver's prepared devices to the claim's CDI spec and to the kubelet's response."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..base.json_types import JSON
from ..base.telemetry.logs import claim_fields
from ..base.text import join_names
from ..cdi import ClaimSpecs, ContainerEdits
from ..driver import AllocatedDevice, Claim, DeviceStatus, PreparedDevice
from ..driver.data import plain_json
from ..driver.diagnostics.author_errors import missing_await_hint, replacement_message
from ..errors import BadAnswerError, HostPathMissingError, InvalidSpecError, kind_of
from ..host import Host
from ..metadata.paths import base_request
from .metadata_files import MetadataFiles
from .record import Record, allocated_json, identity

log = logging.getLogger(__name__)

_IN_ITS_FILE = ": the host is a described host; add the path to its YAML file, under `nodes:`, or under `classes:` of its PCI function"
_INSTALL = ": install what creates it on the host, such as its kernel driver, or correct the path"


class PreparedResult(NamedTuple):
    """One device in the response to the kubelet."""

    requests: Sequence[str]
    pool: str
    device: str
    cdi_ids: Sequence[str]
    share_id: str | None


def prepared_result(record: Record) -> list[PreparedResult]:
    """Returns the devices of a prepared record in the form of the kubelet's response."""
    out = []
    for d in record.devices:
        request = base_request(d.get("request", ""))
        requests = [request] if request else []  # an empty list means all requests
        out.append(PreparedResult(requests, d["pool"], d["device"], tuple(d.get("cdi") or ()), d.get("shareID")))
    return out


def add_prepared(
    record: Record,
    claim: Claim,
    prepared: Iterable[PreparedDevice],
    specs: ClaimSpecs,
    host: Host,
    metadata: MetadataFiles | None = None,
) -> None:
    """Adds devices, CDI ids, the CDI spec and, for a driver with ``metadata`` files, their content to ``record``.

    Where the host's ``/dev`` is mounted at ``/dev``, the process sees the host's files, and every path that a container needs is checked.
    Otherwise the process sees its own container's files, so only paths below ``/dev`` are checked.

    Raises :class:`BadAnswerError` if the prepared devices do not match the allocation or their metadata is not allowed. Raises
    :class:`HostPathMissingError` if a device node, the source of a mount or a hook's program does not exist. Raises
    :class:`.ClaimError` if names of the claim are not allowed in the path of a metadata file.
    """
    shown = f"claim {claim.namespace}/{claim.name}"
    matched = _matched(claim, shown, prepared)
    recorded = {(*identity(d), d.get("request")): d for d in record.devices}
    edits: list[tuple[str, JSON]] = []
    devices: list[JSON] = []
    names: Counter[str] = Counter()
    for allocated, device in matched:
        entry = allocated_json(allocated)
        entry = {**recorded.get((*identity(entry), allocated.request), entry)}
        if device.edits:
            _check_paths(shown, device, host)
            name = specs.device_name(claim.uid, device.name, device.share_id)
            names[name] += 1
            if names[name] > 1:  # a device of the same name in another pool, or the same device for another request
                name += f".{names[name]}"
            edits.append((name, device.edits.json()))
            entry["cdi"] = [specs.device_id(name)]
        if device.data is not None:
            try:
                entry["data"] = plain_json(device.data)
            except ValueError as e:
                raise BadAnswerError(f"{shown}: device {device.name}: {e}") from None
        devices.append(entry)
    for request, mount in (metadata.describe(record, claim, matched) if metadata else {}).items():
        name = specs.metadata_name(claim.uid, request)
        edits.append((name, mount))
        first = next(d for d in devices if base_request(d["request"]) == request)
        first["cdi"] = [*first.get("cdi", ()), specs.device_id(name)]
    if lost := _lost_values(matched):
        log.warning(
            "devices of one request set different values, of which a container gets only the last: %s",
            "; ".join(lost),
            extra=claim_fields(claim),
        )
    record.devices = devices
    record.complete = True
    try:
        record.cdi = specs.build(edits) if edits else None
    except InvalidSpecError as e:
        raise BadAnswerError(f"{shown}: prepare returned CDI edits that no runtime accepts: {e}") from None


def _matched(
    claim: Claim, shown: str, prepared: Iterable[PreparedDevice]
) -> list[tuple[AllocatedDevice, PreparedDevice]]:
    """Pairs every allocated device with its one prepared device."""
    if not isinstance(prepared, (list, tuple)):
        hint = replacement_message(prepared, "PreparedDevice", of="device.prepared()")
        raise BadAnswerError(f"{shown}: prepare returned {kind_of(prepared)}, not a list of PreparedDevice{hint}")
    wanted = {(a.pool, a.name, a.share_id, a.request): a for a in claim.devices}
    found: dict[tuple[str, str, str | None, str], PreparedDevice] = {}
    for p in prepared:
        if not isinstance(p, PreparedDevice):
            raise BadAnswerError(
                f"{shown}: prepare returned a list with {kind_of(p)}, not PreparedDevice"
                f"{missing_await_hint(p) or ': return device.prepared(...) for each of claim.devices'}"
            )
        fields = [("edits", p.edits, ContainerEdits), ("metadata", p.metadata, Mapping)]
        fields += [("status", p.status, DeviceStatus)] if p.status is not None else []
        for field, value, kind in fields:
            if not isinstance(value, kind):
                raise BadAnswerError(
                    f"{shown}: prepare returned device {p.name} with {field} of type {kind_of(value)}, not {kind.__name__}"
                    f"{missing_await_hint(value) or f': write {kind.__name__}(...)' * (kind is not Mapping)}"
                )
        key = (p.pool, p.name, p.share_id, p.request)
        if not all(isinstance(k, str | None) for k in key):
            raise BadAnswerError(
                f"{shown}: prepare returned a PreparedDevice whose names are not text: use AllocatedDevice.prepared()"
            )
        if key in found:
            raise BadAnswerError(f"{shown}: prepare returned device {p.name} twice for request {p.request}")
        if key not in wanted:
            raise BadAnswerError(
                f"{shown}: prepare returned device {p.name} of pool {p.pool}{f', share {p.share_id},' if p.share_id else ''} for "
                f"request {p.request!r}, which is not allocated to it: use AllocatedDevice.prepared()"
            )
        found[key] = p
    if missing := [a.name for key, a in wanted.items() if key not in found]:
        raise BadAnswerError(f"{shown}: prepare returned no entry for device {missing[0]}: return one for every device")
    return [(allocated, found[key]) for key, allocated in wanted.items()]


def _lost_values(prepared: Iterable[tuple[AllocatedDevice, PreparedDevice]]) -> list[str]:
    """Returns the variables, mounts and device nodes that devices of one request set to different values.

    The runtime applies the edits of all devices of a container, and a later device replaces values of earlier devices. A container that
    uses a request gets all devices of the request; devices of different requests may be for different containers.
    """
    # Device and value, by request and name in the container.
    found: dict[tuple[str, str], list[tuple[str, object]]] = {}
    for allocated, device in prepared:
        edits, request = device.edits.json(), base_request(allocated.request)
        values: list[tuple[str, object]] = [(f"variable {v.partition('=')[0]}", v) for v in edits.get("env", ())]
        values += [(f"mount {m['containerPath']}", m) for m in edits.get("mounts", ())]
        values += [(f"device node {n['path']}", n) for n in edits.get("deviceNodes", ())]
        for name, value in values:
            found.setdefault((request, name), []).append((device.name, value))
    return [
        f"{name} of {join_names([device for device, _ in devices])}"
        for (_, name), devices in found.items()
        if any(value != devices[0][1] for _, value in devices)
    ]


def _check_paths(shown: str, device: PreparedDevice, host: Host) -> None:
    """Reports a missing path at once, because the runtime's own error comes late and is not repeated."""
    for path in device.edits.host_paths():
        seen = Path(path)
        if host.dev != Path("/dev"):
            below = Path(os.path.normpath(path))
            if not below.is_relative_to("/dev"):
                continue  # this process does not see it
            seen = host.dev / below.relative_to("/dev")
        # Symbolic links are not followed: their target may be visible only on the host.
        if not os.path.lexists(seen):
            described = not host.is_real and host.dev == host.sysfs / "dev"
            hint = _IN_ITS_FILE if described else _INSTALL
            raise HostPathMissingError(f"{shown}: {path} of device {device.name} is not on the host{hint}")
