"""Builds the rows of `dra top` from plain objects: devices with their holders and health, and waiting pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...errors import clip, describe
from ...kube.resource import NODES
from ...resourceapi import node_selectors
from ...resourceapi.usage.rows import DeviceRow, DeviceUse, NodeRow, Overview, PodRow, counted
from ...resourceapi.usage.usage import Reaches, UsageCounter
from ...scheduling.framework import pod_info
from ...scheduling.framework.extended import class_names, wanted
from ..explanation.cluster_reasons import entries
from ..snapshot import Snapshot

JSON = dict[str, Any]
_MALFORMED = (TypeError, KeyError, ValueError, AttributeError)
_WAITS = {"", "Pending"}
_AWAY = {"node.kubernetes.io/not-ready": "not ready", "node.kubernetes.io/unreachable": "unreachable"}


def overview(
    snapshot: Snapshot, node: str = "", reasons: Mapping[str, str] | None = None, counter: UsageCounter | None = None
) -> Overview:
    """Returns the rows of a cluster or of one node.

    The rows of a node are the devices that its pods can use, and the waiting pods that have this node or none.

    Args:
        node: name of the node; a node that does not exist has no devices, and a note is added.
        reasons: one line from :func:`explain` for each pod, by UID.
        counter: the counter of the previous overview, to reuse its work for the same cluster.
    """
    by_name = {str(n["metadata"]["name"]): n for n in snapshot.nodes}
    one = by_name.get(node) or {"metadata": {"name": node, "labels": {}}}
    reaches: Reaches | None = (lambda sl, d: _reaches(one, sl, d)) if node else None
    found = (counter or UsageCounter()).tally(snapshot.slices, snapshot.claims, reaches)
    notes = [*map(str, snapshot.unread), *found.notes]
    if node and node not in by_name and snapshot.gap(NODES) is None:
        notes.append(f"there is no node {node}")
    waiting = tuple(_waiting(snapshot, node, reasons or {}, notes))
    names = [node] if node else sorted({*by_name, *(d.node for d in found.devices if d.node)})
    return Overview(
        title=f"node {node}" if node else "cluster",
        devices=found.devices,
        sets=found.sets,
        nodes=tuple(_nodes(names, by_name, found.devices)),
        waiting=waiting,
        count=counted(found.devices, len(waiting)),
        gaps=tuple(g.why for g in snapshot.gaps),
        notes=tuple(notes),
    )


def _reaches(node: JSON, sl: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    owner = device if sl["spec"].get("perDeviceNodeSelection") else sl["spec"]
    return node_selectors.matches(node, owner.get("nodeName"), owner.get("allNodes"), owner.get("nodeSelector"))


def _nodes(names: Collection[str], by_name: Mapping[str, JSON], devices: Collection[DeviceRow]) -> Iterator[NodeRow]:
    number: dict[str, int] = {}
    held: dict[str, int] = {}
    for device in devices:
        number[device.node] = number.get(device.node, 0) + 1
        held[device.node] = held.get(device.node, 0) + (device.use in {DeviceUse.HELD, DeviceUse.SHARED})
    for name in names:
        yield NodeRow(name, number.get(name, 0), held.get(name, 0), _unschedulable(by_name.get(name) or {}))


def _unschedulable(node: Mapping[str, Any]) -> str:
    spec = node.get("spec") or {}
    states = [_AWAY[t["key"]] for t in spec.get("taints") or [] if t.get("key") in _AWAY]
    states += ["cordoned"] if spec.get("unschedulable") else []
    return ", ".join(dict.fromkeys(states))


def _waiting(snapshot: Snapshot, node: str, reasons: Mapping[str, str], notes: list[str]) -> Iterator[PodRow]:
    """Yields pods that request devices and do not run yet, oldest first."""
    explicit = class_names(snapshot.classes)
    classes = {str(c["metadata"]["name"]) for c in snapshot.classes}
    waiting = [p for p in snapshot.pods if str((p.get("status") or {}).get("phase") or "") in _WAITS]
    for obj in sorted(waiting, key=_age):
        meta = obj["metadata"]
        try:
            pod = pod_info.read(obj)
            requests = [*map(_entry, entries(pod)), *wanted(pod, explicit, classes)]
        except _MALFORMED as e:
            notes.append(f"pod {meta['namespace']}/{meta['name']} cannot be read, and is left out: {describe(e)}")
            continue
        if not requests or pod.terminating or (node and pod.node and pod.node != node):
            continue
        yield PodRow(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            node=pod.node,
            since=str(meta.get("creationTimestamp") or ""),
            requests=tuple(requests),
            message=_message(obj),
            reason=reasons.get(pod.uid, ""),
        )


def _age(pod: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = pod["metadata"]
    return str(meta.get("creationTimestamp") or ""), str(meta["namespace"]), str(meta["name"])


def _entry(entry: Mapping[str, Any]) -> str:
    return str(entry.get("resourceClaimName") or entry.get("resourceClaimTemplateName") or entry["name"])


def _message(pod: Mapping[str, Any]) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or []
    failed = [c for c in conditions if c.get("type") == "PodScheduled" and c.get("status") == "False"]
    return clip((failed[0].get("message") or failed[0].get("reason") or "") if failed else "")


__all__ = ["Overview", "overview"]
