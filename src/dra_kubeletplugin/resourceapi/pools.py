"""Pools as a driver answers them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import is_a
from .nodes import Nodes
from .types import CounterSet, Device

__all__ = ["MAX_DEVICES", "Nodes", "Pool"]
MAX_DEVICES = 65_536  # an answer that goes on for ever must end somewhere


@dataclass(frozen=True)
class Pool:
    """Devices that belong together, with the counters that they draw from: one answer, checked and published as a whole.

    Args:
        name: DNS subdomains of 253 bytes in all, separated by ``/``; unique in the cluster for the driver. A pool of one node
            has the name of the node, or begins with it and ``/``. Other names are not published there, and the admission policy of
            ``deploy/`` refuses them.
        devices: in the order in which they should be given out. Names are unique in the pool.
        counter_sets: what partitions of one physical device draw from (KEP-4815).
        nodes: from where the devices can be used. A pool of :meth:`Nodes.this` is published by the plugin of that node; all
            others are the controller's (``dra controller``). A device with ``nodes`` of its own overrides it, in a pool that is
            not of this node.
        partition_type: the attribute by which reports distinguish its kinds of partitions, ``DOMAIN/IDENTIFIER`` (KEP-5677; Kubernetes
            1.37, gate off by default). Where the server drops it, nothing but the report is lost.
        skip_node_operations: what kubelets need not call a plugin for, for these devices: ``"*"``, ``"NodeUnprepareResources"`` or
            both calls (KEP-5945; Kubernetes 1.37, gate off by default). Where the server drops it, a pool of this node is published
            without, and any other is not published: its pods would wait for a plugin.

    What breaks a rule is found when the pool is published, device by device: it is left out alone, and named.
    """

    name: str
    devices: Sequence[Device]
    counter_sets: Sequence[CounterSet] = ()
    nodes: Nodes = field(default_factory=Nodes.this)
    partition_type: str = ""
    skip_node_operations: Sequence[str] = ()

    def options(self) -> dict[str, Any]:
        """What each of its slices says of all devices in it, as resource.k8s.io/v1 has it."""
        skipped = self.skip_node_operations
        out: dict[str, Any] = {"partitionTypeAttribute": self.partition_type} if self.partition_type else {}
        return out | (
            {"skipNodeOperations": [skipped] if isinstance(skipped, str) else list(skipped)} if skipped else {}
        )

    def __post_init__(self) -> None:
        # Read to the end while the author's code runs. The reader of the result reports a value that is no list.
        for name in ("devices", "counter_sets"):
            value = getattr(self, name)
            if is_a(value, Iterable) and not is_a(value, (str, bytes, Mapping)):
                object.__setattr__(self, name, tuple(itertools.islice(value, MAX_DEVICES + 1)))
