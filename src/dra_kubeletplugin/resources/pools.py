"""Pools as a driver answers them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .nodes import Nodes
from .types import CounterSet, Device

__all__ = ["MAX_DEVICES", "Nodes", "Pool"]
MAX_DEVICES = 65_536  # an answer that goes on for ever must end somewhere


@dataclass(frozen=True)
class Pool:
    """Devices that belong together, with the counters that they draw from: one answer, checked and published as a whole.

    Args:
        name: DNS subdomains of 253 bytes in all, separated by ``/``; unique in the cluster for the driver, so the pool of a
            node is named like the node, or begins with its name. One that begins with another node's name is left out.
        devices: in the order in which they should be given out. Names are unique in the pool.
        counter_sets: what partitions of one physical device draw from (KEP-4815).
        nodes: from where the devices can be used. A pool of :meth:`Nodes.this` is published by the plugin of that node; all
            others are the controller's (``dra controller``). A device with ``nodes`` of its own overrides it, in a pool that is
            not of this node.

    What breaks a rule is found when the pool is published, device by device: it is left out alone, and named.
    """

    name: str
    devices: Sequence[Device]
    counter_sets: Sequence[CounterSet] = ()
    nodes: Nodes = field(default_factory=Nodes.this)

    def __post_init__(self) -> None:
        # Read to the end where the author's code runs; what is no list at all is told by who reads the answer.
        for name in ("devices", "counter_sets"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
                object.__setattr__(self, name, tuple(itertools.islice(value, MAX_DEVICES + 1)))
