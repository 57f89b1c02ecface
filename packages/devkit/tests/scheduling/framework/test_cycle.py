"""One scheduling cycle: filters with the messages of Kubernetes, scores, and the victims of preemption."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.label_selectors import selected
from dra_devkit.scheduling.framework import unsupported
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_devkit.scheduling.framework.status import NodeDiagnosis
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi import node_selectors
from packages.devkit.tests.scheduling.framework.cycles import cycle_of, node, pod


def diagnosis(p: PodInfo, *nodes: NodeInfo) -> str:
    """Returns the message about the rejected nodes, or an empty string if a node is feasible."""
    cycle = cycle_of(p, nodes)
    return "" if cycle.feasible() else str(NodeDiagnosis(len(nodes), cycle.rejected))


def anti_affinity(app: str, key: str = "kubernetes.io/hostname", **term: Any) -> JSON:
    required_term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **term}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [required_term]}}


def affinity_to(app: str, key: str = "zone") -> JSON:
    required_term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [required_term]}}


@pytest.mark.parametrize(
    ("p", "candidate", "reason"),
    [
        pytest.param(pod("p"), node("n", unschedulable=True), "1 node(s) were unschedulable", id="cordoned"),
        pytest.param(
            pod("p", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
            node("n", unschedulable=True),
            "",
            id="cordoned-and-tolerated",
        ),
        pytest.param(
            pod("p"), node("n", taints=[{"key": "a", "effect": "NoExecute"}]), "1 node(s) had untolerated taint(s)", id="taint"
        ),
        pytest.param(pod("p"), node("n", taints=[{"key": "a", "effect": "PreferNoSchedule"}]), "", id="soft-taint"),
        pytest.param(
            pod("p", tolerations=[{"key": "a", "value": "x"}]),
            node("n", taints=[{"key": "a", "value": "y", "effect": "NoSchedule"}]),
            "1 node(s) had untolerated taint(s)",
            id="taint-of-another-value",
        ),
        pytest.param(
            pod("p", nodeSelector={"zone": "a"}), node("n"), "1 node(s) didn't match Pod's node affinity/selector", id="selector"
        ),
        pytest.param(
            pod(
                "p",
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}
                            ]
                        }
                    }
                },
            ),
            node("n"),
            "1 node(s) didn't match Pod's node affinity/selector",
            id="match-fields",
        ),
        pytest.param(pod("p", cpu="9"), node("n"), "1 Insufficient cpu", id="cpu"),
        pytest.param(
            pod("p", container={"resources": {"limits": {"example.com/x": "1"}}}),
            node("n"),
            "1 Insufficient example.com/x",
            id="extended-without-class",
        ),
        pytest.param(
            pod("p", initContainers=[{"name": "i", "resources": {"requests": {"cpu": "9"}}}]),
            node("n"),
            "1 Insufficient cpu",
            id="init-container",
        ),
        pytest.param(
            pod("p", cpu="4", initContainers=[{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "5"}}}]),
            node("n"),
            "1 Insufficient cpu",
            id="sidecar-beside",
        ),
        pytest.param(pod("p", cpu="7", overhead={"cpu": "2"}), node("n"), "1 Insufficient cpu", id="overhead"),
        pytest.param(pod("p"), node("n", pods="0"), "1 Too many pods", id="pods"),
        pytest.param(
            pod("p", affinity=affinity_to("db")), node("n", labels={"zone": "a"}), "1 node(s) didn't match pod affinity rules", id="no-matching-pod-in-zone"
        ),
        pytest.param(
            pod("p", labels={"app": "db"}, affinity=affinity_to("db")), node("n", labels={"zone": "a"}), "", id="first-pod-of-the-group"
        ),
        pytest.param(
            pod("p", labels={"app": "db"}, affinity=affinity_to("db")),
            node("n"),
            "1 node(s) didn't match pod affinity rules",
            id="no-such-topology",
        ),
    ],
)  # fmt: skip
def test_a_filter_rejects_a_node_with_the_message_of_kubernetes(p: PodInfo, candidate: NodeInfo, reason: str) -> None:
    assert diagnosis(p, candidate) == (f"0/1 nodes are available: {reason}." if reason else "")


@pytest.mark.parametrize(
    ("existing", "p", "reason"),
    [
        pytest.param(pod("a", cpu="5"), pod("b", cpu="4"), "1 Insufficient cpu", id="cpu-in-use"),
        pytest.param(
            pod("a", container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
            pod("b", container={"ports": [{"containerPort": 81, "hostPort": 80, "hostIP": "127.0.0.1"}]}),
            "1 node(s) didn't have free ports for the requested pod ports",
            id="host-port",
        ),
        pytest.param(
            pod("a", container={"ports": [{"containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.2"}]}),
            pod("b", container={"ports": [{"containerPort": 81, "hostPort": 80, "hostIP": "127.0.0.1"}]}),
            "",
            id="host-port-of-another-address",
        ),
        pytest.param(
            pod("a", labels={"app": "x"}),
            pod("b", affinity=anti_affinity("x")),
            "1 node(s) didn't match pod anti-affinity rules",
            id="anti-affinity",
        ),
        pytest.param(
            pod("a", affinity=anti_affinity("x")),
            pod("b", labels={"app": "x"}),
            "1 node(s) didn't satisfy existing pods anti-affinity rules",
            id="anti-affinity-of-the-existing-pod",
        ),
        pytest.param(
            pod("a", labels={"app": "x"}),
            pod("b", affinity=anti_affinity("x", namespaceSelector={"matchLabels": {"team": "x"}})),
            "",
            id="anti-affinity-in-other-namespaces",
        ),
        pytest.param(
            pod("a", labels={"app": "x", "v": "1"}),
            pod("b", labels={"v": "2"}, affinity=anti_affinity("x", matchLabelKeys=["v"])),
            "",
            id="anti-affinity-of-the-same-version",
        ),
    ],
)  # fmt: skip
def test_existing_pods_can_make_a_node_infeasible(existing: PodInfo, p: PodInfo, reason: str) -> None:
    assert diagnosis(p, node("n").with_pod(existing)) == (f"0/1 nodes are available: {reason}." if reason else "")


def test_pods_are_spread_over_zones() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    new = pod("new", labels={"app": "x"}, topologySpreadConstraints=[constraint])
    a, b, without_zone = node("a", labels={"zone": "a"}), node("b", labels={"zone": "b"}, cpu="1"), node("c")
    a = a.with_pod(pod("old", labels={"app": "x"}))
    assert [n.name for n in cycle_of(new, [a, b, without_zone]).feasible()] == ["b"]
    cycle = cycle_of(new, [a, without_zone])
    assert [n.name for n in cycle.feasible()] == ["a"], "a single zone has no skew"
    assert cycle.rejected["c"].reasons == (
        "node(s) didn't match pod topology spread constraints (missing required label)",
    )


OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near", "")


@given(
    st.dictionaries(st.sampled_from("ab"), st.sampled_from(["", "1", "2", "x"])),
    st.sampled_from("ab"),
    st.sampled_from(OPERATORS),
    st.lists(st.sampled_from(["", "1", "2", "x"]), max_size=2),
)
def test_an_expression_matches_labels_of_pods_and_nodes_alike(
    labels: dict[str, str], key: str, operator: str, values: list[str]
) -> None:
    expression = {"key": key, "operator": operator, "values": values}
    of_node = node_selectors.selector_matches(
        {"metadata": {"name": "n", "labels": labels}}, {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    )
    assert selected(labels, {"matchExpressions": [expression]}) is of_node
    if operator in {"Near", ""}:
        assert not of_node


def test_reasons_are_counted_and_sorted_as_text() -> None:
    nodes = [node("a", unschedulable=True), node("b", cpu="1"), node("c", cpu="1", pods="0")]
    assert diagnosis(pod("p", cpu="2"), *nodes) == (
        "0/3 nodes are available: 1 Too many pods, 1 node(s) were unschedulable, 2 Insufficient cpu."
    )


@pytest.mark.parametrize(
    ("spec", "feature"),
    [
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}, "volume v of kind persistentVolumeClaim"),
        ({"runtimeClassName": "gvisor"}, "runtimeClassName gvisor"),
        ({"resourceClaims": [{"name": "c", "podGroupResourceClaim": "x"}]}, "podGroupResourceClaim of resource claim c"),
        ({"workloadRef": {"name": "w"}}, "workloadRef: use schedulingGroup to add a pod to a PodGroup (gate GenericWorkload)"),
        ({"topologySpreadConstraints": [{"topologyKey": "z", "new": 1}]}, "new of a topology spread constraint"),
        ({"tolerations": [{"key": "a", "operator": "Gt"}]}, "operator Gt of a toleration"),
    ],
)  # fmt: skip
def test_an_unsupported_field_is_reported(spec: JSON, feature: str) -> None:
    assert unsupported.reasons(pod("p", **spec)) == [f"not supported by the local cluster: {feature}"]


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        ({"schedulingPolicy": {"gang": {"minCount": 2}}}, ["schedulingPolicy gang of PodGroup g: pods are placed one by one; use the policy basic"]),
        ({"schedulingPolicy": {"basic": {}}, "priority": 3}, ["priority of PodGroup g"]),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}, ["disruptionMode of PodGroup g"]),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}, "resourceClaims": []}, []),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": "Pod", "podGroupTemplateRef": {}}, []),
    ],
)  # fmt: skip
def test_an_unsupported_field_of_a_pod_group_is_reported(spec: JSON, messages: list[str]) -> None:
    group = {"metadata": {"name": "g"}, "spec": spec}
    reasons = unsupported.reasons(pod("p", schedulingGroup={"podGroupName": "g"}), group)
    assert reasons == [f"not supported by the local cluster: {w}" for w in messages]


def test_common_pod_fields_are_supported() -> None:
    volumes = [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "x"}},
        {"name": "c", "hostPath": {"path": "/"}},
    ]
    assert not unsupported.reasons(pod("p", volumes=volumes, priority=0, priorityClassName="x"))
