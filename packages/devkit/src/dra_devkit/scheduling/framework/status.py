"""The results of filters for a pod, and the summary of them in the pod's event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Plugin(Enum):
    """A plugin that can reject a pod. It determines which cluster changes cause a retry."""

    GATES = "SchedulingGates"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_NAME = "NodeName"
    TAINTS = "TaintToleration"
    NODE_AFFINITY = "NodeAffinity"
    PORTS = "NodePorts"
    FIT = "NodeResourcesFit"
    SPREAD = "PodTopologySpread"
    POD_AFFINITY = "InterPodAffinity"
    DEVICES = "DynamicResources"
    NODE_ALLOCATABLE = "DynamicResources, for resources of the node"
    POD_GROUP = "PodGroup"
    UNSUPPORTED = "local cluster"


@dataclass(frozen=True)
class Rejection:
    """Why a pod cannot run on a node, or on any node. ``resolvable``: the removal of other pods might help."""

    plugin: Plugin
    reasons: tuple[str, ...]
    resolvable: bool = False

    @classmethod
    def of(cls, plugin: Plugin, *reasons: str, resolvable: bool = False) -> Rejection:
        return cls(plugin, reasons, resolvable)


class SchedulerError(Exception):
    """The pod, its claims or the cluster has an error. The pod is retried after a pause. An allocation's error is the cause."""


NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass
class NodeDiagnosis:
    """Why none of ``nodes`` nodes accepted a pod: one reason for all nodes, or a reason per node."""

    nodes: int
    rejected: dict[str, Rejection] = field(default_factory=dict)  # by node
    of_all: Rejection | None = None
    after: str = ""  # the result of preemption, appended to the text

    @property
    def plugins(self) -> frozenset[Plugin]:
        if self.of_all:
            return frozenset({self.of_all.plugin})
        return frozenset(r.plugin for r in self.rejected.values())

    def __str__(self) -> str:
        if not self.nodes:
            return "no nodes available to schedule pods"
        out = f"0/{self.nodes} nodes are available:"
        if self.of_all:
            out += f" {', '.join(self.of_all.reasons)}."
        elif summary := counted(r for rejection in self.rejected.values() for r in rejection.reasons):
            out += f" {summary}."
        return f"{out} {self.after}" if self.after else out


def counted(reasons: Iterable[str]) -> str:
    """Counts equal reasons: ``1 Insufficient cpu, 2 node(s) were unschedulable``. As in Kubernetes, they are sorted as text."""
    return ", ".join(sorted(f"{n} {why}" for why, n in Counter(reasons).items()))
