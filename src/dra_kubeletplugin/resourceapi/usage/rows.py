"""The model: typed rows, which encode to the JSON that a page reads and `dra top -o json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class DeviceUse(StrEnum):
    FREE = "free"
    HELD = "held"
    SHARED = "shared"  # held, and other claims may have a part of it too
    BLOCKED = "blocked"  # free itself, but other partitions hold the counters that it draws from (KEP-4815)
    GONE = "gone"  # a claim has it, and no slice has it any more


class HealthRow(StrEnum):
    UNSAID = "unsaid"  # slices say only what is wrong
    TAINTED = "tainted"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of a counter or of a shared capacity is taken; ``share`` is between 0 and 1, and more where too much is."""

    name: str
    taken: str
    total: str
    share: float


@dataclass(frozen=True, slots=True)
class Holder:
    """One result of a claim's allocation. ``claim`` is namespace/name; ``pods`` are whom it is reserved for: namespace/name of
    a pod, with the resource before it where it is none.

    ``conditions`` are those of the claim's ``status.devices`` that are not as they should be, and ``network`` its addresses.
    ``state`` is the plugin's record of it, empty where only the API server was asked.
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
    """A device. ``node`` is empty where it is for several, which ``reach`` tells then. ``sets`` are the counter sets it draws from."""

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
    """What partitions of a pool draw from."""

    driver: str
    pool: str
    name: str
    node: str
    meters: tuple[Meter, ...]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """``away`` is why nothing new goes there, empty where nothing is known against it."""

    name: str
    devices: int = 0
    held: int = 0
    away: str = ""


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod that wants devices and does not run. ``since`` is when it was made, RFC 3339.

    ``said`` is the cluster's own word for why; ``reason`` that of ``dra explain``, empty while it is not computed.
    """

    namespace: str
    name: str
    uid: str
    node: str
    since: str
    wants: tuple[str, ...]
    said: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    devices: int = 0
    free: int = 0
    held: int = 0
    blocked: int = 0
    bad: int = 0
    """Tainted, unhealthy or gone."""
    waiting: int | None = 0
    """Pods; None where nobody asked for them."""


@dataclass(frozen=True, slots=True)
class Overview:
    """``title`` is what was looked at. ``away`` is why what is shown is of ``at`` (unix seconds) and no newer; empty while it is live.

    ``gaps`` are what may not be read, each with its consequence; ``notes`` what should be known besides.
    """

    title: str
    devices: tuple[DeviceRow, ...] = ()
    sets: tuple[CounterRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    waiting: tuple[PodRow, ...] = ()
    count: Count = field(default_factory=Count)
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    away: str = ""
    at: float = 0.0


BAD = frozenset({HealthRow.TAINTED, HealthRow.UNHEALTHY})


def counted(devices: tuple[DeviceRow, ...], waiting: int | None = 0) -> Count:
    uses = [d.use for d in devices]
    return Count(
        devices=len(devices),
        free=uses.count(DeviceUse.FREE),
        held=len(uses) - uses.count(DeviceUse.FREE) - uses.count(DeviceUse.BLOCKED),
        blocked=uses.count(DeviceUse.BLOCKED),
        bad=sum(1 for d in devices if d.health in BAD or d.use is DeviceUse.GONE),
        waiting=waiting,
    )
