"""The state of a publisher, as ``Plugin.published()`` returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PoolStatus:
    """One pool as the API server stores it."""

    name: str
    generation: int
    slices: int
    devices: int


@dataclass(frozen=True)
class PublisherStatus:
    """The state of a publisher.

    ``pools`` and ``at`` describe the last time when the slices were as wanted. The other fields describe the present.

    Attributes:
        pools: the published pools.
        rejected: pools, devices and counter sets that are not published, each with the reason.
        gates_off: feature gates that the API server has off.
        dropped: fields that the API server dropped and that belong to no known gate.
        fault: why the slices are not as wanted, or why changes by other writers are not noticed; empty if there is no fault.
        current: whether the slices have the devices that the driver last returned.
        leads: whether this instance publishes.
        at: when the slices were last as wanted, in unix seconds; 0 if they never were.
    """

    pools: Sequence[PoolStatus] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    gates_off: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    fault: str = ""
    current: bool = False
    leads: bool = True
    at: float = 0.0
