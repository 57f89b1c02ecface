"""Calculates the amounts of shared counters and shared capacity that a claim takes, and whether enough is available.

A partition draws the same amounts of its pool's counters for every claim (KEP-4815). A share takes a part of its device's
capacity (KEP-5075). A prepared claim counts with the amounts that its prepare recorded. The limits are the current ones.
A counter or capacity that is no longer published sets no limit, because there is nothing to compare with.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Generic, NamedTuple, TypeVar

import msgspec

from ..base.json_types import JSON
from ..devices.inventory import Inventory
from ..resourceapi.amounts import Capacity
from ..resourceapi.quantity import Quantity, QuantityRangeError
from ..resourceapi.types import Device

T = TypeVar("T")
_NANO = 9  # decimal places: one billionth is the smallest amount that Kubernetes has
_CONTEXT = Context(prec=120)
_MAX_DIGITS = 80  # digits; no real amount has more
_MAX_AMOUNT = int("1" + "0" * _MAX_DIGITS)


class Hold(NamedTuple):
    """A device, or a share of a device, that one claim holds exclusively.

    ``takes`` is the JSON text of its amounts, see :func:`takes_json`; empty if the amounts are not known.
    """

    pool: str
    device: str
    share: str
    takes: str
    uid: str  # of the claim


class Supply:
    """The current limits, and the amounts that devices currently draw: of the inventory, and of one claim's devices in other pools.

    Its methods can be called from the record thread: the data that they read is replaced, never changed in place.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._devices: dict[tuple[str, str], Device] = {}
        self._counters: dict[tuple[str, str], Mapping[str, str]] = {}

    def add(self, pool: str, device: Device, counter_sets: Mapping[str, Mapping[str, str]]) -> None:
        """Adds a device of another process's pool, with the counter sets of the pool."""
        self._devices[pool, device.name] = device
        self._counters |= {(pool, name): amounts for name, amounts in counter_sets.items()}

    def draws(self, pool: str, name: str) -> JSON | None:
        """Returns the amounts that a device draws now, by counter set and counter; None if the device is not known."""
        device = self._devices.get((pool, name))
        return draws_of(device) if device else self._inventory.draws(name, pool)

    def capacity(self, pool: str, name: str) -> Mapping[str, str] | None:
        """Returns the capacity amounts of a device; None if the device is not known."""
        device = self._devices.get((pool, name)) or self._inventory.find(name, pool)
        if device is None:
            return None
        return {n: str(c.value if isinstance(c, Capacity) else Quantity(c)) for n, c in device.capacity.items()}

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Returns the amounts of a counter set by counter; None if the counter set is not known."""
        return self._counters.get((pool, counter_set)) or self._inventory.counters(pool, counter_set)


class Shortage(msgspec.Struct, frozen=True):
    """A counter or capacity that is too small for a claim: the claim requests more than the other claims leave.

    ``holders`` are the UIDs of the claims that hold some of the amount. ``unknown`` are the UIDs of holders whose taken amounts are not
    known.
    """

    text: str
    devices: Sequence[str]
    holders: frozenset[str]
    unknown: frozenset[str]


class Takes(msgspec.Struct, Generic[T], frozen=True):
    """Amounts of one hold: by counter set and counter, and by capacity name. The record has texts; sums need billionths."""

    counters: dict[str, dict[str, T]] = {}
    capacity: dict[str, T] = {}


def takes_json(counters: JSON, consumed: Mapping[str, Quantity] | None = None) -> JSON:
    """Returns the amounts that a claim takes, as its record stores them; empty for a whole device without counters.

    Args:
        counters: the amounts that the device draws, see :meth:`Supply.draws`.
        consumed: the capacity of a share; None for a whole device.
    """
    out: JSON = {"counters": counters} if counters else {}
    if consumed is not None:
        out["capacity"] = {name: str(amount) for name, amount in consumed.items()}
    return out


def draws_of(device: Device) -> JSON:
    """Returns the amounts that a device draws, by counter set and counter."""
    return {s: {n: str(Quantity(v)) for n, v in c.items()} for s, c in device.consumes_counters.items()}


def encoded(takes: object) -> str:
    """Encodes ``takes`` of a recorded device as the text of a hold; empty if the amounts are not known."""
    if not isinstance(takes, dict):
        return ""
    return msgspec.json.encode(takes).decode() if takes else "{}"


@functools.lru_cache(512)  # partitions of the same kind take the same amounts
def read_takes(text: str) -> Takes[int] | None:
    """Decodes the JSON text of :func:`takes_json`; None for text that cannot be read."""
    try:
        found = msgspec.json.decode(text, type=Takes[str])
        return Takes({s: _amounts(c) for s, c in found.counters.items()}, _amounts(found.capacity))
    except (ValueError, RecursionError):
        return None


def _amounts(texts: Mapping[str, str]) -> dict[str, int]:
    # At least 0: a negative amount would increase the amount that other claims can take.
    return {name: max(0, nano(text)) for name, text in texts.items()}


@functools.lru_cache(512)
def nano(text: str) -> int:
    """Converts a quantity to billionths, as an exact integer that is fast to add.

    A quantity with more digits than any real amount becomes a large constant with the same sign.

    Raises ``ValueError`` for text that is not a quantity.
    """
    with contextlib.suppress(QuantityRangeError):
        value = Quantity(text).value
        if value.adjusted() <= _MAX_DIGITS:
            return int(value.scaleb(_NANO, _CONTEXT))
    return -_MAX_AMOUNT if text.startswith("-") else _MAX_AMOUNT


def shared_supplies(wanted: Iterable[Hold]) -> set[tuple[str, str | None]]:
    """Returns the devices whose other holds must be counted together with ``wanted``, as pairs of pool and device.

    The device is None if ``wanted`` draws counters of the pool: then the holds of all its devices count.
    """
    takes = ((h, t) for h in wanted if (t := read_takes(h.takes)))
    return {(h.pool, None if t.counters else h.device) for h, t in takes if t.counters or t.capacity}


def shortage(wanted: Sequence[Hold], held: Sequence[Hold], supply: Supply) -> Shortage | None:
    """Returns the first counter or capacity whose limit is below the sum of ``wanted`` and ``held``; None if there is none.

    The amounts of a hold are unknown if ``recover()`` returned it. A share with unknown amounts counts as the whole device. A device with
    unknown amounts counts with the amounts that it draws now. If the device is no longer known either, it counts as drawing each counter
    entirely.
    """
    takes = [(h, t) for h in wanted if (t := read_takes(h.takes))]
    for pool, name in dict.fromkeys((h.pool, s) for h, t in takes for s in t.counters):
        # A device draws its counters once, also if several claims hold shares of it.
        found = _shortage(
            "counter",
            f"in counter set {name} of pool {pool}",
            supply.counters(pool, name) or {},
            [(h.device, h, t.counters[name]) for h, t in takes if h.pool == pool and name in t.counters],
            [(h.device, h, _drawn(h, name, supply)) for h in held if h.pool == pool],
        )
        if found:
            return found
    for key in dict.fromkeys((h.pool, h.device) for h, t in takes if h.share and t.capacity):
        found = _shortage(
            "capacity",
            f"of device {key[1]} in pool {key[0]}",
            supply.capacity(*key) or {},
            [((h.uid, h.share), h, t.capacity) for h, t in takes if (h.pool, h.device) == key],
            [
                ((h.uid, h.share), h, t.capacity if (t := read_takes(h.takes)) else None)
                for h in held
                if (h.pool, h.device) == key
            ],
        )
        if found:
            return found
    return None


def _drawn(hold: Hold, counter_set: str, supply: Supply) -> Mapping[str, int] | None:
    """Returns the amounts that a hold draws from a counter set; None if they are not known."""
    takes = read_takes(hold.takes)
    if takes is None and (draws := supply.draws(hold.pool, hold.device)) is not None:
        takes = read_takes(encoded(takes_json(draws)))
    return takes.counters.get(counter_set, {}) if takes else None


def _shortage(
    kind: str,
    place: str,
    limits: Mapping[str, str],
    wanted: Sequence[tuple[object, Hold, Mapping[str, int]]],
    held: Sequence[tuple[object, Hold, Mapping[str, int] | None]],
) -> Shortage | None:
    """Returns the first shortage of one counter set or device.

    Args:
        wanted: for each hold, the taker (holds of one taker take an amount once), the hold, and its amounts.
        held: the same for other claims; the amounts are None if they are not known.
    """
    for name in dict.fromkeys(n for _, _, amounts in wanted for n in amounts if n in limits):
        limit = nano(limits[name])
        before: dict[object, int] = {}
        for taker, _, amounts in held:
            before[taker] = max(before.get(taker, 0), limit if amounts is None else amounts.get(name, 0))
        after = before.copy()
        for taker, _, amounts in wanted:
            after[taker] = max(after.get(taker, 0), amounts.get(name, 0))
        used, total = sum(before.values()), sum(after.values())
        if total > used and total > limit:
            form = Quantity(limits[name]).format
            requested, exist, used_up = (Quantity(Decimal(n).scaleb(-_NANO), form) for n in (total - used, limit, used))
            holders = frozenset(h.uid for _, h, amounts in held if amounts is None or amounts.get(name))
            rest = f", of which {used_up} are held" if holders else ""
            return Shortage(
                f"{requested} of {kind} {name} {place} are requested and {exist} exist{rest}",
                list(dict.fromkeys(h.device for taker, h, _ in wanted if after[taker] > before.get(taker, 0))),
                holders,
                frozenset(h.uid for _, h, amounts in held if amounts is None),
            )
    return None
