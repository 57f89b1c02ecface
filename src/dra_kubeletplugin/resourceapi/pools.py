"""The type of a pool, as :meth:`Driver.pools` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .nodes import Nodes
from .types import CounterSet, Device

__all__ = ["Nodes", "Pool"]


@dataclass(frozen=True)
class Pool:
    """Devices that belong together, with their shared counters. The framework publishes a pool in one or more slices.

    Args:
        name: one or more DNS subdomains, separated by ``/``, at most 253 bytes; unique in the cluster for the driver. The name of a
            pool of one node is the node's name, or begins with the node's name and ``/``. The plugin does not publish such a pool
            under another name, and the admission policy of ``deploy/`` rejects it.
        devices: in the order in which the scheduler should allocate them. Names are unique in the pool.
        counter_sets: the counters that partitions of one physical device consume (KEP-4815).
        nodes: the nodes where the devices can be used. The plugin publishes pools of :meth:`Nodes.this`; the controller
            (``dra controller``) publishes all others. In a pool of the controller, a device can have its own ``nodes``.
        partition_type: the attribute, as ``DOMAIN/IDENTIFIER``, that contains the type of a partition, for reports (KEP-5677;
            Kubernetes 1.37, gate off by default). If the API server drops this field, only the reports lack the type.
        skip_node_operations: the calls that kubelets skip for these devices: ``"*"``, ``"NodeUnprepareResources"``, or both
            ``"NodePrepareResources"`` and ``"NodeUnprepareResources"`` (KEP-5945; Kubernetes 1.37, gate off by default). If the API
            server drops this field, a pool of this node is published without it. Any other pool is not published, because its pods
            would wait for a plugin.

    The framework checks devices when it publishes the pool. It does not publish a device that breaks a rule, and logs the reason.
    """

    name: str
    devices: Sequence[Device]
    counter_sets: Sequence[CounterSet] = field(default_factory=list)
    nodes: Nodes = field(default_factory=Nodes.this)
    partition_type: str = ""
    skip_node_operations: Sequence[str] = ()

    def options(self) -> dict[str, Any]:
        """Returns the fields of a slice that apply to all its devices, in the form of resource.k8s.io/v1. For the framework."""
        skipped = self.skip_node_operations
        out: dict[str, Any] = {"partitionTypeAttribute": self.partition_type} if self.partition_type else {}
        return out | (
            {"skipNodeOperations": [skipped] if isinstance(skipped, str) else list(skipped)} if skipped else {}
        )
