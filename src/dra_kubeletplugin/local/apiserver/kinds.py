"""Which resources are served, under which versions and names, and which columns `kubectl get` shows for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

JSON = Mapping[str, Any]
Column = tuple[str, int, Callable[[JSON], Any]]  # name, priority (1: only with -o wide), value


@dataclass(frozen=True)
class Kind:
    """One resource in all its versions, best first."""

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    namespaced: bool
    short: tuple[str, ...] = ()
    status: bool = False
    columns: tuple[Column, ...] = ()
    graceful: bool = False  # deletion waits for somebody, as a pod's does for its kubelet

    @property
    def key(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


def age(obj: JSON) -> str:
    """Time since creation, as kubectl writes it."""
    stamp = obj["metadata"].get("creationTimestamp")
    if not stamp:
        return "<unknown>"
    seconds = max(0, int(time.time() - datetime.fromisoformat(stamp).timestamp()))
    for unit, size, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def _get(*path: str, default: Any = "") -> Callable[[JSON], Any]:
    def look(obj: JSON) -> Any:
        value: Any = obj
        for key in path:
            value = (value or {}).get(key)
        return default if value is None else value

    return look


def _claim_state(claim: JSON) -> str:
    status = claim.get("status") or {}
    states = ["deleted"] if claim["metadata"].get("deletionTimestamp") else []
    if status.get("allocation") is None:
        return ",".join([*states, "pending"])
    states.append("allocated")
    if status.get("reservedFor"):
        states.append("reserved")
    return ",".join(states)


def _claim_devices(claim: JSON) -> str:
    results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or []
    return ",".join(f"{r['pool']}/{r['device']}" for r in results) or "<none>"


def _pod_ready(pod: JSON) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len(pod['spec'].get('containers') or [])}"


def _pod_status(pod: JSON) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    for s in status.get("containerStatuses") or []:
        if reason := ((s.get("state") or {}).get("waiting") or {}).get("reason"):
            return str(reason)
    return str(status.get("reason") or status.get("phase") or "Unknown")


def _node_status(node: JSON) -> str:
    conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or []}
    return "Ready" if conditions.get("Ready") == "True" else "NotReady"


_NAME: Column = ("Name", 0, lambda o: o["metadata"]["name"])
_AGE: Column = ("Age", 0, age)
_DRA = ("v1", "v1beta2", "v1beta1")

KINDS = (
    Kind("", ("v1",), "Namespace", "namespaces", False, ("ns",), True, (_NAME, ("Status", 0, _get("status", "phase")), _AGE)),
    Kind(
        "", ("v1",), "Node", "nodes", False, ("no",), True,
        (_NAME, ("Status", 0, _node_status), ("Roles", 0, lambda o: "<none>"), _AGE,
         ("Version", 0, _get("status", "nodeInfo", "kubeletVersion"))),
    ),
    Kind(
        "", ("v1",), "Pod", "pods", True, ("po",), True,
        (_NAME, ("Ready", 0, _pod_ready), ("Status", 0, _pod_status), ("Restarts", 0, lambda o: "0"), _AGE,
         ("IP", 1, lambda o: "<none>"), ("Node", 1, _get("spec", "nodeName", default="<none>"))),
        graceful=True,
    ),
    Kind(
        "", ("v1",), "Event", "events", True, ("ev",), False,
        (("Last Seen", 0, age), ("Type", 0, _get("type")), ("Reason", 0, _get("reason")),
         ("Object", 0, lambda o: f"{o['involvedObject'].get('kind', '').lower()}/{o['involvedObject'].get('name', '')}"),
         ("Message", 0, _get("message"))),
    ),
    Kind(
        "coordination.k8s.io", ("v1",), "Lease", "leases", True, (), False,
        (_NAME, ("Holder", 0, _get("spec", "holderIdentity")), _AGE),
    ),
    Kind("", ("v1",), "ServiceAccount", "serviceaccounts", True, ("sa",), False, (_NAME, _AGE)),
    Kind("", ("v1",), "ConfigMap", "configmaps", True, ("cm",), False, (_NAME, _AGE)),
    Kind("", ("v1",), "Secret", "secrets", True, (), False, (_NAME, ("Type", 0, _get("type")), _AGE)),
    Kind(
        "resource.k8s.io", _DRA, "ResourceSlice", "resourceslices", False, (), False,
        (_NAME, ("Node", 0, _get("spec", "nodeName", default="<none>")), ("Driver", 0, _get("spec", "driver")),
         ("Pool", 0, _get("spec", "pool", "name")), _AGE,
         ("Devices", 1, lambda o: len(o["spec"].get("devices") or []))),
    ),
    Kind(
        "resource.k8s.io", _DRA, "ResourceClaim", "resourceclaims", True, (), True,
        (_NAME, ("State", 0, _claim_state), _AGE, ("Devices", 1, _claim_devices)),
    ),
    Kind("resource.k8s.io", _DRA, "ResourceClaimTemplate", "resourceclaimtemplates", True, (), False, (_NAME, _AGE)),
    Kind("resource.k8s.io", _DRA, "DeviceClass", "deviceclasses", False, (), False, (_NAME, _AGE)),
)  # fmt: skip

BY_PLURAL = {(k.group, v, k.plural): k for k in KINDS for v in k.versions}
BY_KEY = {k.key: k for k in KINDS}


def table(kind: Kind, objects: Sequence[JSON], metadata: JSON, *, include: str = "Metadata") -> dict[str, Any]:
    """A meta.k8s.io/v1 Table of the objects."""
    columns = [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": priority,
        }
        for name, priority, _ in kind.columns
    ]
    rows = []
    for obj in objects:
        shown: Any = obj
        if include == "Metadata":
            shown = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        rows.append({"cells": [_cell(value(obj)) for _, _, value in kind.columns], "object": shown})
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    }


def _cell(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else str(value)
