"""What of a driver's answer may be published: what the API server would refuse is found device by device, before it is sent.

A slice with one bad device is refused whole, so a bad device must never get into one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from ..base.text import did_you_mean
from ..driver.diagnostics.author_errors import instead_of_item, replacement_message
from ..errors import DraError, DriverError, describe, is_a, printable
from ..resourceapi.gated_fields import Gate, gates_of
from ..resourceapi.nodes import Nodes, Where
from ..resourceapi.pools import MAX_DEVICES, Pool
from ..resourceapi.types import CounterSet, Device, Taint, counter_set_faults, device_faults
from ..resourceapi.validation.common import pool_name
from ..resourceapi.validation.slices import MAX_TAINTS, max_devices, slice_options

MAX_POOLS = 4096
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")
MAX_BYTES = 512 * 1024  # of one device or counter set as JSON: two in a slice stay below what etcd takes
JSON = Mapping[str, Any]


class EncodedDevice(NamedTuple):
    """A device as it would be sent, as JSON text, and what it takes of a slice: a tenth of what its objects would hold."""

    name: str
    encoded: bytes
    consumed: int  # counters that it draws from
    most: int  # devices that a slice with it may have


class _Amount(msgspec.Struct):
    value: str


class _Consumption(msgspec.Struct, rename="camel"):
    counter_set: str
    counters: dict[str, _Amount]


class _Draws(msgspec.Struct, rename="camel"):
    """What of a device says what it draws: the rest is passed over."""

    consumes_counters: list[_Consumption] = []


@dataclass(frozen=True, slots=True)
class ValidatedDevice:
    """A device or counter set, as JSON text as it would be sent. ``fault`` is why it may not be.

    ``shape`` tells whether it changed; it is empty where there is nothing that could be sent. ``gates`` are those of the server
    that it depends on.
    """

    shape: bytes
    fault: str = ""
    consumed: int = 0
    most: int = 0
    gates: frozenset[Gate] = frozenset()

    @property
    def json(self) -> JSON:
        """Decoded anew each time."""
        return decoded(self.shape) if self.shape else {}

    def draws(self) -> dict[str, dict[str, str]]:
        """Counter set → counter → amount that a device draws."""
        if not self.consumed:
            return {}
        found = msgspec.json.decode(self.shape, type=_Draws).consumes_counters
        return {c.counter_set: {n: a.value for n, a in c.counters.items()} for c in found}

    def parcel(self, name: str) -> EncodedDevice:
        return EncodedDevice(name, self.shape, self.consumed, self.most)


def decoded(encoded: bytes) -> dict[str, Any]:
    """The object that was encoded."""
    out: dict[str, Any] = msgspec.json.decode(encoded)
    return out


class ParsedPool(NamedTuple):
    """A pool of a driver's answer, whose names are known to be unique."""

    name: str
    nodes: Nodes
    devices: Mapping[str, Device]
    counter_sets: Mapping[str, CounterSet | None]  # None: two of this name
    fault: str  # why the pool cannot be published at all
    per_device: bool  # whether each device says on which nodes it is
    options: JSON  # what is said of all devices at once


def validate_device(
    device: Device, nodes: Nodes, *, per_device: bool, before: ValidatedDevice | None = None
) -> ValidatedDevice:
    """Looks at one device of a pool that is of ``nodes``. ``before`` saves the work where nothing changed. Raises nothing."""
    try:
        built = device.json()
        own = any(f in built for f in _NODE_FIELDS)
        if per_device and not own:
            built |= nodes.of_device()
        shape = msgspec.json.encode(built)
        if before is not None and before.shape == shape:
            return before
        faults = [] if device.was_checked(shape) else device.faults(built)
        if own and nodes.where is Where.THIS:
            faults.append("nodes: a device of a pool of this node has none of its own: give the pool other nodes")
        if device.nodes is not None and device.nodes.where is Where.THIS:
            faults.append("nodes: this node is said for a pool, not for a device")
        consumed, most = _takes(built)
        gates = gates_of(built)
    except DraError as e:
        return ValidatedDevice(b"", printable(e))
    except Exception as e:  # an author's object may be anything inside
        return ValidatedDevice(b"", describe(e))
    return ValidatedDevice(shape, _told(faults, shape), consumed, most, gates)


def validate_counter_set(counter_set: CounterSet | None, before: ValidatedDevice | None = None) -> ValidatedDevice:
    """Looks at one counter set, as :func:`validate_device` does; None for one that was answered twice."""
    if counter_set is None:
        return ValidatedDevice(b"", "the driver answered two of this name")
    try:
        built = counter_set.json()
        shape = msgspec.json.encode(built)
        if before is not None and before.shape == shape:
            return before
        faults = counter_set_faults(built)
    except (DraError, TypeError, ValueError) as e:
        return ValidatedDevice(b"", printable(e))
    except Exception as e:
        return ValidatedDevice(b"", describe(e))
    return ValidatedDevice(shape, _told(faults, shape))


def recalled_device(raw: JSON) -> ValidatedDevice:
    """Looks at a device as it was published before. Raises what reading it may."""
    shape = msgspec.json.encode(raw)
    return ValidatedDevice(shape, _told(device_faults(raw), shape), *_takes(raw), gates_of(raw))


def recalled_set(raw: JSON) -> ValidatedDevice:
    """Looks at a counter set as it was published before. Raises what reading it may."""
    shape = msgspec.json.encode(raw)
    return ValidatedDevice(shape, _told(counter_set_faults(raw), shape))


def _told(faults: list[str], shape: bytes) -> str:
    if len(shape) > MAX_BYTES:
        faults.append(f"{len(shape)} bytes as JSON: at most {MAX_BYTES} can be published")
    return printable("; ".join(faults))


def encode_device(device: JSON) -> EncodedDevice:
    """A device that is known to be good."""
    return EncodedDevice(device["name"], msgspec.json.encode(device), *_takes(device))


def _takes(device: JSON) -> tuple[int, int]:
    consumed = sum(len(c["counters"]) for c in device.get("consumesCounters") or [])
    return consumed, max_devices([device])


def parse_pools(answer: object, method: str, node: str) -> list[ParsedPool]:
    """The pools of a driver's answer; ``method`` is the one that gave it. ``node`` is the node whose pools are published.

    Raises :class:`DriverError` for an answer that is no list of pools with lists in them, or has a name twice: nothing of it can
    be trusted then.
    """
    out: dict[str, ParsedPool] = {}
    for pool in _items(answer, Pool, f"{method}() answered", MAX_POOLS):
        name, nodes = pool.name, pool.nodes
        where = f"{method}() answered pool {printable(name)!r}"
        # Of a pool that was made of what `devices` answered, its author knows nothing.
        devices_told = f"{method}() answered" if method == "devices" else f"{where} whose devices are"
        if not is_a(nodes, Nodes):
            raise DriverError(
                f"{where} whose nodes are {_kind(nodes)}: give Nodes.this(), Nodes.all(), Nodes.named('node-1') or another of Nodes"
            )
        name = str.__str__(name)  # of a class derived from str it could not be sent
        if name in out:
            raise DriverError(f"{method}() answered two pools named {printable(name)!r}: names must be unique")
        devices: dict[str, Device] = {}
        for device in _items(pool.devices, Device, devices_told, MAX_DEVICES):
            if device.name in devices:
                raise DriverError(
                    f"{method}() answered two devices named {printable(device.name)!r}: names must be unique in a pool"
                )
            devices[device.name] = device
        sets: dict[str, CounterSet | None] = {}
        for item in _items(pool.counter_sets, CounterSet, f"{where} whose counter_sets are", MAX_DEVICES):
            sets[item.name] = None if item.name in sets else item
        options, fault = _pool_options(pool)
        fault = _pool_fault(name, nodes) or _node_fault(name, nodes, node) or fault
        per_device = nodes.where is not Where.THIS and any(d.nodes is not None for d in devices.values())
        out[name] = ParsedPool(name, nodes, devices, sets, fault, per_device, options)
    return list(out.values())


def _pool_options(pool: Pool) -> tuple[JSON, str]:
    """What a pool says of all its devices at once, or why the API server would not take it."""
    try:
        options = pool.options()
        return options, printable("; ".join(map(str, slice_options(options, "pool"))))
    except Exception as e:  # an author's object may be anything inside
        return {}, describe(e)


def _pool_fault(name: str, nodes: Nodes) -> str:
    """Why a pool cannot be published, whatever it has; empty where it can."""
    try:
        nodes.of_slice("")
        return printable("; ".join(str(f) for f in pool_name(name, "name")))
    except Exception as e:  # text that is no Unicode, nodes that no class method of ours made
        return describe(e)


def _node_fault(name: str, nodes: Nodes, node: str) -> str:
    """Returns why a pool may not be published on a node because of its name; empty where it may.

    Pools are unique in the cluster for a driver: two nodes that publish one pool break both. The admission policy of ``deploy/``
    has the same rule. A pool's name is DNS subdomains separated by ``/`` and a node's name is one subdomain, so ``n1/`` is no
    prefix of a pool of node ``n10``. Source: ValidateResourceSlice of Kubernetes' API server.
    """
    if nodes.where is not Where.THIS or name == node or name.startswith(f"{node}/"):
        return ""
    return (
        f"a pool of node {node} must be named {node!r}, or begin with {f'{node}/'!r}: pools are unique in the cluster"
    )


T = TypeVar("T", Pool, Device, CounterSet)


def _kind(value: object) -> str:
    """What something is that should be another; a value that is shorter than its type's name tells more."""
    return printable(type(value).__name__)


def _items(answer: object, kind: type[T], told: str, most: int) -> Iterator[T]:
    """What an author answered, or put into what he answered; ``told`` is the beginning of a sentence that says where."""
    if not is_a(answer, Iterable) or is_a(answer, (str, bytes, Mapping)):
        hint = replacement_message(answer, kind.__name__, answered=told.endswith(" answered"))
        raise DriverError(f"{told} {_kind(answer)}, not a list of {kind.__name__}{hint}")
    try:
        for i, item in enumerate(answer):
            if not is_a(item, kind):
                raise DriverError(
                    f"{told} a list with {_kind(item)} at [{i}], not {kind.__name__}{instead_of_item(item, kind.__name__)}"
                )
            if not isinstance(item.name, str):
                raise DriverError(f"{told} a {kind.__name__} whose name is {_kind(item.name)}, not text")
            if i >= most:
                raise DriverError(f"{told} more than {most} items of {kind.__name__}: as many cannot be published")
            yield item
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"{told} what cannot be read: {describe(e)}") from e


def counters_fault(
    device: ValidatedDevice,
    sets: Mapping[str, ValidatedDevice],
    counters: Mapping[str, Collection[str]],
    *,
    seek: bool = True,
) -> str:
    """Why a device's counters cannot be drawn: one unknown set makes a whole pool invalid for the scheduler.

    ``counters`` are those of each set: decoded once for thousands of devices. ``seek``: the nearest name is told, which takes
    milliseconds where there are hundreds.
    """
    if not device.consumed:
        return ""
    for consumption in device.json.get("consumesCounters") or []:
        name = consumption["counterSet"]
        found = sets.get(name)
        if found is None:
            known = (did_you_mean(name, sets) if seek else "") or (
                "" if sets else ": declare it, pools() answers Pool(counter_sets=[CounterSet(...)])"
            )
            return f"it draws from counter set {name!r}, which its pool does not have{known}"
        if found.fault:
            return f"its counter set {name!r} is left out: {found.fault}"
        if unknown := sorted(set(consumption["counters"]).difference(counters[name])):
            return f"counter set {name!r} has no counter {unknown[0]!r}{did_you_mean(unknown[0], counters[name]) if seek else ''}"
    return ""


def tainted(device: JSON, taint: JSON) -> JSON:
    """``device`` with a taint of ours, which matters more than the last of the author's where there is no room."""
    taints = [t for t in device.get("taints") or [] if t["key"] != taint["key"]]
    return {**device, "taints": [*taints[: MAX_TAINTS - 1], taint]}


def taint_fault(taint: Taint) -> str:
    """Why the API server would refuse a taint; empty where it would not."""
    try:
        return printable("; ".join(device_faults({"name": "device", "taints": [taint.json()]})))
    except Exception as e:
        return describe(e)
