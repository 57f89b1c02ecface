"""Writes the Node object of a kubelet, and deletes the slices of drivers on the node."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from dra_kubeletplugin.kube.resource import NODES, SLICES
from dra_kubeletplugin.resourceapi.defaulting import now

from .fields import NODE_ADDRESS

log = logging.getLogger(__name__)
_PODS = 110
STATUS_UNKNOWN = "NodeStatusUnknown"  # the node controller sets this reason if a kubelet no longer renews its Lease
_HEALTHY = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


async def publish_node(client: KubeClient, name: str, runtime: str, version: str) -> None:
    """Creates the Node, or sets an existing Node to ready. ``version`` is the kubelet's version.

    Keeps the values of ``capacity`` and ``allocatable`` that other clients wrote.

    Raises:
        ApiError: the Node cannot be written.
    """
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}
    try:
        node = await client.create(NODES, body)
    except AlreadyExistsError:
        node = await client.get(NODES, name)
    info = dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), "local")
    info |= {"containerRuntimeVersion": runtime, "kubeletVersion": f"{version}+dra-local", "kubeProxyVersion": ""}
    info |= {"operatingSystem": "linux", "architecture": "amd64"}
    known = node.get("status") or {}
    status: JSON = {"conditions": _conditions(known.get("conditions") or []), "nodeInfo": info}
    status["capacity"] = _capacity() | (known.get("capacity") or {})
    status["allocatable"] = status["capacity"] | (known.get("allocatable") or {})
    status["addresses"] = [{"type": "InternalIP", "address": NODE_ADDRESS}, {"type": "Hostname", "address": name}]
    await client.patch(NODES, name, {"status": status}, sub="status")


async def mark_ready(client: KubeClient, name: str) -> None:
    """Sets the node to ready again if the node controller set its conditions to unknown.

    Raises:
        ApiError: the Node cannot be read or written.
    """
    node = await client.get(NODES, name)
    known = (node.get("status") or {}).get("conditions") or []
    if any(c.get("type") == "Ready" and c.get("reason") == STATUS_UNKNOWN for c in known):
        await client.patch(NODES, name, {"status": {"conditions": _conditions(known)}}, sub="status")


def _conditions(known: list[JSON]) -> list[JSON]:
    """Returns the conditions of a healthy node: those of the kubelet, and those that other clients wrote.

    Keeps the transition time of a condition whose status does not change.
    """
    before = {c.get("type"): c for c in known}
    stamp = now()
    out = [c for c in known if c.get("type") not in _HEALTHY]
    for kind, (value, reason, message) in _HEALTHY.items():
        same = before.get(kind, {}).get("status") == value
        since = before[kind].get("lastTransitionTime") if same else stamp
        times = {"lastHeartbeatTime": stamp, "lastTransitionTime": since or stamp}
        out.append({"type": kind, "status": value, "reason": reason, "message": message, **times})
    return out


def _capacity() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    disk = str(shutil.disk_usage("/").total)
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory}Ki", "ephemeral-storage": disk, "pods": str(_PODS)}


async def wipe_slices(client: KubeClient, node: str, driver: str = "", but: Collection[str] = ()) -> None:
    """Deletes the slices of one driver on this node, or of all drivers except those in ``but``.

    Raises:
        ApiError: at least one slice could not be deleted.
    """
    fields = f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")
    failure: ApiError | None = None
    for obj in (await client.list(SLICES, fields=fields))["items"]:
        if but and (obj.get("spec") or {}).get("driver") in but:
            continue
        try:
            await client.delete(SLICES, obj["metadata"]["name"], uid=obj["metadata"]["uid"])
        except (NotFoundError, ConflictError):
            pass
        except ApiError as e:
            failure = e  # continue with the other slices
    if failure is not None:
        raise failure
