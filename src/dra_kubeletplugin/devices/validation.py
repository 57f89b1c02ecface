"""Validates a driver's pools: finds each device that the API server would reject, before it is sent.

If one device of a slice is invalid, the API server rejects the entire slice, so an invalid device must never get into a slice.
:func:`validate_device` turns each of the driver's devices into a :class:`DeviceEntry`, with a fault if the device is invalid. The
devices with a fault are in :attr:`.PoolState.rejected`; the others are published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from ..base.json_types import ReadOnlyJSON
from ..base.text import did_you_mean
from ..driver.diagnostics.author_errors import missing_await_hint, replacement_message
from ..errors import DraError, DriverError, describe, kind_of, printable
from ..resourceapi.decoding import read_device
from ..resourceapi.gated_fields import gates_of
from ..resourceapi.nodes import NODE_FIELDS, Nodes, Where
from ..resourceapi.pools import Pool
from ..resourceapi.types import CounterSet, Device, Taint, counter_set_faults, device_faults
from ..resourceapi.validation.common import pool_name
from ..resourceapi.validation.slices import max_devices, slice_options

MAX_BYTES = 512 * 1024  # of one device or counter set as JSON, so that a slice stays below the limit of etcd (1.5 MiB)
Named = TypeVar("Named", Device, CounterSet)


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device of a pool, with the result of its validation. Two entries are equal if their published forms are equal.

    Attributes:
        name: the device's name.
        device: the author's device.
        encoded: the device as JSON text; empty if it cannot be encoded. The text needs a tenth of the memory of decoded objects.
        fault: why the device must not be sent; empty if it may be sent.
        consumed: number of counters that the device consumes.
        device_limit: maximum number of devices in a slice that contains this device: 128, or 64.
        gates: the API server's feature gates that the device depends on.
    """

    name: str
    device: Device = field(compare=False)
    encoded: bytes
    fault: str = ""
    consumed: int = 0
    device_limit: int = 0
    gates: frozenset[str] = frozenset()

    @property
    def json(self) -> dict[str, Any]:
        """The device as a JSON object; empty if it cannot be encoded. Each access decodes the text again."""
        return msgspec.json.decode(self.encoded, type=dict[str, Any]) if self.encoded else {}

    @property
    def has_own_nodes(self) -> bool:
        """Whether the device selects its own nodes. Each access decodes the JSON text again."""
        return not self.json.keys().isdisjoint(NODE_FIELDS)

    def draws(self) -> dict[str, dict[str, str]]:
        """Returns the counters that the device consumes: counter set → counter → amount."""
        consumptions = self.json.get("consumesCounters") if self.consumed else None
        return {c["counterSet"]: {n: a["value"] for n, a in c["counters"].items()} for c in consumptions or ()}

    def with_json(self, json: ReadOnlyJSON) -> DeviceEntry:
        """Returns the entry with other JSON, which the caller knows to be valid."""
        return DeviceEntry(self.name, self.device, _encoded(json), "", self.consumed, max_devices([json]), self.gates)


class CounterSetEntry(NamedTuple):
    """A counter set of a pool. ``fault`` is the reason why it must not be sent; empty if it may be sent."""

    json: ReadOnlyJSON
    fault: str = ""


def validate_device(device: Device, nodes: Nodes, before: DeviceEntry | None = None) -> DeviceEntry:
    """Validates one device of a pool with ``nodes``. Raises nothing: the entry contains the fault.

    An unchanged device is not validated again, and ``before`` is returned, so that a discovery every minute keeps no new objects.

    Args:
        before: the entry from the last discovery. It was validated for the same kind of nodes: all pools of the node role are of this
            node, and no pool of the controller role is.
    """
    name = name_of(device, Device)
    try:
        built, faults = device.converted()
        encoded = _encoded(built)
        if before is not None and not faults and before.encoded == encoded and device.nodes == before.device.nodes:
            unchanged = device.data is before.device.data and device == before.device
            return before if unchanged else replace(before, device=device)
        is_complete = not faults
        faults += device_faults(built)
        if nodes.where is Where.THIS and not built.keys().isdisjoint(NODE_FIELDS):
            faults.append("nodes: a device in a pool of this node must not select nodes: set the pool's nodes instead")
        if isinstance(device.nodes, Nodes) and device.nodes.where is Where.THIS:
            faults.append("nodes: Nodes.this() is for pools, not for devices")
        if not is_complete:
            return DeviceEntry(name, device, b"", printable("; ".join(faults)))
        return _entry(device, built, encoded, faults)
    except Exception as e:  # an object of the author may raise anything
        return DeviceEntry(name, device, b"", describe(e))


def validate_counter_set(counter_set: CounterSet) -> CounterSetEntry:
    """Validates one counter set. The entry contains the fault."""
    built, faults = counter_set.converted()
    if faults:
        return CounterSetEntry({}, printable("; ".join(faults + counter_set_faults(built))))
    return counter_set_entry(built)


def device_from_record(raw: ReadOnlyJSON) -> DeviceEntry:
    """Validates a device whose JSON is in the record of a claim. Raises the decoder's error if the JSON is not a device."""
    return _entry(read_device(raw), raw, _encoded(raw), device_faults(raw))


def counter_set_entry(raw: ReadOnlyJSON) -> CounterSetEntry:
    """Validates the JSON of a counter set. Raises the validator's error if the JSON has an unexpected structure."""
    return CounterSetEntry(raw, _fault_text(counter_set_faults(raw), msgspec.json.encode(raw)))


def _encoded(json: ReadOnlyJSON) -> bytes:
    """Returns an object as JSON text. Copies it, because the encoder's result keeps about a third more memory than it has text."""
    return bytes(memoryview(msgspec.json.encode(json)))


def _fault_text(faults: list[str], encoded: bytes) -> str:
    if len(encoded) > MAX_BYTES:
        faults.append(f"{len(encoded)} bytes as JSON: at most {MAX_BYTES} can be published")
    return printable("; ".join(faults))


def _entry(device: Device, built: ReadOnlyJSON, encoded: bytes, faults: list[str]) -> DeviceEntry:
    """Returns the entry of a device.

    Args:
        built: the device as a JSON object.
        encoded: the device as JSON text.
    """
    consumed = sum(len(c["counters"]) for c in built.get("consumesCounters") or [])
    return DeviceEntry(
        built["name"], device, encoded, _fault_text(faults, encoded), consumed, max_devices([built]), gates_of(built)
    )


def parse_pools(result: object, method: str) -> dict[str, Pool]:
    """Checks the lists in a driver's result. Returns the pools by name. See :func:`by_name` for their items.

    Args:
        result: the result.
        method: the driver's method that returned the result.

    Raises:
        DriverError: a list has the wrong type, an item is no pool, or two pools have one name.
    """
    out: dict[str, Pool] = {}
    _check_list(result, Pool, f"{method}() returned")
    for i, pool in enumerate(cast("Sequence[object]", result)):
        if not isinstance(pool, Pool):
            raise DriverError(f"{method}() returned a list with {_wrong_item(pool, Pool, f' at [{i}]')}")
        if not isinstance(pool.name, str):
            raise DriverError(f"{method}() returned a Pool whose name is {kind_of(pool.name)}, not text")
        name = str.__str__(pool.name)  # an instance of a subclass, such as numpy.str_, has no JSON form
        where = f"{method}() returned pool {printable(name)!r}"
        # An author who implements `devices` does not know the pool, so messages must not mention it.
        devices_subject = f"{method}() returned" if method == "devices" else f"{where} whose devices are"
        if not isinstance(pool.nodes, Nodes):
            raise DriverError(
                f"{where} whose nodes are {kind_of(pool.nodes)}: use Nodes.this(), Nodes.all(), Nodes.named('node-1') or another "
                f"constructor of Nodes"
            )
        if name in out:
            raise DriverError(f"{method}() returned two pools named {printable(name)!r}: names must be unique")
        _check_list(pool.devices, Device, devices_subject)
        _check_list(pool.counter_sets, CounterSet, f"{where} whose counter_sets are")
        out[name] = pool
    return out


def by_name(items: Iterable[object], kind: type[Named], field: str) -> tuple[dict[str, Named], dict[str, str]]:
    """Returns the items of an author's list by name, and the faults of the other items by place, such as ``devices[3]``.

    The other items have no name, or the name of an earlier item.

    Args:
        kind: the type that the items must have.
        field: the name of the list.
    """
    out: dict[str, Named] = {}
    unnamed: dict[str, str] = {}
    for i, item in enumerate(items):
        twice = []
        if name := name_of(item, kind):
            if name not in out:
                out[name] = cast("Named", item)
                continue
            twice = [f"its name {name!r} is the name of an earlier item of the list: names must be unique"]
        unnamed[f"{field}[{i}]"] = printable("; ".join(twice + _faults_of(item, kind)))
    return out, unnamed


def name_of(item: object, kind: type[Named]) -> str:
    """Returns the name of an item of an author's list; empty if it has none, or if the item is not of ``kind``."""
    return str.__str__(item.name) if isinstance(item, kind) and isinstance(item.name, str) else ""


def _faults_of(item: object, kind: type[Named]) -> list[str]:
    return item.faults() if isinstance(item, kind) else [_wrong_item(item, kind)]


def pool_options(name: str, pool: Pool, node: str) -> tuple[ReadOnlyJSON, str]:
    """Returns the fields that a pool sets for all its devices, and the pool's fault.

    The fault is the reason why no device of the pool can be published; it is empty if they can. ``node`` is the node whose pools are
    published.
    """
    try:
        pool.nodes.of_slice("")
        options = pool.options()
        name_faults, option_faults = (
            printable("; ".join(map(str, faults)))
            for faults in (pool_name(name, "name"), slice_options(options, "pool"))
        )
        return options, name_faults or _node_fault(name, pool.nodes, node) or option_faults
    except DraError as e:
        return {}, e.message
    except UnicodeEncodeError as e:  # a name that the driver read from the hardware
        return {}, describe(e)


def _node_fault(name: str, nodes: Nodes, node: str) -> str:
    """Returns why the name of a pool is not allowed on a node; empty if it is allowed.

    The pool names of a driver must be unique in the cluster: if two nodes publish a pool with the same name, neither can be used. The
    admission policy of ``deploy/`` has the same rule. A pool's name consists of DNS subdomains separated by ``/``, and a node's name is
    one subdomain. Therefore, ``n1/`` is not a prefix of a pool of node ``n10``. Source: ValidateResourceSlice of Kubernetes' API server.
    """
    if nodes.where is not Where.THIS or name == node or name.startswith(f"{node}/"):
        return ""
    return (
        f"a pool of node {node} must be named {node!r}, or begin with {f'{node}/'!r}: pools are unique in the cluster"
    )


def _wrong_item(item: object, kind: type, at: str = "") -> str:
    return f"{kind_of(item)}{at}, not {kind.__name__}{missing_await_hint(item)}"


def _check_list(value: object, kind: type, subject: str) -> None:
    """Raises :class:`DriverError` if an author's value is no list. ``subject`` is the beginning of the message."""
    if not isinstance(value, (list, tuple)):
        hint = replacement_message(value, kind.__name__, returned=subject.endswith(" returned"))
        raise DriverError(f"{subject} {kind_of(value)}, not a list of {kind.__name__}{hint}")


def counters_fault(device: DeviceEntry, sets: Mapping[str, CounterSetEntry], *, seek: bool = True) -> str:
    """Returns why a device's counters are invalid; empty if they are valid.

    The scheduler ignores a whole pool if one of its devices consumes counters of an unknown counter set.

    Args:
        device: the device.
        sets: counter sets of the pool.
        seek: whether the message suggests a similar name. The search takes milliseconds with hundreds of names.
    """

    def nearest(name: str, known: Collection[str]) -> str:
        return did_you_mean(name, known) if seek else ""

    for name, counters in device.draws().items():
        found = sets.get(name)
        if found is None:
            known = "" if sets else ": declare it with Pool(counter_sets=[CounterSet(...)]) in pools()"
            return f"it consumes counters of counter set {name!r}, which its pool does not have{nearest(name, sets) or known}"
        if found.fault:
            return f"its counter set {name!r} is not published: {found.fault}"
        if unknown := sorted(counters.keys() - found.json["counters"].keys()):
            return f"counter set {name!r} has no counter {unknown[0]!r}{nearest(unknown[0], found.json['counters'])}"
    return ""


def taint_fault(taint: Taint) -> str:
    """Returns why the API server would reject a taint; empty if it would accept the taint."""
    try:
        return printable("; ".join(device_faults({"name": "device", "taints": [taint.json()]})))
    except Exception as e:
        return describe(e)
