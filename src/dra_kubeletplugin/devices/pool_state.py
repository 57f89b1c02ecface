"""The state of one pool: the driver's devices, the devices that vanished in use, and the form in which they are published.

:func:`updated_pool` computes the state from the driver's pool and the previous state. :func:`rendered_pool` then adds the published form:
the framework adds taints and a reason to unhealthy devices, and a taint to devices that vanished in use. If the API server has feature
gates off, the fields that depend on these gates are removed from devices, or the devices are not published. Both are pure functions,
which the inventory calls in a thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from ..base.json_types import ReadOnlyJSON
from ..base.telemetry.logs import log_sample
from ..driver.health import INFORMATIONAL
from ..errors import DraError, printable
from ..resourceapi.gated_fields import Gate, is_off, options_without, pool_row, removed_fields, without
from ..resourceapi.nodes import NODE_FIELDS, Nodes, Where
from ..resourceapi.pools import Pool
from ..resourceapi.types import CounterSet, Device, Taint
from ..resourceapi.unhealthy_reason import with_reason
from ..resourceapi.validation.slices import MAX_TAINTS
from .health_policy import HealthDecision, HealthPolicy
from .validation import (
    CounterSetEntry,
    DeviceEntry,
    by_name,
    counter_set_entry,
    counters_fault,
    device_from_record,
    name_of,
    pool_options,
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


GONE = Taint(key="dra-kubeletplugin.dev/gone", effect="NoSchedule")


class Rejection(NamedTuple):
    """A device that the API server rejected. The rejection applies only while the device has this JSON.

    Attributes:
        of_information: whether the reasons are only the device's informational taints, so that it is published without them.
    """

    encoded: bytes
    reason: str
    of_information: bool = False


@dataclass(frozen=True)
class PoolState:
    """The state of one pool. It is immutable.

    The attributes from ``devices`` on are the published form, from :func:`rendered_pool`. Do not use them if the pool has a fault.

    Attributes:
        per_device: whether each device has its own nodes.
        options: fields that apply to all devices.
        fault: why the driver's pool cannot be published at all; empty if it can.
        present: the devices that the driver returned, in its order.
        gone: devices that vanished while a claim holds them.
        sets: the counter sets.
        unnamed: the faults of items that are no devices or counter sets, or that have no name of their own: place in the driver's list,
            such as ``devices[3]`` → reason.
        health: the health of the present devices that the driver has reported.
        server_rejections: the API server's rejections by the name of the device.

        devices: the devices as they are published, in the driver's order; devices that vanished in use come last.
        counter_sets: the counter sets as they are published.
        fields: the fields of a slice's spec that apply to all devices: the nodes and the pool's options.
        gate_fault: why the pool cannot be published while feature gates are off; empty if it can.
        rejected: devices and counter sets that are not published, each with the reason.
        removed_fields: the fields that devices are published without, and the feature gates that are off, by the device's name.
        samples: one device, with all its fields, for each set of feature gates that devices depend on.
    """

    name: str
    nodes: Nodes = field(default_factory=Nodes.this)
    per_device: bool = False
    options: ReadOnlyJSON = field(default_factory=dict)
    fault: str = ""
    present: Mapping[str, DeviceEntry] = field(default_factory=dict)
    gone: Mapping[str, DeviceEntry] = field(default_factory=dict)
    sets: Mapping[str, CounterSetEntry] = field(default_factory=dict)
    unnamed: Mapping[str, str] = field(default_factory=dict)
    health: Mapping[str, HealthDecision] = field(default_factory=dict)
    server_rejections: Mapping[str, Rejection] = field(default_factory=dict)

    devices: Sequence[DeviceEntry] = ()
    counter_sets: Sequence[ReadOnlyJSON] = ()
    fields: ReadOnlyJSON = field(default_factory=dict)
    gate_fault: str = ""
    rejected: Mapping[str, str] = field(default_factory=dict)
    removed_fields: Mapping[str, tuple[Sequence[str], frozenset[str]]] = field(default_factory=dict)
    samples: Mapping[frozenset[str], ReadOnlyJSON] = field(default_factory=dict)

    def find(self, name: str) -> DeviceEntry | None:
        return self.present.get(name) or self.gone.get(name)

    def description(self, name: str) -> msgspec.Raw:
        """Returns a device with the counter sets that it consumes, as JSON, from which :func:`updated_pool` can rebuild the device."""
        entry = self.present[name]
        sets = [self.sets[s].json for s in entry.draws() if s in self.sets and self.sets[s].json]
        more = b',"counterSets":' + msgspec.json.encode(sets) if sets else b""
        return msgspec.Raw(b'{"device":' + (entry.encoded or b"null") + more + b"}")

    def discovered(self) -> tuple[object, ...]:
        """Returns the part of the state that comes from discovery, for a comparison: without health and the API server's rejections."""
        # Lists, because dicts with another order of keys are equal, but the order of devices is published.
        ordered = [list(items.items()) for items in (self.present, self.gone, self.sets, self.unnamed)]
        return self.name, self.nodes, self.per_device, self.options, self.fault, ordered


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
        return replace(before, present={}, gone=gone, sets=kept_sets, unnamed={}, health={})
    options, fault = pool_options(before.name, pool, node)
    validated = [validate_device(d, pool.nodes, before.present.get(name)) for name, d in found.items()]
    # By the name in the entry, which is the earlier string if the device is unchanged. A new string would keep the memory page alive that
    # it shares with the objects of the new result: 1.3 MiB for 2,048 devices.
    entries = {entry.name: entry for entry in validated}
    per_device = pool.nodes.where is not Where.THIS and (
        any(e.device.nodes is not None and not e.fault for e in validated)
        or any(e.has_own_nodes for e in gone.values())
    )
    found_sets, unnamed_sets = by_name(pool.counter_sets, CounterSet, "counter_sets")
    names = Counter(name_of(s, CounterSet) for s in pool.counter_sets)
    # Which of two sets is right is unknown, so the devices that consume it are not published.
    twice = CounterSetEntry({}, "the driver returned this name twice")
    sets = {name: twice if names[name] > 1 else validate_counter_set(item) for name, item in found_sets.items()}
    sets |= {name: kept for name, kept in kept_sets.items() if name not in sets}
    known = {**gone, **entries}
    rejections = {n: r for n, r in before.server_rejections.items() if n in known and known[n].encoded == r.encoded}
    health = {n: h for n, h in before.health.items() if n in entries}
    unnamed |= unnamed_sets
    return PoolState(
        before.name, pool.nodes, per_device, options, fault, entries, gone, sets, unnamed, health, rejections
    )


def _vanished(
    before: PoolState, present: Collection[str], held: Mapping[str, ReadOnlyJSON] | None
) -> tuple[dict[str, DeviceEntry], dict[str, CounterSetEntry]]:
    """Returns the devices that vanished while a claim holds them, and the counter sets that they consume; see :func:`updated_pool`.

    Args:
        present: names of the devices that the driver returned.
    """
    missing = {n: e for n, e in {**before.present, **before.gone}.items() if n not in present}
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


def rendered_pool(state: PoolState, policy: HealthPolicy, off: frozenset[str], node: str) -> PoolState:
    """Returns the pool's state with the published form.

    Args:
        policy: the taints of unhealthy devices.
        off: gates that the API server has off.
        node: the node whose pools are published.
    """
    options = options_without(state.options, off, of_this_node=state.nodes.where is Where.THIS)
    gate_fault = options if isinstance(options, str) else ""
    if state.per_device and Gate.PARTITIONS in off:
        gate_fault = f"{is_off(Gate.PARTITIONS)}, and {pool_row('perDeviceNodeSelection').refuse}"
    rejected = dict(state.unnamed)
    rejected |= {f"counter set {printable(n)}": s.fault for n, s in state.sets.items() if s.fault}
    devices: list[DeviceEntry] = []
    removed: dict[str, tuple[Sequence[str], frozenset[str]]] = {}
    samples: dict[frozenset[str], ReadOnlyJSON] = {}
    for entry in (*state.present.values(), *state.gone.values()):
        name = entry.name
        if fault := _fault_of(entry, state, seek=len(rejected) < _MAX_HINTS):
            rejected[name] = fault
            continue
        taints, reason = _added(entry, state, policy)
        gates = entry.gates.union([Gate.TAINTS] if taints else [], [Gate.PARTITIONS] if state.per_device else [])
        if gates and gates not in samples:
            samples[gates] = _whole(entry, state, taints, reason)
        rejection = _rejection_of(entry, state)
        changed = taints or reason or state.per_device or rejection
        if not changed and gates.isdisjoint(off):
            devices.append(entry)  # published as the driver returned it
            continue
        json = _whole(entry, state, taints, reason)
        if rejection is not None:
            json = {**json, "taints": [t for t in json.get("taints") or () if t["effect"] != INFORMATIONAL]}
        published = without(json, off)
        if isinstance(published, str):
            rejected[name] = published
            continue
        devices.append(entry.with_json(published))
        if fields := removed_fields(json, published):
            removed[name] = fields, gates & off
    if state.fault:
        return replace(state, devices=(), counter_sets=(), fields={}, rejected=rejected, samples={})
    nodes = {"perDeviceNodeSelection": True} if state.per_device else state.nodes.of_slice(node)
    return replace(
        state,
        devices=devices,
        counter_sets=[] if Gate.PARTITIONS in off else [s.json for s in state.sets.values() if not s.fault],
        fields=nodes if isinstance(options, str) else {**nodes, **options},
        gate_fault=gate_fault,
        rejected=rejected,
        removed_fields=removed,
        samples=samples,
    )


def _fault_of(entry: DeviceEntry, state: PoolState, *, seek: bool) -> str:
    """Returns why a device must not be published, whatever gates are off; empty if it may be."""
    if entry.fault:
        return entry.fault
    if entry.consumed and (fault := counters_fault(entry, state.sets, seek=seek)):
        return fault
    rejection = _rejection_of(entry, state)
    return f"rejected by the API server: {rejection.reason}" if rejection and not rejection.of_information else ""


def _rejection_of(entry: DeviceEntry, state: PoolState) -> Rejection | None:
    found = state.server_rejections.get(entry.name)
    return found if found is not None and found.encoded == entry.encoded else None


def _added(entry: DeviceEntry, state: PoolState, policy: HealthPolicy) -> tuple[Sequence[ReadOnlyJSON], str]:
    """Returns the taints that the framework adds to a device, and the reason why the device is unhealthy."""
    if entry.name in state.gone:
        return [GONE.json()], ""
    decision = state.health.get(entry.name)
    if decision is None:
        return [], ""
    return policy.taints_for(decision.fault, decision.information), decision.reason if decision.fault else ""


def _whole(entry: DeviceEntry, state: PoolState, added: Sequence[ReadOnlyJSON], reason: str) -> ReadOnlyJSON:
    """Returns a device as it is published while no gate is off: with its nodes, and as :func:`_marked` returns it."""
    device = _marked(entry.json, added, reason)
    if state.per_device and device.keys().isdisjoint(NODE_FIELDS):
        return {**device, **state.nodes.of_device()}
    return device


def _marked(device: ReadOnlyJSON, added: Sequence[ReadOnlyJSON], reason: str) -> ReadOnlyJSON:
    """Returns ``device`` with the taints ``added``, and with the reason why it is unhealthy.

    A taint of the driver with the same key is removed. If there are too many taints, the driver's last taints are removed too.
    """
    if reason:
        device = with_reason(device, reason)
    if not added:
        return device
    keys = {t["key"] for t in added}
    taints = [t for t in device.get("taints") or [] if t["key"] not in keys]
    # The taints for bad health come last: `dra explain` adds the reason to the last taint.
    return {**device, "taints": [*taints[: max(0, MAX_TAINTS - len(added))], *added[-MAX_TAINTS:]]}
