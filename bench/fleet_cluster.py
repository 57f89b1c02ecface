"""The cluster of ``bench.fleet``: nodes, slices, pods and claims, each as large as in a real cluster.

Equal parts are one object in memory, so the server of 5,000 nodes needs few hundred MiB. Most claims are of running pods. The last
pods wait, each for a different reason (:data:`WAITING`).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

API = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"
PER_NODE = 8  # devices
MODELS = (("H100", "80Gi"), ("A100", "40Gi"), ("L4", "24Gi"))
_SINCE = "2026-01-01T00:00:00Z"
_NAMESPACES = 50


@dataclass(frozen=True)
class Size:
    nodes: int = 5000
    pods: int = 20000
    claims: int = 10000


def model_of(node: int) -> tuple[str, str]:
    """Returns model and memory: H100 for one node in five, A100 for half of the other nodes, L4 for the rest."""
    return MODELS[0 if node % 5 == 0 else 1 + node % 2]


def objects(size: Size) -> Iterator[tuple[str, JSON]]:
    """Yields each object with the key of its kind in the server's storage."""
    draw = random.Random(22)
    for i in range(_NAMESPACES):
        yield "namespaces", _object("v1", "Namespace", f"team-{i}", "", {}, {"phase": "Active"})
    for model, _ in MODELS:
        yield "deviceclasses.resource.k8s.io", _class(model.lower(), model)
    yield "deviceclasses.resource.k8s.io", _class("gpu")
    for i in range(size.nodes):
        yield "nodes", _node(i)
        yield "resourceslices.resource.k8s.io", _slice(i, draw)
    claims = pods = 0
    waiting = list(WAITING.items())
    # Every device of an H100 node is held, and most devices of the others.
    free = {i: list(range(PER_NODE)) for i in sorted(range(size.nodes), key=lambda i: i % 5) if not _is_cordoned(i)}
    while free and claims < size.claims - len(waiting):
        node = next(iter(free))
        if model_of(node)[0] != "H100" and draw.random() < 0.1:
            del free[node]
            continue
        count = min(draw.choice((1, 2, 4, 8)), len(free[node]))
        devices, free[node] = free[node][:count], free[node][count:]
        if not free[node]:
            del free[node]
        yield from _running(claims, node, devices)
        claims, pods = claims + 1, pods + 1
    for i in range(claims, size.claims - len(waiting)):
        yield "resourceclaims.resource.k8s.io", _claim(f"unused-{i}", _namespace(i), [_request("gpu", "gpu")])
    for i in range(pods, size.pods - len(waiting)):
        yield "pods", _pod(f"web-{i}", _namespace(i), _WEB, node=_name(i % size.nodes))
    for name, (requests, constraints, pod) in waiting:
        if requests:
            yield "resourceclaims.resource.k8s.io", _claim(name, "research", requests, constraints)
        entry = {"name": "gpu", "resourceClaimName": name}
        if pod.get("resourceClaims") is None and "containers" not in pod:
            pod = {**pod, "resourceClaims": [entry]}
        yield "pods", _pod(name, "research", {**_TRAIN, **pod})
    yield "namespaces", _object("v1", "Namespace", "research", "", {}, {"phase": "Active"})


# --- requests of the waiting pods -------------------------------------------------------------------


def _request(name: str, device_class: str, count: int = 1, selector: str = "", **more: Any) -> JSON:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count, **more}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def _memory(amount: str) -> str:
    return f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{amount}")) >= 0'


def _attribute(name: str, value: str) -> str:
    return f'device.attributes["{DRIVER}"].{name} == {value}'


_ATTRIBUTE = f"{DRIVER}/driverVersion"
_MATCH_SERIAL = [{"matchAttribute": f"{DRIVER}/serial"}]
_ON_CORDONED = {"nodeSelector": {"pool": "maintenance"}}
Waiting = tuple[
    list[JSON], list[JSON], JSON
]  # requests and constraints of the pod's claim, and fields of the pod's spec
WAITING: Mapping[str, Waiting] = {
    "all-held": ([_request("gpu", "h100")], [], {}),
    "all-held-two": ([_request("gpu", "h100", 2, _memory("40Gi"))], [], {}),
    "too-large": ([_request("gpu", "gpu", 1, _memory("141Gi"))], [], {}),
    "too-many": ([_request("gpu", "a100", 9)], [], {}),
    "old-version": ([_request("gpu", "gpu", 1, _attribute("driverVersion", "semver('600.0.0')"))], [], {}),
    "one-serial": ([_request("gpu", "l4", 2)], _MATCH_SERIAL, {}),
    "unknown-attribute": ([_request("gpu", "gpu", 1, _attribute("modle", "'H100'"))], [], {}),
    "unknown-class": ([_request("gpu", "b200")], [], {}),
    "no-claim": ([], [], {}),
    "no-template": ([], [], {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "absent"}]}),
    "gated": ([_request("gpu", "l4")], [], {"schedulingGates": [{"name": "example.com/quota"}]}),
    "other-scheduler": ([_request("gpu", "l4")], [], {"schedulerName": "volcano"}),
    "cordoned": ([_request("gpu", "gpu")], [], _ON_CORDONED),
    "other-nodes": ([_request("gpu", "a100")], [], {"nodeSelector": {"zone": "z"}}),
    "much-cpu": ([_request("gpu", "l4")], [], {"resources": {"requests": {"cpu": "500"}}}),
    "two-requests": ([_request("a", "h100"), _request("b", "l4")], [], {}),
    "alternatives": (
        [{"name": "gpu", "firstAvailable": [
            {"name": n, "deviceClassName": n, "allocationMode": "ExactCount", "count": 9} for n in ("h100", "a100")
        ]}], [], {},
    ),
    "whole-node": ([_request("gpu", "h100", 8)], [], {}),
    "admin": ([_request("gpu", "l4", 1, adminAccess=True)], [], {}),
    "large-and-many": ([_request("gpu", "gpu", 4, _memory("60Gi"))], [], {}),
}  # fmt: skip
"""The waiting pods by name."""


# --- objects ----------------------------------------------------------------------------------------


def _name(node: int) -> str:
    return f"node-{node:04}"


def _namespace(number: int) -> str:
    return f"team-{number % _NAMESPACES}"


def _is_cordoned(node: int) -> bool:
    return node % 100 == 99


def _object(api: str, kind: str, name: str, namespace: str, spec: JSON, status: JSON, **metadata: Any) -> JSON:
    meta = {"name": name, "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{namespace}/{name}"))}
    meta |= {"creationTimestamp": _SINCE, "generation": 1, **metadata}
    if namespace:
        meta["namespace"] = namespace
    obj = {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}
    return {**obj, "status": status} if status else obj


def _managed(manager: str, fields: int) -> list[JSON]:
    """Returns ``managedFields`` with as many fields as a real object of this kind has."""
    names = {f"f:field{i}": {"f:value": {}, ".": {}} for i in range(fields)}
    spec = {"f:metadata": {"f:labels": {".": {}}}, "f:spec": names, "f:status": {"f:conditions": {}}}
    return [{"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _SINCE, "fieldsV1": spec}]


def _class(name: str, model: str = "") -> JSON:
    expressions = [f'device.driver == "{DRIVER}"']
    expressions += [f"device.attributes[{DRIVER!r}].model == {model!r}"] if model else []
    return _object(
        API, "DeviceClass", name, "", {"selectors": [{"cel": {"expression": e}} for e in expressions]}, {}
    )  # fmt: skip


_IMAGES = [
    {"names": [f"registry.example.com/team/image-{i}@sha256:{i:064x}", f"registry.example.com/team/image-{i}:v1"],
     "sizeBytes": 100_000_000 + i} for i in range(50)
]  # fmt: skip
_CONDITIONS = [
    {"type": t, "status": s, "reason": f"Kubelet{t}", "message": f"kubelet reports {t}", "lastHeartbeatTime": _SINCE}
    for t, s in (("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"), ("Ready", "True"))
]
_NODE_FIELDS = _managed("kubelet", 30)


def _node(i: int) -> JSON:
    name = _name(i)
    amounts = {"cpu": "128", "memory": "1056Gi", "ephemeral-storage": "3Ti", "pods": "110", "hugepages-2Mi": "0"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    labels |= {"zone": "abc"[i % 3], "pool": "maintenance" if _is_cordoned(i) else model_of(i)[0]}
    labels |= {f"feature.node.kubernetes.io/cpu-cpuid.{f}": "true" for f in ("AVX", "AVX2", "AVX512F", "SSE4", "VNNI")}
    status = {
        "capacity": amounts, "allocatable": amounts, "conditions": _CONDITIONS, "images": _IMAGES,
        "addresses": [{"type": "InternalIP", "address": f"10.{i // 250}.{i % 250}.1"}, {"type": "Hostname", "address": name}],
        "nodeInfo": {"kernelVersion": "6.8.0", "kubeletVersion": "v1.36.2", "machineID": f"{i:032x}", "osImage": "Linux"},
    }  # fmt: skip
    spec: JSON = {"podCIDR": f"10.{i // 250}.{i % 250}.0/24"}
    if _is_cordoned(i):
        spec |= {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}
    return _object("v1", "Node", name, "", spec, status, labels=labels, managedFields=_NODE_FIELDS)


_SLICE_FIELDS = _managed("gpu-driver", 6)


def _slice(i: int, draw: random.Random) -> JSON:
    name, (model, memory) = _name(i), model_of(i)
    devices = []
    for k in range(PER_NODE):
        attributes: JSON = {
            "uuid": {"string": f"GPU-{uuid.UUID(int=draw.getrandbits(128))}"},
            "serial": {"string": f"{draw.getrandbits(40):013d}"},
            "model": {"string": model},
            "architecture": {"string": {"H100": "Hopper", "A100": "Ampere", "L4": "Ada Lovelace"}[model]},
            "driverVersion": {"version": "570.86.15"},
            "cudaVersion": {"version": "12.8.0"},
            "index": {"int": k},
            "numa": {"int": k // 4},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{k:02x}"},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:{k:02x}:00.0"},
        }
        capacity = {"memory": {"value": memory}, "multiprocessors": {"value": "132"}}
        devices.append({"name": f"gpu-{k}", "attributes": attributes, "capacity": capacity})
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    owner = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"uid-{name}", "controller": True}]
    return _object(
        API, "ResourceSlice", f"{name}-gpu-abcde", "", spec, {}, ownerReferences=owner, managedFields=_SLICE_FIELDS
    )  # fmt: skip


def _claim(name: str, namespace: str, requests: list[JSON], constraints: list[JSON] | None = None) -> JSON:
    devices = {"requests": requests, **({"constraints": constraints} if constraints else {})}
    return _object(API, "ResourceClaim", name, namespace, {"devices": devices}, {}, managedFields=_SLICE_FIELDS)


def _container(cpu: str, memory: str) -> JSON:
    return {
        "name": "main",
        "image": "registry.example.com/team/image-1:v1",
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}},
        "env": [{"name": f"VARIABLE_{i}", "value": f"the value of variable {i}"} for i in range(12)],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }  # fmt: skip


_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for k in ("not-ready", "unreachable")
]
_OF_PODS = {
    "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "priority": 0,
    "serviceAccountName": "default", "securityContext": {}, "terminationGracePeriodSeconds": 30, "tolerations": _TOLERATIONS,
    "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "token"}}]}}],
}  # fmt: skip
_WEB: JSON = {**_OF_PODS, "containers": [_container("250m", "512Mi")]}
_TRAIN: JSON = {**_OF_PODS, "containers": [_container("4", "32Gi")]}
_POD_FIELDS = _managed("kube-controller-manager", 40)
_STARTED = [
    {"type": t, "status": "True", "lastTransitionTime": _SINCE, "lastProbeTime": None, "observedGeneration": 1}
    for t in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
]
_CONTAINERS = [
    {"name": "main", "image": "registry.example.com/team/image-1:v1", "imageID": f"sha256:{1:064x}", "ready": True,
     "containerID": f"containerd://{2:064x}", "restartCount": 0, "started": True, "state": {"running": {"startedAt": _SINCE}}}
]  # fmt: skip


def _pod(name: str, namespace: str, spec: JSON, node: str = "") -> JSON:
    labels = {"app": name.rpartition("-")[0], "pod-template-hash": "5d8f7c9b6", "team": namespace}
    status: JSON = {"phase": "Pending", "qosClass": "Guaranteed"}
    if node:
        spec = {**spec, "nodeName": node}
        status |= {"phase": "Running", "conditions": _STARTED, "containerStatuses": _CONTAINERS, "startTime": _SINCE}
        status |= {
            "podIP": "10.0.0.7",
            "hostIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.7"}],
            "hostIPs": [{"ip": "10.0.0.1"}],
        }
    return _object("v1", "Pod", name, namespace, spec, status, labels=labels, managedFields=_POD_FIELDS)


def _running(number: int, node: int, devices: list[int]) -> Iterator[tuple[str, JSON]]:
    """Yields a pod that runs and its claim."""
    name, namespace, where = f"train-{number}", _namespace(number), _name(node)
    claim = _claim(name, namespace, [_request("gpu", model_of(node)[0].lower(), len(devices))])
    selected = {"key": "metadata.name", "operator": "In", "values": [where]}
    results = [{"request": "gpu", "driver": DRIVER, "pool": where, "device": f"gpu-{k}"} for k in devices]
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [selected]}]},
        "allocationTimestamp": _SINCE,
    }
    spec = {**_TRAIN, "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    pod = _pod(name, namespace, spec, where)
    user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    yield "resourceclaims.resource.k8s.io", {**claim, "status": {"allocation": allocation, "reservedFor": [user]}}
    yield "pods", pod
