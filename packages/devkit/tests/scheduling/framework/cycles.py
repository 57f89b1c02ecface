"""Nodes, pods and scheduling cycles for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_devkit.scheduling.framework import node_info, pod_info
from dra_devkit.scheduling.framework.cache import Cache
from dra_devkit.scheduling.framework.cycle import Cycle, CycleSnapshot
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.node_allocation import AllocationMemory, NodeAllocator
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import JSON


def node(name: str, cpu: str = "8", pods: str = "110", labels: JSON | None = None, **spec: Any) -> NodeInfo:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": pods, **spec.pop("more", {})}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return node_info.read({"metadata": meta, "spec": spec, "status": {"allocatable": amounts}})


def pod(name: str, cpu: str = "", labels: JSON | None = None, **spec: Any) -> PodInfo:
    container: JSON = {"name": "c", "resources": {"requests": {"cpu": cpu}} if cpu else {}}
    container |= spec.pop("container", {})
    meta = {"name": name, "namespace": "default", "uid": name, "labels": labels or {}}
    return pod_info.read({"metadata": meta, "spec": {"containers": [container], **spec}})


def cycle_of(
    p: PodInfo, nodes: Sequence[NodeInfo], claims: PodClaims | None = None, cache: Cache | None = None
) -> Cycle:
    cache_used = cache or Cache()
    allocations = NodeAllocator(AllocationMemory(), cache_used.devices(), len(nodes), limit=10.0)
    return Cycle(
        p, CycleSnapshot(nodes, {"default": {}, "other": {"team": "x"}}, {}), claims or PodClaims(), allocations
    )
