"""What is published now, for readiness, metrics and authors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...resourceapi.gated_fields import Gate


@dataclass(frozen=True)
class PoolStatus:
    """One pool as the API server has it."""

    name: str
    generation: int
    slices: int
    devices: int


@dataclass(frozen=True)
class PublisherStatus:
    """Of a publisher. Made when slices were last as wanted, but for ``current``, ``leads`` and ``fault``, which are of now.

    Attributes:
        pools: what was published.
        left_out: pools, devices and counter sets that are not published, each with the reason.
        gates_off: feature gates that the API server was found to have off.
        dropped: other fields that it dropped.
        fault: why slices are not, or may not stay, as they should be; empty where all is well.
        current: whether the server has what the driver said last.
        leads: whether this instance is the one that publishes on its node.
        at: when slices were last as wanted, in unix seconds; 0 for never.
    """

    pools: Sequence[PoolStatus] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    gates_off: frozenset[Gate] = frozenset()
    dropped: frozenset[str] = frozenset()
    fault: str = ""
    current: bool = False
    leads: bool = True
    at: float = 0.0
