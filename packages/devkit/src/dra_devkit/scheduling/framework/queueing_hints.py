"""Cluster changes, and the waiting pods that each change may help: Kubernetes' queueing hints.

A rejected pod is retried only after a change that its rejecting plugins depend on. For example, the deletion of a
slice or a kubelet's heartbeat helps no pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from dra_kubeletplugin.base.json_types import JSON

from .claim_cache import is_allocated
from .node_info import NodeInfo
from .pod_info import PodInfo
from .status import Plugin


class ChangeKind(Enum):
    NODE_ADDED = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()  # or spec.unschedulable
    NODE_RESOURCES = auto()
    POD_ADDED = auto()  # to a node
    POD_LABELS = auto()  # of a pod on a node
    POD_GONE = auto()  # from a node
    OWN = auto()  # the waiting pod itself
    CLAIM = auto()
    CLASS = auto()
    SLICE = auto()
    NAMESPACE = auto()
    POD_GROUP = auto()  # a new group; groups do not change


@dataclass(frozen=True, eq=False)
class ClusterChange:
    """One change. ``before`` and ``after`` are claims; ``pod`` is the UID of the changed pod."""

    kind: ChangeKind
    before: JSON | None = None
    after: JSON | None = None
    pod: str = ""

    @property
    def claim(self) -> str:
        """``namespace/name`` of the changed claim."""
        meta = (self.after or {"metadata": {}})["metadata"]
        return f"{meta.get('namespace')}/{meta.get('name')}"

    @property
    def frees(self) -> bool:
        """Whether the change freed a claim's devices."""
        if self.before is None or self.after is None:
            return False
        return is_allocated(self.before) and not is_allocated(self.after)


_PLACE = frozenset({ChangeKind.NODE_ADDED, ChangeKind.NODE_LABELS})
_OTHER_PODS = frozenset({ChangeKind.POD_ADDED, ChangeKind.POD_LABELS, ChangeKind.POD_GONE})
_OWN = frozenset({ChangeKind.OWN})
_FIT = _OWN | {ChangeKind.NODE_ADDED, ChangeKind.NODE_RESOURCES, ChangeKind.POD_GONE, ChangeKind.CLASS}
_DEVICES = _OWN | _PLACE | {ChangeKind.NODE_TAINTS, ChangeKind.CLAIM, ChangeKind.CLASS, ChangeKind.SLICE}
_HELPS: Mapping[Plugin, frozenset[ChangeKind]] = {
    Plugin.GATES: _OWN,
    Plugin.UNSUPPORTED: _OWN | {ChangeKind.POD_GROUP},
    Plugin.POD_GROUP: frozenset({ChangeKind.POD_GROUP}),
    Plugin.NODE_NAME: frozenset({ChangeKind.NODE_ADDED}),
    Plugin.NODE_UNSCHEDULABLE: _OWN | {ChangeKind.NODE_ADDED, ChangeKind.NODE_TAINTS},
    Plugin.TAINTS: _OWN | {ChangeKind.NODE_ADDED, ChangeKind.NODE_TAINTS},
    Plugin.NODE_AFFINITY: _PLACE,
    Plugin.PORTS: frozenset({ChangeKind.NODE_ADDED, ChangeKind.POD_GONE}),
    Plugin.FIT: _FIT,
    Plugin.SPREAD: _OWN | _PLACE | _OTHER_PODS | {ChangeKind.NODE_TAINTS},
    Plugin.POD_AFFINITY: _OWN | _PLACE | _OTHER_PODS | {ChangeKind.NAMESPACE},
    Plugin.DEVICES: _DEVICES,
    Plugin.NODE_ALLOCATABLE: _FIT | _DEVICES,
}


def helps(change: ClusterChange, uid: str, rejectors: Iterable[Plugin], uses: Callable[[str], bool]) -> bool:
    """Returns whether a change may help a pod.

    Args:
        uid: the UID of the pod.
        rejectors: the plugins that rejected the pod.
        uses: returns whether the pod uses the claim with this UID and all claims of the pod exist.
    """
    for plugin in rejectors:
        if change.kind not in _HELPS[plugin]:
            continue
        if change.kind is ChangeKind.OWN:
            if change.pod == uid:
                return True
        elif change.kind is ChangeKind.CLAIM:
            if _claim_helps(change, uses):
                return True
        else:
            return True
    return False


def _claim_helps(change: ClusterChange, uses: Callable[[str], bool]) -> bool:
    after = change.after
    if after is None:
        return False
    if change.frees:
        return True
    if change.before is not None and change.before.get("status") == after.get("status"):
        return False
    return uses(str(after["metadata"]["uid"]))


def of_node(before: NodeInfo | None, after: NodeInfo) -> list[ClusterChange]:
    if before is None:
        return [ClusterChange(ChangeKind.NODE_ADDED)]
    out = []
    if before.labels != after.labels:
        out.append(ClusterChange(ChangeKind.NODE_LABELS))
    if before.taints != after.taints or before.unschedulable != after.unschedulable:
        out.append(ClusterChange(ChangeKind.NODE_TAINTS))
    if before.allocatable != after.allocatable:
        out.append(ClusterChange(ChangeKind.NODE_RESOURCES))
    return out


def of_placed_pod(before: PodInfo | None, after: PodInfo) -> list[ClusterChange]:
    """Returns the changes of a pod that has a node."""
    if before is None or not before.node:
        return [ClusterChange(ChangeKind.POD_ADDED, pod=after.uid)]
    out = []
    if before.labels != after.labels:
        out.append(ClusterChange(ChangeKind.POD_LABELS, pod=after.uid))
    if before.requests != after.requests:
        out.append(ClusterChange(ChangeKind.POD_GONE, pod=after.uid))  # freed resources help like a deleted pod
    return out


_OWN_STATUS = ("resourceClaimStatuses",)


def of_waiting_pod(before: PodInfo, after: PodInfo) -> list[ClusterChange]:
    """Returns the changes of a pod without a node.

    Of the pod's status only ``resourceClaimStatuses`` counts, because the scheduler itself writes other fields.
    """
    changed = before.spec != after.spec or before.labels != after.labels
    old, new = before.pod.get("status") or {}, after.pod.get("status") or {}
    changed = changed or any(old.get(k) != new.get(k) for k in _OWN_STATUS)
    return [ClusterChange(ChangeKind.OWN, pod=after.uid)] if changed else []
