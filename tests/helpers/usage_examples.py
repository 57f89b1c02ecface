"""A cluster with common problems: partitioned cards, an unhealthy card, a cordoned node, two drivers, waiting pods."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from dra_kubeletplugin import Device, Profile, partitions
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.unhealthy_reason import with_reason
from dra_tools import Snapshot
from tests.helpers.objects import device_class, pod

API = "resource.k8s.io/v1"
NIMBUS, GPU = "nimbus.example.com", "gpu.example.com"
A = "resource.kubernetes.io/"
UNHEALTHY = {"key": "dra-kubeletplugin.dev/unhealthy", "effect": "NoSchedule"}
CARDS = ("n4-0000-17-00-0", "n4-0000-17-00-1", "n4-0000-98-00-0", "n4-0000-98-00-1")
PROFILES = [
    Profile(name="quarter", takes={"memory": "16Gi", "cores": 2}, at=(0, 1, 2, 3)),
    Profile(name="half", takes={"memory": "32Gi", "cores": 4}, slots=2, at=(0, 2)),
]
SECONDS_AGO = 300


def cluster() -> Snapshot:
    objects = [
        device_class("n4", NIMBUS), node("node-1"), node("node-2", unschedulable=True), *nimbus("node-1", faulty=CARDS[2]),
        *nimbus("node-2"), gpus("node-2"),
        *held("train-0", "node-1", f"{CARDS[0]}-part-half-0-1"), *held("notebook", "node-1", f"{CARDS[0]}-part-quarter-2"),
        *held("train-1", "node-1", CARDS[1]), *held("render", "node-2", "gpu-1", GPU), *waiting("greedy", 9), *waiting("gated", 1, gated=True),
    ]  # fmt: skip
    return Snapshot.of(objects, live=True)


def node(name: str, *, unschedulable: bool = False) -> JSON:
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
    }
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status,
        "spec": {"unschedulable": True} if unschedulable else {},
    }  # fmt: skip


def nimbus(name: str, faulty: str = "") -> list[JSON]:
    """Returns the slices of four partitioned cards, as nimbus-n4 publishes them. The counters have a separate slice."""
    devices, sets = list[Any](), list[Any]()
    for i, card in enumerate(CARDS):
        attributes = {A + "numaNode": i // 2, A + "pcieRoot": "pci0000:17" if i < 2 else "pci0000:98"}
        slices = partitions(card, PROFILES, has={"memory": "64Gi", "cores": 8}, slots=4, attributes=attributes)
        devices += [marked(d, faulty) for d in slices.devices]
        sets.append(slices.counter_set.json())
    return [slice_(name, NIMBUS, "counters", sharedCounters=sets), slice_(name, NIMBUS, "devices", devices=devices)]


def marked(device: Device, faulty: str) -> Any:
    if not faulty or not device.name.startswith(faulty):
        return device.json()
    return {**with_reason(device.json(), "the fan stands still"), "taints": [UNHEALTHY]}


def gpus(name: str) -> JSON:
    devices = [Device(f"gpu-{i}", attributes={A + "numaNode": i}).json() for i in range(2)]
    return slice_(name, GPU, "gpus", count=1, devices=devices)


def slice_(name: str, driver: str, part: str, count: int = 2, **content: Any) -> JSON:
    pool = {"name": name, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": name, "pool": pool, **content}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{name}-{part}"}, "spec": spec}


def held(name: str, node_name: str, device: str, driver: str = NIMBUS) -> list[JSON]:
    """Returns a running pod and its claim."""
    result = {"request": "device", "driver": driver, "pool": node_name, "device": device}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"pods/ml/{name}"}],
    }
    running = pod(name, claims=[name], nodeName=node_name)
    running["metadata"]["namespace"] = "ml"
    return [{**claim(name, 1), "status": status}, {**running, "status": {"phase": "Running"}}]


def waiting(name: str, count: int, *, gated: bool = False) -> list[JSON]:
    pod_object = pod(
        name, claims=[name], **({"schedulingGates": [{"name": "queue.example.com/wait"}]} if gated else {})
    )
    since = datetime.fromtimestamp(time.time() - SECONDS_AGO, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pod_object["metadata"] |= {"namespace": "ml", "creationTimestamp": since}
    return [claim(name, count), {**pod_object, "status": {"phase": "Pending"}}]


def claim(name: str, count: int) -> JSON:
    request = {"name": "device", "exactly": {"deviceClassName": "n4", "allocationMode": "ExactCount", "count": count}}
    meta = {"name": name, "namespace": "ml"}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": {"requests": [request]}}}
