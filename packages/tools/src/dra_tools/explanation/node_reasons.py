"""Finds the reasons why the scheduler's filters reject a node for a pod, except the reasons of devices."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dra_devkit.scheduling.allocator.taints import tolerates
from dra_devkit.scheduling.framework import filters
from dra_devkit.scheduling.framework.affinity import PodAffinity
from dra_devkit.scheduling.framework.node_info import NodeInfo, pods_allowed
from dra_devkit.scheduling.framework.pod_info import CPU, PodInfo, is_extended, used_by_claim
from dra_devkit.scheduling.framework.spread import Spread
from dra_devkit.scheduling.framework.status import Plugin, Rejection
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import counted, join_names
from dra_kubeletplugin.resourceapi import node_selectors

from ..taints import BLOCKING_EFFECTS, taint_text
from .device_reasons import DeviceFault
from .model import ReasonKind

_KINDS = {
    Plugin.NODE_UNSCHEDULABLE: ReasonKind.CORDONED,
    Plugin.TAINTS: ReasonKind.NODE_TAINT,
    Plugin.NODE_AFFINITY: ReasonKind.NODE_AFFINITY,
    Plugin.PORTS: ReasonKind.PORTS,
    Plugin.FIT: ReasonKind.RESOURCES,
    Plugin.SPREAD: ReasonKind.SPREAD,
    Plugin.POD_AFFINITY: ReasonKind.POD_AFFINITY,
}


class NodeFilters:
    """The scheduler's filters for one pod.

    Args:
        by_class: extended resources of the pod that a DeviceClass provides: resource → class.
        known: names of extended resources in the cluster, for suggestions.
    """

    def __init__(
        self,
        pod: PodInfo,
        nodes: list[NodeInfo],
        namespaces: Mapping[str, Mapping[str, str]],
        by_class: Mapping[str, str],
        known: Collection[str] = (),
    ) -> None:
        self.pod = pod
        self._by_class = by_class
        self._known = known
        self._affinity = PodAffinity(pod, nodes, namespaces)
        self._spread = Spread(pod, nodes)
        self._selector_keys = tuple(pod.spec.get("nodeSelector") or ())
        self._required = pod.affinity("nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")

    def key(self, node: NodeInfo) -> Hashable:
        """Returns a value that is equal for nodes with equal faults."""
        too_little = filters.fit(self.pod, node, self._by_class) is not None
        return (
            node.restrictions,
            tuple((f.text, f.detail) for f in self._resources(node)) if too_little else (),
            tuple(node.labels.get(key) for key in self._selector_keys),
            self._required is None or node_selectors.selector_matches(node.node, self._required),
            bool(self.pod.ports and filters.ports(self.pod, node)),
            self._spread.rejects(node) if self._spread.matters else None,
            self._affinity.rejects(node) if self._affinity.matters else None,
        )

    def faults(self, node: NodeInfo) -> Iterator[DeviceFault]:
        """Yields reasons in the order of the scheduler, which reports only the first."""
        pod = self.pod
        cordoned = filters.unschedulable(pod, node)
        if cordoned:
            yield DeviceFault(
                ReasonKind.CORDONED,
                "the node is unschedulable",
                "make the node schedulable again",
                command="kubectl uncordon {node}",
            )
        # The node controller adds and removes this taint together with ``spec.unschedulable``, so it is not a second reason.
        yield from self._taints(node, without=filters.UNSCHEDULABLE_TAINT["key"] if cordoned else "")
        if pod.has_affinity or pod.spec.get("nodeSelector"):
            if filters.node_affinity(pod, node):
                yield from self._selection(node)
        if pod.ports and (rejection := filters.ports(pod, node)):
            yield _fault_of(rejection, "another node, or delete the pods that have these ports")
        yield from self._resources(node)
        if self._spread.matters and (rejection := self._spread.rejects(node)):
            yield _fault_of(
                rejection, "a topologySpreadConstraint with a larger maxSkew, or fewer pods that it counts on this node"
            )
        if self._affinity.matters and (rejection := self._affinity.rejects(node)):
            yield _fault_of(rejection, "other affinity terms, or other pods on the node")

    def _taints(self, node: NodeInfo, without: str) -> Iterator[DeviceFault]:
        for taint in (t for t in node.taints if t["key"] != without):
            if taint["effect"] in BLOCKING_EFFECTS and not any(tolerates(t, taint) for t in self.pod.tolerations):
                shown = taint_text(taint)
                yield DeviceFault(
                    ReasonKind.NODE_TAINT,
                    f"the node has the taint {shown}, which the pod does not tolerate",
                    f"the pod has to tolerate {shown}, or the taint has to be removed",
                    command=f"kubectl taint node {{node}} {shown}-",
                )

    def _selection(self, node: NodeInfo) -> Iterator[DeviceFault]:
        wrong = {k: v for k, v in (self.pod.spec.get("nodeSelector") or {}).items() if node.labels.get(k) != v}
        for key, value in wrong.items():
            has = f"it is {node.labels[key]}" if key in node.labels else "it has no such label"
            yield DeviceFault(
                ReasonKind.NODE_AFFINITY,
                f"nodeSelector {key}={value} is not met",
                "another nodeSelector, or the label",
                has,
            )
        if self._required is not None and not node_selectors.selector_matches(node.node, self._required):
            text = f"the required node affinity is not met: {_terms(self._required)}"
            yield DeviceFault(ReasonKind.NODE_AFFINITY, text, "another node affinity, or labels that meet it")

    def _resources(self, node: NodeInfo) -> Iterator[DeviceFault]:
        pod = self.pod
        if filters.fit(pod, node, self._by_class) is None:
            return
        if len(node.pods) + 1 > pods_allowed(node):
            yield DeviceFault(
                ReasonKind.RESOURCES,
                "the node has its maximum number of pods",
                "delete pods",
                counted(len(node.pods), "pod"),
            )
        for name, wanted in pod.wanted:
            has = node.allocatable.get(name, 0)
            free = has - node.requested.get(name, 0)
            if wanted <= free or (not has and name in self._by_class):
                continue
            if is_extended(name) and not has:
                similar = difflib.get_close_matches(name, self._known, 1, _SIMILAR)
                hint = f" (there is {similar[0]})" if similar else ""
                text = f"the node has no {name}, and no DeviceClass provides it{hint}"
                change = f"a DeviceClass with extendedResourceName {name}, or a device plugin that provides it"
                yield DeviceFault(ReasonKind.EXTENDED, text, change)
            else:
                detail = f"{_amount(name, wanted)} wanted, {_amount(name, max(free, 0))} of {_amount(name, has)} free"
                ways = [f"less {name}"] if free > 0 or not has else []
                ways += ["delete pods"] if wanted <= has else []
                change = ", or ".join(ways) or f"less {name}, and delete pods"
                text, enough = (
                    f"the node has too little {name}",
                    _enough(pod, node, name, wanted - free) if wanted <= has else "",
                )
                yield DeviceFault(ReasonKind.RESOURCES, text, change, detail, subject=enough)

    def of_claims(self, node: NodeInfo, entries: Sequence[JSON]) -> Iterator[DeviceFault]:
        """Yields the resources of which a node has too little for the pod together with the devices of its claims.

        Args:
            entries: what the devices use that the scheduler chose on the node, by claim.
        """
        pod = self.pod.with_claims(entries)
        for name, wanted in pod.wanted:
            has = node.allocatable.get(name, 0)
            free = has - node.requested.get(name, 0)
            by_claim = {e["resourceClaimName"]: used for e in entries if (used := used_by_claim(e).get(name, 0))}
            if wanted <= free or not by_claim:
                continue
            claims = [f"{_amount(name, used)} by the devices of claim {claim}" for claim, used in by_claim.items()]
            detail = f"{_amount(name, wanted)} wanted, of which {join_names(claims)}; "
            detail += f"{_amount(name, max(free, 0))} of {_amount(name, has)} free"
            ways = [f"devices that use less {name}"] + (["delete pods"] if wanted <= has else [])
            enough = _enough(pod, node, name, wanted - free) if wanted <= has else ""
            text = f"the node has too little {name} for the pod and the devices of its claims"
            yield DeviceFault(ReasonKind.RESOURCES, text, ", or ".join(ways), detail, subject=enough)


_SIMILAR = 0.8  # similarity of the names of extended resources, from 0 to 1
_LARGE = 1 << 63  # from this amount on, Decimal is used: some quantities exceed the range of a float


def _fault_of(rejection: Rejection, change: str) -> DeviceFault:
    return DeviceFault(_KINDS[rejection.plugin], rejection.reasons[0], change)


def _enough(waiting: PodInfo, node: NodeInfo, name: str, missing: int) -> str:
    """Returns a pod whose deletion alone would be enough, such as ``pod ml/train requests 4 cpu``; empty if there is none.

    Of several pods, it is the least important one with the smallest request. A pod that its node or DaemonSet creates again is none, and
    neither is a pod that is more important than the waiting pod.
    """
    pods = [p for p in node.pods.values() if p.requests.get(name, 0) >= missing and p.priority <= waiting.priority]
    found = min((p for p in pods if not _stays(p)), key=lambda p: (p.priority, p.requests[name], p.key), default=None)
    return f"pod {found.key} requests {_amount(name, found.requests[name])} {name}" if found else ""


def _stays(pod: PodInfo) -> bool:
    owners = pod.pod["metadata"].get("ownerReferences") or []
    return any(o.get("kind") in {"DaemonSet", "Node"} for o in owners)


def _amount(name: str, amount: int) -> str:
    if amount >= _LARGE:
        return f"{Decimal(amount) / (1000 if name == CPU else 1):.4g}"
    if name == CPU:
        return f"{amount / 1000:g}"
    for power, suffix in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if amount >= 1 << power:
            return f"{amount / (1 << power):.4g}{suffix}"
    return str(amount)


def _terms(selector: Mapping[str, Any]) -> str:
    return " or ".join(
        " and ".join(
            " ".join([str(e["key"]), str(e["operator"]), ",".join(e.get("values") or [])]).strip()
            for e in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
        )
        or "nothing"
        for term in selector.get("nodeSelectorTerms") or []
    )
