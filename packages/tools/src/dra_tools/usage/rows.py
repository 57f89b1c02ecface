"""The model of device usage: typed rows that encode to the JSON of the web page and of `dra top -o json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class DeviceUse(StrEnum):
    """Whether a claim holds a device, and whether a further request could get the device now.

    The rules are those of the scheduler, for a request without tolerations from a pod that any node accepts.
    ``DeviceRow.why`` has the reason for each use that a request cannot get.
    """

    FREE = "free"
    """Some request could get the device now: no claim holds it, and no reason of BLOCKED or UNAVAILABLE applies."""
    HELD = "held"
    """A claim holds the device, and no further claim can get it or a share of it. Admin access does not hold a device."""
    SHARED = "shared"
    """Claims hold shares of the device, and a further claim could get a share now."""
    BLOCKED = "blocked"
    """No claim holds the device, but claims hold other devices that use up its counters (KEP-4815) or are not compatible (KEP-5963)."""
    UNAVAILABLE = "unavailable"
    """No claim holds the device, and no request can get it: it has a taint NoSchedule or NoExecute, its node does not exist
    or takes no new pods, or its pool is incomplete or invalid."""
    VANISHED = "vanished"
    """A claim holds the device, but the device is in no slice any more."""


TAKEN = frozenset({DeviceUse.HELD, DeviceUse.SHARED, DeviceUse.VANISHED})
"""The uses of devices that claims hold."""


class HealthRow(StrEnum):
    UNREPORTED = "unreported"  # no taint and no report: a slice shows problems, but never that a device is healthy
    TAINTED = "tainted"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of a counter or of a shared capacity is used. ``share`` is between 0 and 1, or above 1 if overcommitted."""

    name: str
    used: str
    total: str
    share: float


@dataclass(frozen=True, slots=True)
class Holder:
    """One result of a claim's allocation.

    Args:
        claim: ``namespace/name``.
        pods: the consumers that the claim is reserved for: ``namespace/name`` of a pod, or the resource and
            ``namespace/name`` of another object.
        conditions: conditions in the claim's ``status.devices`` that indicate a problem, and conditions that are missing.
        network: the device's network addresses.
    """

    claim: str
    request: str
    pods: tuple[str, ...] = ()
    share: str = ""
    amounts: Mapping[str, str] = field(default_factory=dict)
    admin: bool = False
    conditions: tuple[str, ...] = ()
    network: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device.

    Args:
        node: empty if several nodes can use it; ``reach`` then describes them.
        sets: the counter sets that it uses.
        why: why no request can get the device now, if a reader needs more than ``use``; empty for a free device.
        message: the driver's text about its health.
    """

    node: str
    driver: str
    pool: str
    name: str
    use: DeviceUse
    health: HealthRow
    reach: str = ""
    root: str = ""
    numa: str = ""
    sets: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    why: str = ""
    message: str = ""
    meters: tuple[Meter, ...] = ()
    holders: tuple[Holder, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter set that partitions of a pool share. It stands for a card that claims hold in parts or as a whole.

    Args:
        share: the part of the card that claims hold, from 0 to 1: the largest share of its meters. Numbered counters
            such as ``slot-0`` to ``slot-3`` count as one counter for it.
    """

    driver: str
    pool: str
    name: str
    node: str
    meters: tuple[Meter, ...]
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The number of cards of a node or group, and how many of them are held by claims.

    A counter set counts as one card, however many partitions are published for it. A device without counters counts as
    one card too.

    Args:
        used: cards that claims hold. A card that is held in part counts as a fraction.
    """

    cards: int = 0
    used: float = 0.0

    @property
    def share(self) -> float:
        return self.used / self.cards if self.cards else 0.0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node. ``unschedulable`` is the reason why no new pods are scheduled to it; empty if no reason is known."""

    name: str
    devices: int = 0
    held: int = 0
    unschedulable: str = ""
    occupancy: Occupancy = Occupancy()


class PodReason(NamedTuple):
    """Why a pod waits, on one line. ``reported``: when an Event last reported it, RFC 3339; empty for a fact of present objects."""

    text: str
    reported: str = ""


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod that needs devices and does not run.

    Args:
        since: its creation time, RFC 3339.
        message: the reason that the cluster reports.
        reason: the reason that ``dra explain`` finds; empty until it is computed.
        reported: when an Event last reported the reason, RFC 3339; empty for a fact of present objects.
    """

    namespace: str
    name: str
    uid: str
    node: str
    since: str
    requests: tuple[str, ...]
    message: str = ""
    reason: str = ""
    reported: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of devices. ``free``, ``held``, ``blocked`` and ``unavailable`` add up to ``devices``. ``held`` includes ``shared``.

    Args:
        held: devices that claims hold as a whole or in shares, also vanished devices.
        bad: devices that are tainted, unhealthy or vanished.
        shared: the devices of ``held`` of which a further claim could get a share.
        waiting: pods that wait for devices, of all pods that could be read; None if pods were not requested.
    """

    devices: int = 0
    free: int = 0
    held: int = 0
    blocked: int = 0
    unavailable: int = 0
    bad: int = 0
    shared: int = 0
    waiting: int | None = 0
    occupancy: Occupancy = Occupancy()


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """How many partitions of a type a pool has, and how many more its counters allow."""

    type: str
    total: int
    allocatable: int


@dataclass(frozen=True, slots=True)
class CapacityCount:
    """The capacity of the devices of a pool that claims share, as quantities."""

    name: str
    total: str
    consumed: str
    available: str


@dataclass(frozen=True, slots=True)
class PoolCount:
    """What the control plane counted in a pool (``ResourcePoolStatusRequest``). The numbers are None if it could not count.

    Args:
        partitions: from Kubernetes 1.37, with the gate ``DRAPartitionableDevicesType``.
        capacity: from Kubernetes 1.37.
        error: why a number or a view is missing; empty if none is.
    """

    generation: int = 0
    devices: int | None = None
    allocated: int | None = None
    available: int | None = None
    unavailable: int | None = None
    partitions: tuple[PartitionCount, ...] = ()
    capacity: tuple[CapacityCount, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool: what ``dra top`` counts, and what the control plane counted.

    Args:
        node: the node of all its devices; empty if there are several.
        held: devices that claims hold as a whole or in shares.
        counted: None if the control plane did not count the pool.
    """

    driver: str
    pool: str
    node: str
    devices: int = 0
    held: int = 0
    free: int = 0
    blocked: int = 0
    unavailable: int = 0
    counted: PoolCount | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """All devices, counter sets, nodes and waiting pods at one moment, as ``dra top`` and the status page show them.

    Args:
        title: the object that it describes, such as a cluster.
        pools: the pools with the counts of the control plane; only with ``dra top --pool-status``.
        unavailable: why the data is from the time ``at`` (unix seconds) and not current; empty if it is current.
        gaps: a sentence for each kind of object that could not be read, with the consequence.
        notes: other remarks for the user.
    """

    title: str
    devices: tuple[DeviceRow, ...] = ()
    sets: tuple[CounterRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    pools: tuple[PoolRow, ...] = ()
    waiting: tuple[PodRow, ...] = ()
    count: Count = field(default_factory=Count)
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unavailable: str = ""
    at: float = 0.0


BAD = frozenset({HealthRow.TAINTED, HealthRow.UNHEALTHY})


def counted(devices: Iterable[DeviceRow], sets: Iterable[CounterRow] = (), waiting: int | None = 0) -> Count:
    rows = tuple(devices)
    number = Counter(d.use for d in rows)
    return Count(
        devices=len(rows),
        free=number[DeviceUse.FREE],
        held=sum(number[use] for use in TAKEN),
        blocked=number[DeviceUse.BLOCKED],
        unavailable=number[DeviceUse.UNAVAILABLE],
        bad=sum(1 for d in rows if d.health in BAD or d.use is DeviceUse.VANISHED),
        shared=number[DeviceUse.SHARED],
        waiting=waiting,
        occupancy=occupancy(rows, card_shares(sets)),
    )


SetKey = tuple[str, str, str]  # driver, pool, counter set


def card_shares(sets: Iterable[CounterRow]) -> dict[SetKey, float]:
    return {(s.driver, s.pool, s.name): s.share for s in sets}


def occupancy(devices: Iterable[DeviceRow], shares: Mapping[SetKey, float]) -> Occupancy:
    """Returns the occupancy of some devices.

    Args:
        shares: the result of :func:`card_shares`. The function ignores counter sets that none of the devices uses.
    """
    used: dict[SetKey, float] = {}
    cards = 0
    alone = 0.0
    for d in devices:
        if d.use is DeviceUse.VANISHED:
            continue  # the device does not exist
        if of := [key for name in d.sets if (key := (d.driver, d.pool, name)) in shares]:
            used.update((key, shares[key]) for key in of)
            continue
        cards += 1
        if d.use in TAKEN:
            alone += max((m.share for m in d.meters), default=1.0) if d.use is DeviceUse.SHARED else 1.0
    return Occupancy(cards + len(used), round(alone + sum(used.values()), 4))
