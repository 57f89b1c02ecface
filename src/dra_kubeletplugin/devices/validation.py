"""Validates a driver's pools: finds each device that the API server would reject, before it is sent.

If one device of a slice is invalid, the API server rejects the entire slice, so an invalid device must never get into a slice. Each
device is validated alone. ``pool_state.py`` leaves out a device with a fault, and the publisher publishes the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from ..base.text import did_you_mean
from ..driver.diagnostics.author_errors import instead_of_item, replacement_message
from ..errors import DraError, DriverError, describe, printable
from ..resourceapi.gated_fields import Gate, gates_of
from ..resourceapi.nodes import Nodes, Where
from ..resourceapi.pools import MAX_DEVICES, Pool
from ..resourceapi.types import CounterSet, Device, Taint, counter_set_faults, device_faults
from ..resourceapi.validation.common import pool_name
from ..resourceapi.validation.slices import MAX_TAINTS, max_devices, slice_options

MAX_POOLS = 4096
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")
MAX_BYTES = 512 * 1024  # of one device or counter set as JSON; two of them in a slice stay below the limit of etcd
JSON = Mapping[str, Any]


class EncodedDevice(NamedTuple):
    """A device as JSON text, as it would be sent, with its use of a slice's limits.

    The text needs a tenth of the memory of the decoded objects.
    """

    name: str
    encoded: bytes
    consumed: int  # number of counters that it consumes
    device_limit: int  # maximum number of devices in a slice that contains this device: 128, or 64


class _Amount(msgspec.Struct):
    value: str


class _Consumption(msgspec.Struct, rename="camel"):
    counter_set: str
    counters: dict[str, _Amount]


class _Draws(msgspec.Struct, rename="camel"):
    """The part of a device with its counters; other fields are skipped."""

    consumes_counters: list[_Consumption] = []


@dataclass(frozen=True, slots=True)
class ValidatedDevice:
    """A device or counter set as JSON text, as it would be sent.

    Attributes:
        shape: the text; empty if nothing can be sent. A changed device has another text.
        fault: why it must not be sent; empty if it may.
        consumed: number of counters that it consumes.
        device_limit: maximum number of devices in a slice that contains this device: 128, or 64.
        gates: the API server's feature gates that it depends on.
    """

    shape: bytes
    fault: str = ""
    consumed: int = 0
    device_limit: int = 0
    gates: frozenset[Gate] = frozenset()

    @property
    def json(self) -> JSON:
        """The object; each access decodes it again."""
        return decoded(self.shape) if self.shape else {}

    def draws(self) -> dict[str, dict[str, str]]:
        """Returns the counters that the device consumes: counter set → counter → amount."""
        if not self.consumed:
            return {}
        found = msgspec.json.decode(self.shape, type=_Draws).consumes_counters
        return {c.counter_set: {n: a.value for n, a in c.counters.items()} for c in found}

    def encoded_device(self, name: str) -> EncodedDevice:
        return EncodedDevice(name, self.shape, self.consumed, self.device_limit)


def decoded(encoded: bytes) -> dict[str, Any]:
    """Decodes a JSON object."""
    out: dict[str, Any] = msgspec.json.decode(encoded)
    return out


class ParsedPool(NamedTuple):
    """A pool of a driver's result; its device names are unique."""

    name: str
    nodes: Nodes
    devices: Mapping[str, Device]
    counter_sets: Mapping[str, CounterSet | None]  # None: the driver returned this name twice
    fault: str  # why the pool cannot be published at all
    per_device: bool  # whether each device has its own nodes
    options: JSON  # fields that apply to all devices


def validate_device(
    device: Device, nodes: Nodes, *, per_device: bool, before: ValidatedDevice | None = None
) -> ValidatedDevice:
    """Validates one device of a pool with ``nodes``. Raises nothing.

    Returns ``before``, without another validation, if the device did not change.
    """
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
            faults.append("nodes: a device in a pool of this node must not select nodes: set the pool's nodes instead")
        if device.nodes is not None and device.nodes.where is Where.THIS:
            faults.append("nodes: Nodes.this() is for pools, not for devices")
        consumed, device_limit = _takes(built)
        gates = gates_of(built)
    except DraError as e:
        return ValidatedDevice(b"", printable(e))
    except Exception as e:  # an author's object may raise anything
        return ValidatedDevice(b"", describe(e))
    return ValidatedDevice(shape, _fault_text(faults, shape), consumed, device_limit, gates)


def validate_counter_set(counter_set: CounterSet | None, before: ValidatedDevice | None = None) -> ValidatedDevice:
    """Validates one counter set like :func:`validate_device`. None stands for a name that the driver returned twice."""
    if counter_set is None:
        return ValidatedDevice(b"", "the driver returned this name twice")
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
    return ValidatedDevice(shape, _fault_text(faults, shape))


def recalled_device(raw: JSON) -> ValidatedDevice:
    """Validates a device as it was published before. Raises anything that reading it raises."""
    shape = msgspec.json.encode(raw)
    return ValidatedDevice(shape, _fault_text(device_faults(raw), shape), *_takes(raw), gates_of(raw))


def recalled_set(raw: JSON) -> ValidatedDevice:
    """Validates a counter set as it was published before. Raises anything that reading it raises."""
    shape = msgspec.json.encode(raw)
    return ValidatedDevice(shape, _fault_text(counter_set_faults(raw), shape))


def _fault_text(faults: list[str], shape: bytes) -> str:
    if len(shape) > MAX_BYTES:
        faults.append(f"{len(shape)} bytes as JSON: at most {MAX_BYTES} can be published")
    return printable("; ".join(faults))


def encode_device(device: JSON) -> EncodedDevice:
    """Encodes a device that is known to be valid."""
    return EncodedDevice(device["name"], msgspec.json.encode(device), *_takes(device))


def _takes(device: JSON) -> tuple[int, int]:
    consumed = sum(len(c["counters"]) for c in device.get("consumesCounters") or [])
    return consumed, max_devices([device])


def parse_pools(result: object, method: str, node: str) -> list[ParsedPool]:
    """Parses the pools of a driver's result.

    Args:
        result: the result.
        method: the driver's method that returned it.
        node: name of the node whose pools are published.

    Raises:
        DriverError: the result is not a list of pools, a pool's devices are not a list, or a name occurs twice.
    """
    out: dict[str, ParsedPool] = {}
    for pool in _items(result, Pool, f"{method}() returned", MAX_POOLS):
        name, nodes = pool.name, pool.nodes
        where = f"{method}() returned pool {printable(name)!r}"
        # The author of `devices` never sees the pool, so messages must not mention it.
        devices_subject = f"{method}() returned" if method == "devices" else f"{where} whose devices are"
        if not isinstance(nodes, Nodes):
            raise DriverError(
                f"{where} whose nodes are {_kind(nodes)}: use Nodes.this(), Nodes.all(), Nodes.named('node-1') or another "
                f"constructor of Nodes"
            )
        name = str.__str__(name)  # an instance of a subclass of str cannot be sent
        if name in out:
            raise DriverError(f"{method}() returned two pools named {printable(name)!r}: names must be unique")
        devices: dict[str, Device] = {}
        for device in _items(pool.devices, Device, devices_subject, MAX_DEVICES):
            if device.name in devices:
                raise DriverError(
                    f"{method}() returned two devices named {printable(device.name)!r}: names must be unique in a pool"
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
    """Returns the fields that a pool sets for all its devices, and why the API server would reject them."""
    try:
        options = pool.options()
        return options, printable("; ".join(map(str, slice_options(options, "pool"))))
    except Exception as e:  # an author's object may raise anything
        return {}, describe(e)


def _pool_fault(name: str, nodes: Nodes) -> str:
    """Returns why a pool cannot be published, independent of its devices; empty if it can."""
    try:
        nodes.of_slice("")
        return printable("; ".join(str(f) for f in pool_name(name, "name")))
    except Exception as e:  # invalid Unicode, or nodes that the author built by hand
        return describe(e)


def _node_fault(name: str, nodes: Nodes, node: str) -> str:
    """Returns why a pool may not be published on a node because of its name; empty if it may.

    A driver's pools are unique in the cluster: if two nodes publish a pool with the same name, neither can be used. The admission policy
    of ``deploy/`` has the same rule. A pool's name consists of DNS subdomains separated by ``/``, and a node's name is one subdomain.
    Therefore, ``n1/`` is not a prefix of a pool of node ``n10``. Source: ValidateResourceSlice of Kubernetes' API server.
    """
    if nodes.where is not Where.THIS or name == node or name.startswith(f"{node}/"):
        return ""
    return (
        f"a pool of node {node} must be named {node!r}, or begin with {f'{node}/'!r}: pools are unique in the cluster"
    )


T = TypeVar("T", Pool, Device, CounterSet)


def _kind(value: object) -> str:
    """Returns the name of a value's type, for a message about a wrong type."""
    return printable(type(value).__name__)


def _items(result: object, kind: type[T], subject: str, maximum: int) -> Iterator[T]:
    """Yields the items of an author's list after checking their types. ``subject`` is the beginning of an error message."""
    if not isinstance(result, Iterable) or isinstance(result, (str, bytes, Mapping)):
        hint = replacement_message(result, kind.__name__, returned=subject.endswith(" returned"))
        raise DriverError(f"{subject} {_kind(result)}, not a list of {kind.__name__}{hint}")
    try:
        for i, item in enumerate(result):
            if not isinstance(item, kind):
                raise DriverError(
                    f"{subject} a list with {_kind(item)} at [{i}], not {kind.__name__}{instead_of_item(item, kind.__name__)}"
                )
            if not isinstance(item.name, str):
                raise DriverError(f"{subject} a {kind.__name__} whose name is {_kind(item.name)}, not text")
            if i >= maximum:
                raise DriverError(
                    f"{subject} more than {maximum} items of {kind.__name__}: so many cannot be published"
                )
            yield item
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"{subject} a value that cannot be read: {describe(e)}") from e


def counters_fault(
    device: ValidatedDevice,
    sets: Mapping[str, ValidatedDevice],
    counters: Mapping[str, Collection[str]],
    *,
    seek: bool = True,
) -> str:
    """Returns why a device's counters cannot be used. One unknown counter set makes a whole pool invalid for the scheduler.

    Args:
        device: the device.
        sets: counter sets of the pool.
        counters: names of the counters of each set, decoded once for thousands of devices.
        seek: whether to search the nearest name for the message, which takes milliseconds with hundreds of names.
    """
    if not device.consumed:
        return ""
    for consumption in device.json.get("consumesCounters") or []:
        name = consumption["counterSet"]
        found = sets.get(name)
        if found is None:
            known = (did_you_mean(name, sets) if seek else "") or (
                "" if sets else ": declare it with Pool(counter_sets=[CounterSet(...)]) in pools()"
            )
            return f"it consumes counters of counter set {name!r}, which its pool does not have{known}"
        if found.fault:
            return f"its counter set {name!r} is not published: {found.fault}"
        if unknown := sorted(set(consumption["counters"]).difference(counters[name])):
            return f"counter set {name!r} has no counter {unknown[0]!r}{did_you_mean(unknown[0], counters[name]) if seek else ''}"
    return ""


def tainted(device: JSON, taint: JSON) -> JSON:
    """Returns ``device`` with a taint of the framework. If there are too many taints, it replaces the author's last taint."""
    taints = [t for t in device.get("taints") or [] if t["key"] != taint["key"]]
    return {**device, "taints": [*taints[: MAX_TAINTS - 1], taint]}


def taint_fault(taint: Taint) -> str:
    """Returns why the API server would reject a taint; empty if it would accept the taint."""
    try:
        return printable("; ".join(device_faults({"name": "device", "taints": [taint.json()]})))
    except Exception as e:
        return describe(e)
