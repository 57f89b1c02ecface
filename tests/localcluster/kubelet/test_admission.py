"""What a kubelet does not take, whoever bound it. Source: pkg/kubelet/lifecycle/predicate.go."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.localcluster.kubelet.admission import refusal

JSON = dict[str, Any]


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


def test_what_fits_is_admitted_beside_the_others() -> None:
    assert refusal(pod(cpu="1", port=81), node(), [pod("q", cpu="1", port=80)]) is None


@pytest.mark.parametrize(
    ("asked", "reason", "message"),
    [
        (pod(cpu="1001m"), "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1001, used: 1000, capacity: 2000"),
        (pod(port=80), "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
        (pod(nodeSelector={"a": "b"}), "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
        (pod(os={"name": "windows"}), "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_the_kubelets_words(asked: JSON, reason: str, message: str) -> None:
    found = refusal(asked, node(), [pod("q", cpu="1", port=80)])
    assert found is not None
    assert (found.reason, found.message) == (reason, message)


def test_a_node_has_room_for_so_many_pods() -> None:
    others = [pod(name) for name in "qrs"]
    found = refusal(pod(), node(), others)
    assert found is not None
    assert found.message == "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"


def test_of_taints_only_no_execute_matters_and_a_cordon_does_not() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    assert refusal(pod(), node(taints=[taint], unschedulable=True), []) is None
    ending = node(taints=[{**taint, "effect": "NoExecute"}])
    found = refusal(pod(), ending, [])
    assert found is not None
    assert found.reason == "TaintToleration"
    assert refusal(pod(tolerations=[{"operator": "Exists"}]), ending, []) is None


def test_an_extended_resource_that_the_node_does_not_know_is_somebody_elses() -> None:
    asked = pod()
    asked["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
    assert refusal(asked, node(), []) is None


def test_a_malformed_pod_takes_nothing_from_others() -> None:
    broken = pod("q")
    broken["spec"]["containers"] = "none"
    assert refusal(pod(), node(), [broken]) is None
