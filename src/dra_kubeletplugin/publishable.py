"""What of a driver's answer may be published: what the API server would refuse is found device by device, before it is sent.

A slice with one bad device is refused whole, so a bad device must never get into one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from .errors import DraError, DriverError, describe, printable
from .resources.slice_rules import MAX_TAINTS, max_devices
from .resources.types import CounterSet, Device, Taint, counter_set_faults, device_faults

MAX_DEVICES = 65_536  # of one node; an answer that goes on for ever must end somewhere
MAX_BYTES = 512 * 1024  # of one device or counter set as JSON: two in a slice stay below what etcd takes
JSON = Mapping[str, Any]


class Parcel(NamedTuple):
    """A device as it would be sent, as JSON text, and what it takes of a slice: a tenth of what its objects would hold."""

    name: str
    encoded: bytes
    consumed: int  # counters that it draws from
    most: int  # devices that a slice with it may have


@dataclass(frozen=True, slots=True)
class Judged:
    """A device or counter set, as JSON text as it would be sent. ``fault`` is why it may not be.

    ``shape`` tells whether it changed; it is empty where there is nothing that could be sent.
    """

    shape: bytes
    fault: str = ""
    consumed: int = 0
    most: int = 0

    @property
    def json(self) -> JSON:
        """Decoded anew each time."""
        return decoded(self.shape) if self.shape else {}

    def parcel(self, name: str) -> Parcel:
        return Parcel(name, self.shape, self.consumed, self.most)


def decoded(encoded: bytes) -> dict[str, Any]:
    """The object that was encoded."""
    out: dict[str, Any] = msgspec.json.decode(encoded)
    return out


def judge(item: Device | CounterSet, before: Judged | None = None) -> Judged:
    """Looks at one device or counter set. ``before`` saves the work where nothing changed. Raises nothing."""
    try:
        built = item.json()
        shape = msgspec.json.encode(built)
        if before is not None and before.shape == shape:
            return before
        if isinstance(item, Device):
            faults = device_faults(built)
            consumed, most = _takes(built)
        else:
            faults, consumed, most = counter_set_faults(built), 0, 0
        if len(shape) > MAX_BYTES:
            faults.append(f"{len(shape)} bytes as JSON: at most {MAX_BYTES} can be published")
    except DraError as e:
        return Judged(b"", printable(e))
    except Exception as e:  # an author's object may be anything inside
        return Judged(b"", describe(e))
    return Judged(shape, printable("; ".join(faults)), consumed, most)


def parcel(device: JSON) -> Parcel:
    """A device that is known to be good."""
    return Parcel(device["name"], msgspec.json.encode(device), *_takes(device))


def _takes(device: JSON) -> tuple[int, int]:
    consumed = sum(len(c["counters"]) for c in device.get("consumesCounters") or [])
    return consumed, max_devices([device])


def named(answer: object, kind: type[Device] | type[CounterSet], method: str) -> dict[str, Any]:
    """The items of an author's answer by name, in their order.

    Raises :class:`DriverError` for an answer that is no such list: nothing of it can be trusted then.
    """
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise DriverError(f"{method}() answered {type(answer).__name__}: it must answer a list of {kind.__name__}")
    out: dict[str, Any] = {}
    try:
        for item in answer:
            if not isinstance(item, kind) or not isinstance(item.name, str):
                raise DriverError(f"{method}() answered {type(item).__name__}, not {kind.__name__}")
            if item.name in out and kind is Device:
                raise DriverError(
                    f"{method}() answered two devices named {printable(item.name)!r}: names must be unique in a node"
                )
            out[item.name] = None if item.name in out else item
            if len(out) > MAX_DEVICES:
                raise DriverError(f"{method}() answered more than {MAX_DEVICES} items: a node cannot publish as many")
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"the answer of {method}() cannot be read: {describe(e)}") from e
    return out


def counters_fault(device: Judged, sets: Mapping[str, Judged], counters: Mapping[str, Collection[str]]) -> str:
    """Why a device's counters cannot be drawn: one unknown set makes a whole pool invalid for the scheduler.

    ``counters`` are those of each set: decoded once for thousands of devices.
    """
    if not device.consumed:
        return ""
    for consumption in device.json.get("consumesCounters") or []:
        name = consumption["counterSet"]
        found = sets.get(name)
        if found is None:
            return f"it draws from counter set {name!r}, which counter_sets() does not answer"
        if found.fault:
            return f"its counter set {name!r} is left out: {found.fault}"
        if unknown := sorted(set(consumption["counters"]).difference(counters[name])):
            return f"counter set {name!r} has no counter {unknown[0]!r}"
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
