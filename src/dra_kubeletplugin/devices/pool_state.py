"""The state of one pool: its devices, the devices that vanished in use, its counter sets, and what cannot be published."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from ..base.telemetry.logs import log_sample
from ..errors import DraError, printable
from ..resourceapi.decoding import read_device
from ..resourceapi.gated_fields import Gate, lost, options_without, without
from ..resourceapi.nodes import Nodes, Where
from ..resourceapi.types import Device, Taint
from .validation import (
    EncodedDevice,
    ParsedPool,
    ValidatedDevice,
    counters_fault,
    encode_device,
    recalled_device,
    recalled_set,
    tainted,
    validate_counter_set,
    validate_device,
)

log = logging.getLogger(__name__)
Held = Mapping[tuple[str, str], Mapping[str, Any]]
"""Pool and name of each device that a claim holds, with the description of the device; empty if unknown."""
GONE = Taint(key="dra-kubeletplugin.dev/gone", effect="NoSchedule")
_GONE = GONE.json()
_BATCH = 16  # devices that are validated before other tasks on the event loop run
JSON = Mapping[str, Any]


class DeviceKey(NamedTuple):
    """Identifies a device: names are unique in a pool."""

    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device with the result of its validation."""

    device: Device
    validated: ValidatedDevice


_MAX_HINTS = 8  # faults of a pool for which the nearest name is searched


class _EncodedEntry(NamedTuple):
    """A device encoded with the framework's taint, for the gates that are ``off``; or the reason why it is not published."""

    validated: ValidatedDevice
    taint: JSON | None
    off: frozenset[Gate]
    result: EncodedDevice | str
    lost: tuple[str, ...] = ()  # fields that it is published without


class PoolContent(NamedTuple):
    """A pool as it should be in slices."""

    name: str
    nodes: Nodes
    per_device: bool
    devices: list[EncodedDevice]
    counter_sets: list[JSON]
    options: JSON  # fields that apply to all devices


@dataclass(frozen=True)
class PoolState:
    """The state of one pool. Each result of the driver creates a new one, see :func:`updated_pool`.

    ``refused`` contains the API server's rejections: name → the rejected JSON, the reason.
    """

    name: str
    nodes: Nodes = field(default_factory=Nodes.this)
    per_device: bool = False
    options: JSON = field(default_factory=dict)
    fault: str = ""
    entries: Mapping[str, DeviceEntry] = field(default_factory=dict)
    gone: Mapping[str, DeviceEntry] = field(default_factory=dict)
    sets: Mapping[str, ValidatedDevice] = field(default_factory=dict)
    refused: Mapping[str, tuple[bytes, str]] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    """Devices and counter sets that are not published, each with the reason; ``""`` is the pool itself."""
    made: dict[str, _EncodedEntry] = field(default_factory=dict, compare=False, repr=False)
    """A cache of encoded devices whose published form differs from the driver's, such as devices with a taint of the framework."""

    def find(self, name: str) -> DeviceEntry | None:
        return self.entries.get(name) or self.gone.get(name)

    def description(self, name: str) -> msgspec.Raw:
        """Returns a device with the counter sets that it consumes, as JSON. :func:`updated_pool` needs it if the device vanishes."""
        entry = self.entries[name]
        sets = [self.sets[s].shape for s in entry.device.consumes_counters if s in self.sets and self.sets[s].shape]
        more = b',"counterSets":[' + b",".join(sets) + b"]" if sets else b""
        return msgspec.Raw(b'{"device":' + (entry.validated.shape or b"null") + more + b"}")

    def emptied(self) -> ParsedPool:
        """Returns this pool without devices, in the form of a parsed result of the driver."""
        return ParsedPool(self.name, self.nodes, {}, {}, self.fault, self.per_device, self.options)

    def content(self, taints: Mapping[str, JSON], off: Collection[Gate]) -> PoolContent | None:
        """Returns the pool as it is published, with taints for bad health and for devices that vanished in use.

        Returns None if the pool cannot be published.

        Args:
            taints: taints for bad health, by device.
            off: gates that are off; fields that depend on them are left out.
        """
        options = self._options(off)
        if self.fault or (self.per_device and Gate.PARTITIONS in off) or isinstance(options, str):
            return None
        sets = [j.json for j in self.sets.values() if not j.fault] if Gate.PARTITIONS not in off else []
        if not taints and not off and not self.gone:  # the usual case, kept fast for thousands of devices
            plain = [e.validated.encoded_device(n) for n, e in self.entries.items() if n not in self.rejected]
            return PoolContent(self.name, self.nodes, self.per_device, plain, sets, options)
        found = [self._encoded(name, entry, taints, off) for name, entry in self._publishable()]
        sent = [f for f in found if not isinstance(f, str)]
        return PoolContent(self.name, self.nodes, self.per_device, sent, sets, options)

    def _options(self, off: Collection[Gate]) -> JSON | str:
        return options_without(self.options, off, of_this_node=self.nodes.where is Where.THIS)

    def withheld(self, taints: Mapping[str, JSON], off: Collection[Gate]) -> dict[str, str]:
        """Returns the devices that :meth:`content` leaves out because of gates that are ``off``, each with the reason.

        The name ``""`` stands for the pool itself.
        """
        if self.per_device and Gate.PARTITIONS in off:
            gate = Gate.PARTITIONS.value
            return {
                "": f"the API server's feature gate {gate} is off, and each device of the pool selects its own nodes"
            }
        if isinstance(why := self._options(off), str):
            return {"": why}
        found = ((name, self._encoded(name, entry, taints, off)) for name, entry in self._publishable())
        return {name: f for name, f in found if isinstance(f, str)}

    def published_without(self, taints: Mapping[str, JSON], off: Collection[Gate]) -> dict[str, tuple[str, ...]]:
        """Returns the devices that are published without some fields because of gates that are ``off``, with these fields."""
        out = {}
        for name, entry in self._publishable():
            if not entry.validated.gates.isdisjoint(off) and not isinstance(
                self._encoded(name, entry, taints, off), str
            ):
                out[name] = self.made[name].lost
        return {name: fields for name, fields in out.items() if fields}

    async def warm(self, taints: Mapping[str, JSON], off: Collection[Gate]) -> None:
        """Encodes devices in advance, and lets other tasks run in between; :meth:`content` and :meth:`withheld` are fast afterwards."""
        for i, (name, entry) in enumerate(list(self._publishable())):
            self._encoded(name, entry, taints, off)
            if i % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)

    def samples(self, taints: Mapping[str, JSON]) -> Mapping[frozenset[Gate], JSON]:
        """Returns one device for each set of gates that a device depends on, as it would be sent if no gate were off."""
        out: dict[frozenset[Gate], JSON] = {}
        for name, entry in self._publishable():
            taint = self._taint(name, taints)
            gates = entry.validated.gates if taint is None else entry.validated.gates | {Gate.TAINTS}
            if gates and gates not in out:
                out[gates] = entry.validated.json if taint is None else tainted(entry.validated.json, taint)
        return out

    def _publishable(self) -> Iterator[tuple[str, DeviceEntry]]:
        """Yields the devices that can be published, in order; devices that vanished in use come last."""
        for entries in (self.entries, self.gone):
            for name, entry in entries.items():
                if name not in self.rejected:
                    yield name, entry

    def _taint(self, name: str, taints: Mapping[str, JSON]) -> JSON | None:
        """Returns the taint that the framework adds to a device."""
        return _GONE if name in self.gone else taints.get(name)

    def _encoded(
        self, name: str, entry: DeviceEntry, taints: Mapping[str, JSON], off: Collection[Gate]
    ) -> EncodedDevice | str:
        """Returns a device as it is published, or the reason why it is not."""
        validated, taint = entry.validated, self._taint(name, taints)
        if taint is None and (not off or validated.gates.isdisjoint(off)):
            return validated.encoded_device(name)
        known = self.made.get(name)
        if known is not None and known.validated is validated and known.taint == taint and known.off == off:
            return known.result
        device = validated.json if taint is None else tainted(validated.json, taint)
        found = without(device, off)
        result = found if isinstance(found, str) else encode_device(found)
        missing = () if isinstance(found, str) else tuple(lost(device, found))
        self.made[name] = _EncodedEntry(validated, taint, frozenset(off), result, missing)
        return result

    def same(self, other: PoolState) -> bool:
        """Whether both states would be published alike, ignoring health and the API server's rejections. The order of devices counts."""
        return (
            (self.nodes, self.per_device, self.options, self.fault)
            == (other.nodes, other.per_device, other.options, other.fault)
            and not _differ(_validated(self.entries), _validated(other.entries))
            and not _differ(_validated(self.gone), _validated(other.gone))
            and not _differ(self.sets, other.sets)
        )


async def updated_pool(before: PoolState, pool: ParsedPool, used: Mapping[str, JSON] | None) -> PoolState:
    """Returns the pool's state after a new result of the driver. Devices keep the driver's order.

    Args:
        before: the state until now.
        pool: the new result.
        used: devices that claims hold, each with its :meth:`PoolState.description`, which is empty if unknown. If they vanish, they and
            their counter sets stay. None if these devices are unknown: then all vanished devices stay.
    """
    per_device = pool.per_device
    alike = (before.nodes, before.per_device) == (pool.nodes, per_device)
    entries: dict[str, DeviceEntry] = {}
    for i, (name, device) in enumerate(pool.devices.items()):
        entries[name] = _entry(device, pool.nodes, per_device, before.entries.get(name) if alike else None)
        if i % _BATCH == _BATCH - 1:
            await asyncio.sleep(0)
    vanished = {n: e for n, e in before.entries.items() if n not in pool.devices}
    missing = {n: e for n, e in {**vanished, **before.gone}.items() if n not in pool.devices}
    gone = {n: e for n, e in missing.items() if used is None or n in used}
    sets_before = dict(before.sets)
    for name, described in (used or {}).items():
        if described and name not in pool.devices and name not in gone:
            try:
                gone[name], recalled_sets = _recalled(name, described)
            except (AttributeError, KeyError, TypeError, ValueError, DraError) as e:
                log.warning(
                    "cannot publish a vanished device: its record is not readable: %s", e, extra={"device": name}
                )
            else:
                sets_before = {**recalled_sets, **sets_before}
    vanished_now = [n for n in gone if n not in before.gone]
    log_sample(
        log, logging.WARNING, "device vanished while a claim uses it: it stays published with a taint", vanished_now,
        None, lambda name: {"device": name},
    )  # fmt: skip
    sets = {n: validate_counter_set(s, before.sets.get(n)) for n, s in pool.counter_sets.items()}
    for entry in gone.values():
        for name in entry.device.consumes_counters:
            if name not in sets and name in sets_before:
                sets[name] = sets_before[name]
    made = {n: m for n, m in before.made.items() if n in entries or n in gone}
    return checked(
        PoolState(
            pool.name, pool.nodes, per_device, pool.options, pool.fault, entries, gone, sets, before.refused, made=made
        )
    )


def checked(state: PoolState) -> PoolState:
    """Returns ``state`` with a new ``rejected``: devices and counter sets that are invalid, or that the API server rejected."""
    out = {"": state.fault} if state.fault else {}
    out |= {f"counter set {printable(n)}": j.fault for n, j in state.sets.items() if j.fault}
    known = {**state.gone, **state.entries}
    counters = {n: j.json["counters"] for n, j in state.sets.items() if not j.fault}
    refused = {n: r for n, r in state.refused.items() if n in known and known[n].validated.shape == r[0]}
    for name, entry in known.items():
        fault = entry.validated.fault or counters_fault(
            entry.validated, state.sets, counters, seek=len(out) < _MAX_HINTS
        )
        if not fault and name in refused:
            fault = f"rejected by the API server: {refused[name][1]}"
        if fault:
            out[name] = fault
    return replace(state, refused=refused, rejected=out)


def _entry(device: Device, nodes: Nodes, per_device: bool, before: DeviceEntry | None) -> DeviceEntry:
    """Returns the previous entry if nothing changed, so that a discovery every minute does not allocate new objects."""
    validated = validate_device(device, nodes, per_device=per_device, before=before.validated if before else None)
    if before is not None and validated is before.validated and _same(device, before.device):
        return before
    return DeviceEntry(device, validated)


def _recalled(name: str, described: JSON) -> tuple[DeviceEntry, dict[str, ValidatedDevice]]:
    """Rebuilds a device that vanished while no plugin ran, and its counter sets, from a record.

    Raises:
        Exception: anything that reading the record raises, because another version may have written it.
    """
    raw = described["device"]
    device = read_device(raw)
    if device.name != name:
        raise ValueError(f"it contains device {printable(device.name)}")
    sets = {s["name"]: recalled_set(s) for s in described.get("counterSets") or ()}
    return DeviceEntry(device, recalled_device(raw)), sets


def _validated(entries: Mapping[str, DeviceEntry]) -> dict[str, ValidatedDevice]:
    return {n: e.validated for n, e in entries.items()}


def _differ(now: Mapping[str, ValidatedDevice], before: Mapping[str, ValidatedDevice]) -> bool:
    return list(now) != list(before) or any(now[n] is not before[n] and now[n] != before[n] for n in now)


def _same(device: Device, before: Device) -> bool:
    try:
        return device.data is before.data and device == before
    except Exception:  # an author's object may raise anything
        return False
