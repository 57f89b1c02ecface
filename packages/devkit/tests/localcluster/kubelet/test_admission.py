"""Pods that a kubelet rejects, even if a client bound them directly. Source: pkg/kubelet/lifecycle/predicate.go."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.localcluster.kubelet.admission import refusal
from dra_kubeletplugin.base.json_types import JSON


def node(**spec: Any) -> JSON:
    allocatable = {"cpu": "2", "memory": "4Gi", "pods": "3"}
    labels = {"kubernetes.io/hostname": "n"}
    return {"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}


def pod(name: str = "p", port: int = 0, cpu: str = "", **spec: Any) -> JSON:
    container: JSON = {"name": "main", "resources": {"requests": {"cpu": cpu}} if cpu else {}}
    if port:
        container["ports"] = [{"containerPort": 80, "hostPort": port}]
    meta = {"name": name, "namespace": "default", "uid": name}
    return {"metadata": meta, "spec": {"containers": [container], **spec}}


def test_a_pod_that_fits_is_admitted() -> None:
    assert refusal(pod(cpu="1", port=81), node(), [pod("q", cpu="1", port=80)]) is None


@pytest.mark.parametrize(
    ("requested", "reason", "message"),
    [
        (pod(cpu="1001m"), "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1001, used: 1000, capacity: 2000"),
        (pod(port=80), "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
        (pod(nodeSelector={"a": "b"}), "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
        (pod(os={"name": "windows"}), "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_fit_is_rejected_with_the_kubelets_message(
    requested: JSON, reason: str, message: str
) -> None:
    rejection = refusal(requested, node(), [pod("q", cpu="1", port=80)])
    assert rejection is not None
    assert (rejection.reason, rejection.message) == (reason, message)


def test_a_node_rejects_pods_above_its_pod_limit() -> None:
    others = [pod(name) for name in "qrs"]
    rejection = refusal(pod(), node(), others)
    assert rejection is not None
    assert rejection.message == "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"


def test_only_no_execute_taints_reject_a_pod() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    assert refusal(pod(), node(taints=[taint], unschedulable=True), []) is None
    tainted_node = node(taints=[{**taint, "effect": "NoExecute"}])
    rejection = refusal(pod(), tainted_node, [])
    assert rejection is not None
    assert rejection.reason == "TaintToleration"
    assert refusal(pod(tolerations=[{"operator": "Exists"}]), tainted_node, []) is None


def test_an_extended_resource_unknown_to_the_node_is_ignored() -> None:
    requesting_pod = pod()
    requesting_pod["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    assert refusal(requesting_pod, node(), []) is None


def test_a_malformed_pod_uses_no_resources() -> None:
    broken = pod("q")
    broken["spec"]["containers"] = "none"
    assert refusal(pod(), node(), [broken]) is None
