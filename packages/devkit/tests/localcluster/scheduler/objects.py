"""Objects of the scheduler's tests, and waits for the node and for an event of a pod."""

from __future__ import annotations

from typing import Any

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import PODS


def node(name: str, cpu: str = "8") -> JSON:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name: str, cpu: str = "", claim: str = "", **spec: Any) -> JSON:
    resources: JSON = {"requests": {"cpu": cpu}} if cpu else {}
    if claim:
        resources["claims"] = [{"name": "c"}]
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": claim}]
    spec["containers"] = [{"name": "main", "image": "pause", "resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def claim(name: str, *counts: int) -> JSON:
    requests = [
        {"name": f"r{i}", "exactly": {"deviceClassName": "sim", "count": n}} for i, n in enumerate(counts or (1,))
    ]
    spec = {"devices": {"requests": requests}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


async def node_of(cluster: LocalCluster, name: str) -> str:
    async def get_node_name() -> str:
        current = await cluster.client.get(PODS, name, "default")
        return str(current["spec"].get("nodeName") or "")

    return str(await cluster.wait(f"{name} to be scheduled", get_node_name))


async def wait_for_event(cluster: LocalCluster, name: str, text: str) -> str:
    async def find_event() -> str:
        return next((e for e in cluster.events(name) if text in e), "")

    return str(await cluster.wait(f"{name} to have an event with {text!r}", find_event))
