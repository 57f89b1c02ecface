"""What a step of the scheduler says of a pod on a node, and the sentence that sums it up for the pod's event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Plugin(Enum):
    """Who rejected a pod: it decides which changes of the cluster let the pod be tried again."""

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
    POD_GROUP = "PodGroup"
    UNSUPPORTED = "local cluster"


@dataclass(frozen=True)
class Rejection:
    """Why a pod cannot go to a node, or to none. ``resolvable``: the removal of other pods might help."""

    plugin: Plugin
    reasons: tuple[str, ...]
    resolvable: bool = False

    @classmethod
    def of(cls, plugin: Plugin, *reasons: str, resolvable: bool = False) -> Rejection:
        return cls(plugin, reasons, resolvable)


class Unschedulable(Exception):
    """The pod has to wait for a change. The text is for its event and its condition."""


class SchedulerError(Exception):
    """Something is wrong with the pod, its claims or the cluster: it is tried again after a pause."""


NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass
class NodeDiagnosis:
    """Why no node of ``nodes`` took a pod: all of them for one reason, or each for its own."""

    nodes: int
    rejected: dict[str, Rejection] = field(default_factory=dict)  # by node
    of_all: Rejection | None = None
    after: str = ""  # what was tried then

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
        elif told := counted(r for rejection in self.rejected.values() for r in rejection.reasons):
            out += f" {told}."
        return f"{out} {self.after}" if self.after else out


def counted(reasons: Iterable[str]) -> str:
    """``1 Insufficient cpu, 2 node(s) were unschedulable``: sorted as text, as Kubernetes does it."""
    return ", ".join(sorted(f"{n} {why}" for why, n in Counter(reasons).items()))
