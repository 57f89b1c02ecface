"""A malformed object never stops a component and never affects other objects."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.localcluster.kubelet.harness import KubeletHarness
from tests.helpers.fake_plugin import FakePlugin
from tests.helpers.objects import claim, device_class, pod, slice_of, template

_JUNK: tuple[Any, ...] = (None, "", "a", 0, -1, True, [], ["a"], [None], [{}], {}, {"a": 1}, {"a": None}, [[1]])
_IMMUTABLE_PATHS = {("metadata",), ("kind",), ("apiVersion",), ("metadata", "name")}
_STORAGE_KEYS = {
    "Pod": "pods",
    "Node": "nodes",
    "ResourceClaim": "resourceclaims.resource.k8s.io",
    "ResourceClaimTemplate": "resourceclaimtemplates.resource.k8s.io",
    "ResourceSlice": "resourceslices.resource.k8s.io",
    "DeviceClass": "deviceclasses.resource.k8s.io",
    "Deployment": "deployments.apps",
    "ReplicaSet": "replicasets.apps",
    "DaemonSet": "daemonsets.apps",
    "Job": "jobs.batch",
}


def valid_objects() -> list[JSON]:
    """Returns objects of each kind with most of the fields that components read."""
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}  # fmt: skip
    spread = {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}]}  # fmt: skip
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "u", "controller": True}
    spec: JSON = {
        "nodeName": "node-1",
        "nodeSelector": {"a": "b"},
        "affinity": {"nodeAffinity": affinity, "podAntiAffinity": spread},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
        "schedulingGates": [{"name": "g"}],
        "resourceClaims": [{"name": "t0", "resourceClaimTemplateName": "t"}, {"name": "c0", "resourceClaimName": "c"}],
        "volumes": [{"name": "v", "configMap": {"name": "cm", "items": [{"key": "k", "path": "p"}]}}],
        "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
        "containers": [{
            "name": "main", "image": "i", "command": ["a"], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"claims": [{"name": "c0", "request": "r"}], "limits": {"cpu": "1", "example.com/gpu": "1"}},
        }],
    }  # fmt: skip
    status = {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}],
        "resourceClaimStatuses": [{"name": "t0", "resourceClaimName": "p-t0"}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "c",
            "requestMappings": [{"containerName": "main", "resourceName": "example.com/gpu", "requestName": "r"}],
        },
    }
    result = {"request": "device", "driver": "toy.example.com", "pool": "node-1", "device": "x0"}
    result |= {"tolerations": [{"operator": "Exists", "tolerationSeconds": 1}], "bindingConditions": ["a"]}
    claim_object = claim()
    claim_object["metadata"] |= {"ownerReferences": [owner], "finalizers": ["resource.kubernetes.io/delete-protection"]}
    claim_object["status"] = {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [{"driver": "toy.example.com", "pool": "node-1", "device": "x0", "conditions": [{"type": "a", "status": "True"}]}],
    }  # fmt: skip
    device = {
        "name": "x0",
        "attributes": {"a": {"string": "b"}},
        "capacity": {"c": {"value": "1"}},
        "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}],
        "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
    }
    node = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"a": "b"}}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip
    inner = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    selector = {"matchLabels": {"a": "b"}}
    workloads = [
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {}, "spec": {"replicas": 1, "selector": selector, "template": inner}, "status": {"replicas": 1}}
        for kind in ("Deployment", "ReplicaSet", "DaemonSet")
    ]  # fmt: skip
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {},
        "spec": {"template": inner, "completions": 1, "parallelism": 1},
    }
    unbound_spec = {k: v for k, v in spec.items() if k != "nodeName"}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"ownerReferences": [owner], "labels": {"a": "b"}}, "spec": spec, "status": status},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"ownerReferences": [owner]}, "spec": unbound_spec, "status": status},
        node,
        claim_object,
        template(),
        slice_of("node-1", [device]),
        device_class(),
        *workloads,
        job,
    ]  # fmt: skip


Path = tuple[Any, ...]


def paths(value: Any, prefix: Path = ()) -> list[Path]:
    """Returns the paths of all values in an object, except the values that identify it."""
    out = [prefix] if prefix and prefix not in _IMMUTABLE_PATHS else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        out += paths(inner, (*prefix, key))
    return out


def with_value_at(obj: JSON, path: Path, junk: Any) -> JSON:
    out = copy.deepcopy(obj)
    parent: Any = out
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = copy.deepcopy(junk)
    return out


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(3))
async def test_no_malformed_object_stops_a_component(seed: int) -> None:
    """The test writes objects directly into the storage, without validation. A component must not depend on validation."""
    choice = random.Random(seed)
    async with LocalCluster(
        ("node-1",), timers=Timers(plugin_poll_interval=0.02, pod_sync_backoff=0.1, call_timeout=1)
    ) as cluster:
        keys = {k.key for k in KINDS}
        served = {kind: key for kind, key in _STORAGE_KEYS.items() if key in keys}
        number = 0
        for obj in valid_objects():
            if obj["kind"] not in served:
                continue
            # The API server keeps metadata typed for all kinds, so only the other fields are changed.
            candidates = [p for p in paths(obj) if p[0] != "metadata"]
            for path in choice.sample(candidates, min(20, len(candidates))):
                number += 1
                broken = with_value_at(obj, path, choice.choice(_JUNK))
                meta = broken.get("metadata")
                assert isinstance(meta, dict)
                metadata = {"name": f"m{number}", "uid": f"uid-{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
                if obj["kind"] in {"Pod", "ResourceClaim", "ResourceClaimTemplate"}:
                    metadata["namespace"] = "default"
                body = {k: v for k, v in broken.items() if k not in {"kind", "apiVersion"}}
                cluster.api.storage.put(served[obj["kind"]], {**body, "metadata": {**meta, **metadata}})
        harness = KubeletHarness(cluster)
        async with FakePlugin(cluster.node.kubelet_root, "toy.example.com") as plugin:
            await harness.run("healthy")
            await harness.wait_until_running("healthy")
            await cluster.apply(
                template("good"), pod("claims", templates=["good"], schedulingGates=[{"name": "never"}])
            )
            await harness.wait_until(
                "a claim", lambda: [c for c in cluster.claims() if c["metadata"]["name"].startswith("claims-t0-")]
            )
            await harness.delete("healthy")
            await harness.wait_until_deleted("healthy")
            assert plugin.count("unprepare") >= 1
            await harness.kubelet.restart()
            await harness.run("again")
            await harness.wait_until_running("again")
