"""The model of device usage: typed rows that encode to the JSON of the web page and of `dra top -o json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class DeviceUse(StrEnum):
    FREE = "free"
    HELD = "held"
    SHARED = "shared"  # held, and other claims may use a part of it too
    BLOCKED = "blocked"  # not held, but other partitions hold the counters that it needs (KEP-4815)
    VANISHED = "vanished"  # held by a claim, but in no slice any more


class HealthRow(StrEnum):
    UNREPORTED = "unreported"  # no taint; a slice contains problems only, not that a device is healthy
    TAINTED = "tainted"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


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
        state: the state in the plugin's record of the claim; empty if the data is from the API server only.
    """

    claim: str
    request: str
    pods: tuple[str, ...] = ()
    share: str = ""
    amounts: Mapping[str, str] = field(default_factory=dict)
    admin: bool = False
    conditions: tuple[str, ...] = ()
    network: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device.

    Args:
        node: empty if several nodes can use it; ``reach`` then describes them.
        sets: the counter sets that it uses.
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
    """A counter set, which partitions of a pool share."""

    driver: str
    pool: str
    name: str
    node: str
    meters: tuple[Meter, ...]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node. ``unschedulable`` says why no new pods are scheduled to it; empty if no reason is known."""

    name: str
    devices: int = 0
    held: int = 0
    unschedulable: str = ""


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod that needs devices and does not run.

    Args:
        since: its creation time, RFC 3339.
        message: the reason that the cluster reports.
        reason: the reason that ``dra explain`` finds; empty until it is computed.
    """

    namespace: str
    name: str
    uid: str
    node: str
    since: str
    requests: tuple[str, ...]
    message: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    devices: int = 0
    free: int = 0
    held: int = 0
    blocked: int = 0
    bad: int = 0
    """Devices that are tainted, unhealthy or vanished."""
    waiting: int | None = 0
    """Pods that wait for devices; None if pods were not requested."""


@dataclass(frozen=True, slots=True)
class Overview:
    """All devices, counter sets, nodes and waiting pods at one moment, as ``dra top`` and the status page show them.

    Args:
        title: the object that it describes, such as a cluster.
        unavailable: why the data is from the time ``at`` (unix seconds) and not current; empty if it is current.
        gaps: a sentence for each kind of object that could not be read, with the consequence.
        notes: other remarks for the user.
    """

    title: str
    devices: tuple[DeviceRow, ...] = ()
    sets: tuple[CounterRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    waiting: tuple[PodRow, ...] = ()
    count: Count = field(default_factory=Count)
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unavailable: str = ""
    at: float = 0.0


BAD = frozenset({HealthRow.TAINTED, HealthRow.UNHEALTHY})


def counted(devices: tuple[DeviceRow, ...], waiting: int | None = 0) -> Count:
    uses = [d.use for d in devices]
    return Count(
        devices=len(devices),
        free=uses.count(DeviceUse.FREE),
        held=len(uses) - uses.count(DeviceUse.FREE) - uses.count(DeviceUse.BLOCKED),
        blocked=uses.count(DeviceUse.BLOCKED),
        bad=sum(1 for d in devices if d.health in BAD or d.use is DeviceUse.VANISHED),
        waiting=waiting,
    )
