"""Builds the rows of `dra top` from plain objects: devices with their holders and health, and waiting pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import natural
from dra_kubeletplugin.errors import clip
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi import node_selectors

from ..doubled_resources import doubled_resources
from ..snapshot import Snapshot
from ..unevaluated.objects import SliceParts, all_not_evaluated
from ..usage.availability import unschedulable
from ..usage.rows import (
    TAKEN,
    CounterRow,
    DeviceRow,
    NodeRow,
    Overview,
    PodReason,
    PodRow,
    card_shares,
    counted,
    occupancy,
)
from ..usage.usage import ObjectCache, Reaches, UsageCounter
from ..waiting_pods import entries, extended_requests, waiting_pods


def overview(
    snapshot: Snapshot,
    node: str = "",
    reasons: Mapping[str, PodReason] | None = None,
    counter: UsageCounter | None = None,
    namespace: str = "",
    parts: ObjectCache[SliceParts] | None = None,
) -> Overview:
    """Returns the rows of a cluster or of one node.

    The rows of a node are the devices that its pods can use, and the waiting pods that have this node or none.

    Args:
        node: name of the node; a node that does not exist has no devices, and a note is added.
        reasons: the summary of :func:`explain` for each pod, by UID.
        counter: the counter of the previous overview, to reuse its work for the same cluster.
        namespace: the namespace of the waiting pods; empty for all.
        parts: caches :func:`.parts_of_slice` from one overview of the same cluster to the next.
    """
    by_name = {str(n["metadata"]["name"]): n for n in snapshot.nodes}
    one = by_name.get(node) or {"metadata": {"name": node, "labels": {}}}
    reaches: Reaches | None = (lambda sl, d: _reaches(one, sl, d)) if node else None
    found = (counter or UsageCounter()).tally(
        snapshot.tainted_slices, snapshot.claims, reaches, None if snapshot.gap(NODES) else snapshot.nodes
    )
    unevaluated = all_not_evaluated(snapshot, parts.of(snapshot.slices) if parts else None)
    notes = [*map(str, unevaluated), *snapshot.remarks, *found.notes]
    if node and node not in by_name and snapshot.is_complete(NODES):
        notes.append(f"there is no node {node}")
    notes += map(str, doubled_resources([one] if node else snapshot.nodes, snapshot.classes, snapshot.slices))
    waiting = tuple(_waiting(snapshot, node, reasons or {}, notes, namespace))
    names = [node] if node else sorted({*by_name, *(d.node for d in found.devices if d.node)}, key=natural)
    return Overview(
        title=f"node {node}" if node else "cluster",
        devices=found.devices,
        sets=found.sets,
        nodes=tuple(_nodes(names, by_name, found.devices, found.sets)),
        waiting=waiting,
        count=counted(found.devices, found.sets, len(waiting)),
        gaps=tuple(g.why for g in snapshot.gaps),
        notes=tuple(notes),
    )


def _reaches(node: JSON, sl: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    owner = device if sl["spec"].get("perDeviceNodeSelection") else sl["spec"]
    return node_selectors.matches(node, owner.get("nodeName"), owner.get("allNodes"), owner.get("nodeSelector"))


def _nodes(
    names: Collection[str],
    by_name: Mapping[str, JSON],
    devices: Collection[DeviceRow],
    sets: Collection[CounterRow],
) -> Iterator[NodeRow]:
    rows: dict[str, list[DeviceRow]] = {}
    shares = card_shares(sets)
    for device in devices:
        rows.setdefault(device.node, []).append(device)
    for name in names:
        of = rows.get(name, [])
        held = sum(1 for d in of if d.use in TAKEN)
        why = unschedulable(by_name.get(name) or {})
        yield NodeRow(name, len(of), held, why, occupancy(of, shares))


def _waiting(
    snapshot: Snapshot, node: str, reasons: Mapping[str, PodReason], notes: list[str], namespace: str
) -> Iterator[PodRow]:
    """Yields the rows of waiting pods. For a node, these are the pods that are placed there or nowhere."""
    for pod in waiting_pods(snapshot, namespace, notes=notes):
        if node and pod.node and pod.node != node:
            continue
        why = reasons.get(pod.uid, PodReason(""))
        yield PodRow(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            node=pod.node,
            since=pod.created,
            requests=(*map(_entry, entries(pod)), *extended_requests(pod)),
            message=_message(pod.pod),
            reason=why.text,
            reported=why.reported,
        )


def _entry(entry: Mapping[str, Any]) -> str:
    return str(entry.get("resourceClaimName") or entry.get("resourceClaimTemplateName") or entry["name"])


def _message(pod: Mapping[str, Any]) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or []
    failed = [c for c in conditions if c.get("type") == "PodScheduled" and c.get("status") == "False"]
    return clip((failed[0].get("message") or failed[0].get("reason") or "") if failed else "")
