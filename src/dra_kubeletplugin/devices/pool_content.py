"""Renders a pool's state into the form in which it is published, as a pure function.

The framework adds taints and a reason to unhealthy devices, and a taint to devices that vanished in use. If the API server has feature
gates off, the fields that depend on these gates are removed from devices, or the devices are not published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..base.json_types import ReadOnlyJSON
from ..resourceapi.gated_fields import Gate, options_without, removed_fields, without
from ..resourceapi.nodes import Nodes, Where
from ..resourceapi.types import Taint
from ..resourceapi.unhealthy_reason import with_reason
from ..resourceapi.validation.slices import MAX_TAINTS
from .health_policy import HealthMark
from .pool_state import PoolState
from .validation import DeviceEntry

GONE = Taint(key="dra-kubeletplugin.dev/gone", effect="NoSchedule")
_GONE = HealthMark([GONE.json()], "")


class RenderedDevice(NamedTuple):
    """A device whose published form differs from the driver's form.

    ``published`` is the published form; None if the device is not published, with the ``reason``. The device is rendered again only if
    ``entry``, ``mark`` or ``off`` changes.
    """

    entry: DeviceEntry
    mark: HealthMark | None  # added by the framework
    off: frozenset[Gate]  # gates that the API server has off
    published: DeviceEntry | None
    reason: str
    removed_fields: Sequence[str]  # fields of ``entry`` that ``published`` lacks


class PoolContent(NamedTuple):
    """A pool as it should be published.

    Attributes:
        nodes: the nodes of devices that do not select their own nodes.
        fields: the fields of a slice's spec that apply to all devices: the nodes and the pool's options.
        fault: why the pool is not published at all; empty if it is published.
        rejected: devices and counter sets that are not published, each with the reason.
        rendered: the devices whose published form differs from the driver's.
    """

    name: str
    nodes: Nodes
    fields: ReadOnlyJSON
    devices: Sequence[DeviceEntry]
    counter_sets: Sequence[ReadOnlyJSON]
    fault: str
    rejected: Mapping[str, str]
    rendered: Mapping[str, RenderedDevice]


def render_pool(
    state: PoolState,
    marks: Mapping[str, HealthMark],
    off: frozenset[Gate],
    node: str,
    before: PoolContent | None,
) -> PoolContent:
    """Returns the pool as it is published.

    Args:
        state: the pool.
        marks: health taints and reasons, by device.
        off: gates that the API server has off.
        node: the node whose pools are published.
        before: the last result for this pool, whose unchanged rendered devices are reused.
    """
    rejected, fault = dict(state.rejected), state.fault
    options = options_without(state.options, off, of_this_node=state.nodes.where is Where.THIS)
    if state.per_device and Gate.PARTITIONS in off:
        gate = Gate.PARTITIONS.value
        fault = (
            fault or f"the API server's feature gate {gate} is off, and each device of the pool selects its own nodes"
        )
    if isinstance(options, str):
        fault, options = fault or options, {}
    if fault:
        return PoolContent(state.name, state.nodes, {}, [], [], fault, rejected, {})
    devices: list[DeviceEntry] = []
    rendered: dict[str, RenderedDevice] = {}
    for entry in state.publishable():
        mark = _GONE if entry.name in state.gone else marks.get(entry.name)
        if mark is None and entry.gates.isdisjoint(off):
            devices.append(entry)
            continue
        known = before.rendered.get(entry.name) if before else None
        if known is None or known.entry is not entry or (known.mark, known.off) != (mark, off):
            known = _render_device(entry, mark, off)
        rendered[entry.name] = known
        if known.published:
            devices.append(known.published)
        else:
            rejected[entry.name] = known.reason
    sets = [] if Gate.PARTITIONS in off else [s.json for s in state.sets.values() if not s.fault]
    nodes = {"perDeviceNodeSelection": True} if state.per_device else state.nodes.of_slice(node)
    return PoolContent(state.name, state.nodes, {**nodes, **options}, devices, sets, "", rejected, rendered)


def _render_device(entry: DeviceEntry, mark: HealthMark | None, off: frozenset[Gate]) -> RenderedDevice:
    device = entry.json if mark is None else _marked(entry.json, mark)
    found = without(device, off)
    if isinstance(found, str):
        return RenderedDevice(entry, mark, off, None, found, ())
    return RenderedDevice(entry, mark, off, entry.with_json(found), "", removed_fields(device, found) if off else ())


def _marked(device: ReadOnlyJSON, mark: HealthMark) -> ReadOnlyJSON:
    """Returns ``device`` with the taints and the reason of ``mark``.

    A taint of the driver with the same key is removed. If there are too many taints, the driver's last taints are removed too.
    """
    if mark.reason:
        device = with_reason(device, mark.reason)
    if not mark.taints:
        return device
    keys = {t["key"] for t in mark.taints}
    taints = [t for t in device.get("taints") or [] if t["key"] not in keys]
    # The taints for bad health come last: `dra explain` adds the reason to the last taint.
    return {**device, "taints": [*taints[: max(0, MAX_TAINTS - len(mark.taints))], *mark.taints[-MAX_TAINTS:]]}


def sample_devices(state: PoolState, marks: Mapping[str, HealthMark]) -> Iterator[tuple[frozenset[Gate], ReadOnlyJSON]]:
    """Yields one device for each set of gates that devices depend on, as it would be sent if no gate were off."""
    seen = set[frozenset[Gate]]()
    for entry in state.publishable():
        mark = _GONE if entry.name in state.gone else marks.get(entry.name)
        gates = entry.gates if mark is None or not mark.taints else entry.gates | {Gate.TAINTS}
        if gates and gates not in seen:
            seen.add(gates)
            yield gates, entry.json if mark is None else _marked(entry.json, mark)
