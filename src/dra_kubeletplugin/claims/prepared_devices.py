"""Converts a driver's prepared devices to the claim's CDI spec and to the kubelet's response."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from ..base.json_types import JSON
from ..base.telemetry.logs import claim_fields
from ..base.text import did_you_mean, join_names
from ..cdi import ClaimSpecs, ContainerEdits
from ..driver import AllocatedDevice, Claim, DeviceStatus, PreparedDevice
from ..driver.data import plain_json
from ..driver.diagnostics.author_errors import missing_await_hint, replacement_message
from ..errors import BadAnswerError, HostPathMissingError, InvalidSpecError, printable
from ..host import Host
from ..metadata.paths import base_request
from .metadata_files import MetadataFiles
from .record import Record, allocated_json, identity, request_names

log = logging.getLogger(__name__)

_TEXT = (str, type(None))
_IN_ITS_FILE = ": the host is a described host; add the path to its YAML file, under `nodes:`, or under `classes:` of its PCI function"
_INSTALL = ": install what creates it on the host, such as its kernel driver, or correct the path"
_NUMBER = re.compile(r"\d+")
_Key = tuple[str, str, str | None, str]  # pool, device, share id, request


class PreparedResult(NamedTuple):
    """One device in the response to the kubelet."""

    requests: Sequence[str]
    pool: str
    device: str
    cdi_ids: Sequence[str]
    share_id: str | None


def prepared_result(record: Record) -> list[PreparedResult]:
    """Returns the devices of a prepared record in the form of the kubelet's response."""
    return [
        PreparedResult(
            request_names([d.get("request", "")]), d["pool"], d["device"], tuple(d.get("cdi") or ()), d.get("shareID")
        )
        for d in record.devices
    ]


def complete(
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
    :class:`ClaimError` if names of the claim are not allowed in the path of a metadata file.
    """
    matched = _matched(claim, prepared)
    recorded = {(*identity(d), d.get("request")): d for d in record.devices}
    edits: list[tuple[str, JSON]] = []
    devices: list[JSON] = []
    names: Counter[str] = Counter()
    for allocated, device in matched:
        entry = allocated_json(allocated)
        entry = {**recorded.get((*identity(entry), allocated.request), entry)}
        if device.edits:
            _check_paths(claim, device, host)
            name = specs.device_name(claim.uid, device.name, device.share_id)
            names[name] += 1
            if names[name] > 1:  # a device of the same name in another pool, or the same device for another request
                name += f".{names[name]}"
            edits.append((name, device.edits.json()))
            entry["cdi"] = [specs.device_id(name)]
        if device.data is not None:
            entry["data"] = _plain(claim, device)
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
    if not edits:
        record.cdi = None
        return
    try:
        record.cdi = specs.build(edits)
    except InvalidSpecError as e:
        raise BadAnswerError(
            f"claim {claim.namespace}/{claim.name}: prepare returned CDI edits that no runtime accepts: {e}"
        ) from None


def _matched(claim: Claim, prepared: Iterable[PreparedDevice]) -> list[tuple[AllocatedDevice, PreparedDevice]]:
    """Pairs every allocated device with its one prepared device."""
    shown = f"claim {claim.namespace}/{claim.name}"
    by_key: dict[_Key, PreparedDevice] = {}
    if not isinstance(prepared, Iterable):
        hint = replacement_message(prepared, "PreparedDevice", of="device.prepared()")
        raise BadAnswerError(f"{shown}: prepare returned {_type(prepared)}, not a list of PreparedDevice{hint}")
    for p in prepared:
        if not isinstance(p, PreparedDevice):
            raise BadAnswerError(
                f"{shown}: prepare returned a list with {_type(p)}, not PreparedDevice"
                f"{missing_await_hint(p) or ': return device.prepared(...) for each of claim.devices'}"
            )
        key = (p.pool, p.name, p.share_id, p.request)
        if not all(isinstance(k, _TEXT) for k in key):
            raise BadAnswerError(
                f"{shown}: prepare returned a PreparedDevice whose names are not text: use AllocatedDevice.prepared()"
            )
        fields = (
            ("edits", p.edits, ContainerEdits),
            ("status", p.status, DeviceStatus),
            ("metadata", p.metadata, Mapping),
        )
        for field, value, kind in fields:
            if not isinstance(value, kind) and not (value is None and kind is DeviceStatus):
                raise BadAnswerError(
                    f"{shown}: prepare returned device {p.name} with {field} of type {_type(value)}, not {kind.__name__}"
                    f"{missing_await_hint(value) or f': write {kind.__name__}(...)' * (kind is not Mapping)}"
                )
        if key in by_key:
            raise BadAnswerError(f"{shown}: prepare returned device {p.name} twice for request {p.request}")
        by_key[key] = p
    wanted = {(a.pool, a.name, a.share_id, a.request): a for a in claim.devices}
    if by_key.keys() != wanted.keys():
        raise _mismatch(shown, by_key.keys(), wanted.keys())
    return [(allocated, by_key[key]) for key, allocated in wanted.items()]


def _mismatch(shown: str, returned: Set[_Key], wanted: Set[_Key]) -> BadAnswerError:
    for pool, name, share, request in returned - wanted:
        return BadAnswerError(
            f"{shown}: prepare returned device {name} of pool {pool}{f', share {share},' if share else ''} for request "
            f"{request!r}, which is not allocated to it: use AllocatedDevice.prepared()"
        )
    missing = next(iter(wanted - returned))
    return BadAnswerError(f"{shown}: prepare returned no entry for device {missing[1]}: return one for every device")


def _lost_values(prepared: Iterable[tuple[AllocatedDevice, PreparedDevice]]) -> list[str]:
    """Returns the variables, mounts and device nodes that devices of one request set to different values.

    The runtime applies the edits of all devices of a container, and a later device replaces values of earlier devices. A container that
    uses a request gets all devices of the request; devices of different requests may be for different containers.
    """
    values: dict[tuple[str, str], tuple[str, JSON | str]] = {}  # device and value by request and name
    lost: dict[tuple[str, str], list[str]] = {}
    for allocated, device in prepared:
        for name, value in _named_edits(device.edits.json()):
            key = base_request(allocated.request), name
            first, of_first = values.setdefault(key, (device.name, value))
            if value != of_first:
                lost.setdefault(key, [first]).append(device.name)
    return [f"{name} of {join_names(devices)}" for (_, name), devices in lost.items()]


def _named_edits(edits: JSON) -> Iterator[tuple[str, JSON | str]]:
    """Yields the edits that have a unique name in a container (variables, mounts and device nodes), each with its value."""
    for variable in edits.get("env", ()):
        name, _, value = variable.partition("=")
        yield f"variable {name}", value
    for mount in edits.get("mounts", ()):
        yield f"mount {mount['containerPath']}", mount
    for node in edits.get("deviceNodes", ()):
        yield f"device node {node['path']}", node


def _check_paths(claim: Claim, device: PreparedDevice, host: Host) -> None:
    """Reports a missing path at once, because the runtime's own error comes late and is not repeated."""
    for path in device.edits.host_paths():
        seen = _seen(path, host.dev)
        # Symbolic links are not followed: their target may be visible only on the host.
        if seen is not None and not os.path.lexists(seen):
            missing = f"claim {claim.namespace}/{claim.name}: {path} of device {device.name} is not on the host"
            described = not host.is_real and host.dev == host.sysfs / "dev"
            raise HostPathMissingError(missing + (_near(seen) or (_IN_ITS_FILE if described else _INSTALL)))


def _near(missing: Path) -> str:
    """Returns a hint with a similar name in the same folder.

    Names that differ only in a number are skipped: they mean another device, such as the next card.
    """
    try:
        there = os.listdir(missing.parent)  # noqa: PTH208 - names
    except OSError:
        return ""
    kind = _NUMBER.sub("", missing.name)
    return did_you_mean(missing.name, [n for n in there if _NUMBER.sub("", n) != kind], 0.75)


def _seen(path: str, dev: Path) -> Path | None:
    """Returns where this process sees a path of the host; None if it cannot check the path."""
    if dev == Path("/dev"):
        return Path(path)
    below = Path(os.path.normpath(path))
    return dev / below.relative_to("/dev") if below.is_relative_to("/dev") else None


def _plain(claim: Claim, device: PreparedDevice) -> Any:
    try:
        return plain_json(device.data)
    except ValueError as e:
        raise BadAnswerError(f"claim {claim.namespace}/{claim.name}: device {device.name}: {e}") from None


def _type(value: object) -> str:
    return printable(type(value).__name__)
