"""The state of one pool: its devices, the devices that vanished in use, its counter sets, and what cannot be published.

:func:`updated_pool` computes the state from the driver's pool and the previous state. The inventory keeps one state for each pool.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from ..base.json_types import ReadOnlyJSON
from ..base.telemetry.logs import log_sample
from ..errors import DraError, printable
from ..resourceapi.nodes import Nodes, Where
from ..resourceapi.pools import Pool
from ..resourceapi.types import CounterSet, Device
from .validation import (
    CounterSetEntry,
    DeviceEntry,
    by_name,
    counter_set_entry,
    counters_fault,
    device_from_record,
    name_of,
    pool_options,
    selects_own_nodes,
    validate_counter_set,
    validate_device,
)

log = logging.getLogger(__name__)
Held = Mapping[tuple[str, str], Mapping[str, Any]]
"""The devices that claims hold: pool and name → the device's :meth:`PoolState.description`, which is empty if it is unknown."""
_MAX_HINTS = 8  # faults of a pool for which a similar name is suggested


class DeviceKey(NamedTuple):
    """Identifies a device. Device names are unique in a pool."""

    pool: str
    device: str


@dataclass(frozen=True)
class PoolState:
    """The state of one pool. It is immutable: :func:`updated_pool` creates a new one from each result of the driver.

    Attributes:
        per_device: whether each device has its own nodes.
        options: fields that apply to all devices.
        fault: why the pool cannot be published at all; empty if it can.
        devices: the driver's devices, in the driver's order.
        gone: devices that vanished while a claim holds them.
        sets: the counter sets.
        unnamed: the faults of items that are no devices or counter sets, or that have no name of their own: place in the driver's list,
            such as ``devices[3]`` → reason.
        server_rejections: devices that the API server rejected: name → (rejected JSON, reason). A rejection applies only while the
            device has this JSON.
    """

    name: str
    nodes: Nodes = field(default_factory=Nodes.this)
    per_device: bool = False
    options: ReadOnlyJSON = field(default_factory=dict)
    fault: str = ""
    devices: Mapping[str, DeviceEntry] = field(default_factory=dict)
    gone: Mapping[str, DeviceEntry] = field(default_factory=dict)
    sets: Mapping[str, CounterSetEntry] = field(default_factory=dict)
    unnamed: Mapping[str, str] = field(default_factory=dict)
    server_rejections: Mapping[str, tuple[bytes, str]] = field(default_factory=dict)

    def find(self, name: str) -> DeviceEntry | None:
        return self.devices.get(name) or self.gone.get(name)

    @cached_property
    def rejected(self) -> Mapping[str, str]:
        """All devices and counter sets that are not published, each with the reason."""
        out = dict(self.unnamed)
        out |= {f"counter set {printable(n)}": s.fault for n, s in self.sets.items() if s.fault}
        for name, entry in {**self.gone, **self.devices}.items():
            fault = entry.fault
            if not fault and entry.consumed:
                fault = counters_fault(entry, self.sets, seek=len(out) < _MAX_HINTS)
            rejected_json, reason = self.server_rejections.get(name, (b"", ""))
            if not fault and reason and rejected_json == entry.encoded:
                fault = f"rejected by the API server: {reason}"
            if fault:
                out[name] = fault
        return out

    def publishable(self) -> Iterator[DeviceEntry]:
        """Yields the devices that can be published, in order; devices that vanished in use come last."""
        for entries in (self.devices, self.gone):
            yield from (entry for name, entry in entries.items() if name not in self.rejected)

    def description(self, name: str) -> msgspec.Raw:
        """Returns a device with the counter sets that it consumes, as JSON, from which :func:`updated_pool` can rebuild the device."""
        entry = self.devices[name]
        sets = [self.sets[s].json for s in entry.draws() if s in self.sets and self.sets[s].json]
        more = b',"counterSets":' + msgspec.json.encode(sets) if sets else b""
        return msgspec.Raw(b'{"device":' + (entry.encoded or b"null") + more + b"}")

    def described(self) -> tuple[object, ...]:
        """Returns a value that is equal for two states with the same published form, without health and the API server's rejections."""
        items = (self.devices, self.gone, self.sets, self.unnamed)
        order = list(
            map(list, items)
        )  # dicts with another order of keys are equal, but the order of devices is published
        return self.name, self.nodes, self.per_device, self.options, self.fault, items, order


def updated_pool(before: PoolState, pool: Pool | None, node: str, held: Mapping[str, ReadOnlyJSON] | None) -> PoolState:
    """Returns the pool's state after a new result of the driver. Devices keep the driver's order.

    Args:
        before: the previous state.
        pool: the new result, with checked types and unique device names; None if the driver no longer returns the pool.
        node: the node whose pools are published.
        held: the devices of this pool that claims hold: name → :meth:`PoolState.description`, which is empty if it is unknown. If such
            a device vanishes, it stays, with its counter sets. None if the claims cannot be read: then all vanished devices stay.
    """
    found, unnamed = by_name(pool.devices if pool else (), Device, "devices")
    gone, kept_sets = _vanished(before, found, held)
    if pool is None:
        return replace(before, devices={}, gone=gone, sets=kept_sets, unnamed={})
    options, fault = pool_options(before.name, pool, node)
    per_device = pool.nodes.where is not Where.THIS and (
        any(map(selects_own_nodes, found.values())) or any(e.has_own_nodes for e in gone.values())
    )
    if per_device:
        gone = {name: entry.with_nodes(pool.nodes) for name, entry in gone.items()}
    devices = {
        name: validate_device(d, pool.nodes, per_device=per_device, before=before.devices.get(name))
        for name, d in found.items()
    }
    found_sets, unnamed_sets = by_name(pool.counter_sets, CounterSet, "counter_sets")
    names = Counter(name_of(s, CounterSet) for s in pool.counter_sets)
    # Which of two sets is right is unknown, so the devices that consume it are not published.
    twice = CounterSetEntry({}, "the driver returned this name twice")
    sets = {name: twice if names[name] > 1 else validate_counter_set(item) for name, item in found_sets.items()}
    sets |= {name: kept for name, kept in kept_sets.items() if name not in sets}
    known = {**gone, **devices}
    rejections = {n: r for n, r in before.server_rejections.items() if n in known and known[n].encoded == r[0]}
    return PoolState(
        before.name, pool.nodes, per_device, options, fault, devices, gone, sets, unnamed | unnamed_sets, rejections
    )


def _vanished(
    before: PoolState, present: Collection[str], held: Mapping[str, ReadOnlyJSON] | None
) -> tuple[dict[str, DeviceEntry], dict[str, CounterSetEntry]]:
    """Returns the devices that vanished while a claim holds them, and the counter sets that they consume; see :func:`updated_pool`.

    Args:
        present: names of the devices that the driver returned.
    """
    missing = {n: e for n, e in {**before.devices, **before.gone}.items() if n not in present}
    gone = {n: e for n, e in missing.items() if held is None or n in held}
    sets = dict(before.sets)
    for name, described in (held or {}).items():
        if described and name not in present and name not in gone:
            try:
                gone[name], recorded_sets = _read_record(name, described)
            except (AttributeError, KeyError, TypeError, ValueError, DraError) as e:
                log.warning(
                    "cannot publish a vanished device: its record is not readable: %s", e, extra={"device": name}
                )
            else:
                sets = {**recorded_sets, **sets}
    log_sample(
        log,
        logging.WARNING,
        "device vanished while a claim uses it: it stays published with a taint",
        [n for n in gone if n not in before.gone],
        None,
        lambda name: {"device": name},
    )
    consumed = {name for entry in gone.values() for name in entry.draws()}
    return gone, {name: s for name, s in sets.items() if name in consumed}


def _read_record(name: str, described: ReadOnlyJSON) -> tuple[DeviceEntry, dict[str, CounterSetEntry]]:
    """Rebuilds a device and its counter sets from a :meth:`PoolState.description`, for a device that vanished while no plugin ran.

    Raises:
        AttributeError, KeyError, TypeError, ValueError, DraError: the description is invalid; another version may have written it.
    """
    entry = device_from_record(described["device"])
    if entry.name != name:
        raise ValueError(f"it contains device {printable(entry.name)}")
    return entry, {s["name"]: counter_set_entry(s) for s in described.get("counterSets") or ()}


__all__ = ["DeviceEntry", "DeviceKey", "Held", "PoolState", "updated_pool"]
