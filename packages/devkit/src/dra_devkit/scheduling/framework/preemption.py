"""Preemption: finds pods of lower priority whose eviction lets a pod fit.

As in Kubernetes 1.36, preemption does not free devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cycle import Cycle
from .node_info import NodeInfo
from .pod_info import PodInfo
from .status import NOT_HELPFUL, NodeDiagnosis, Plugin, Rejection

_NO_VICTIMS = Rejection.of(Plugin.FIT, "No preemption victims found for incoming pod")
_NOT_HELPFUL = Rejection.of(Plugin.FIT, NOT_HELPFUL)


@dataclass(frozen=True)
class Victims:
    node: str
    pods: Sequence[PodInfo]  # highest priority first


def preempt(cycle: Cycle) -> Victims | str:
    """Returns the victims, or the text for the pod's event that explains why there are none."""
    pod = cycle.pod
    if refused := _not_eligible(cycle):
        return f"preemption: {refused}"
    found: list[Victims] = []
    diagnosis = NodeDiagnosis(len(cycle.snapshot.nodes))
    for node in cycle.snapshot.nodes:
        before = cycle.rejected.get(node.name)
        if before is None or not before.resolvable:
            diagnosis.rejected[node.name] = _NOT_HELPFUL
            continue
        victims = _victims_on(cycle, node)
        if isinstance(victims, Victims):
            found.append(victims)
        else:
            diagnosis.rejected[node.name] = victims
    if not found:
        return f"preemption: {diagnosis}"
    return min(found, key=lambda v: _cost(v, pod))


def not_helpful(nodes: int) -> str:
    """Returns the text for the event of a pod that was rejected before any node was checked."""
    diagnosis = NodeDiagnosis(nodes, {str(i): _NOT_HELPFUL for i in range(nodes)})
    return f"preemption: {diagnosis}"


def _not_eligible(cycle: Cycle) -> str:
    pod = cycle.pod
    if pod.spec.get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    for node in cycle.snapshot.nodes:
        rejection = cycle.rejected.get(node.name)
        if node.name == pod.nominated and rejection is not None and rejection.resolvable:
            if any(p.priority < pod.priority and p.terminating for p in node.pods.values()):
                return "not eligible due to a terminating pod on the nominated node."
    return ""


def _victims_on(cycle: Cycle, node: NodeInfo) -> Victims | Rejection:
    """Removes all pods of lower priority, then puts back each pod that still fits, highest priority first.

    The remaining pods are the victims.
    """
    lower = [p for p in node.pods.values() if p.priority < cycle.pod.priority]
    if not lower:
        return _NO_VICTIMS
    changed = node
    for p in lower:
        changed = changed.without_pod(p.uid)
    if rejection := cycle.rejects_changed(changed):
        return rejection
    victims = []
    for p in sorted(lower, key=lambda p: (-p.priority, p.created)):
        reprieved = changed.with_pod(p)
        if cycle.rejects_changed(reprieved) is None:
            changed = reprieved
        else:
            victims.append(p)
    return Victims(node.name, victims)


def _cost(victims: Victims, pod: PodInfo) -> tuple[int, int, int, tuple[int, ...], str]:
    """Returns a sort key; the victims with the lowest key are evicted.

    It contains the highest priority, the sum of the priorities, the number of pods, and the creation time of the oldest
    pod with the highest priority. A later time sorts first.
    """
    pods = victims.pods
    highest = max((p.priority for p in pods), default=-(2**31))
    started = min((p.created for p in pods if p.priority == highest), default="")
    latest_first = tuple(-ord(c) for c in started)
    return highest, sum(p.priority + 2**31 for p in pods), len(pods), latest_first, victims.node
