"""``simulate`` on plain objects creates the pods of workloads, fills the cluster and reports why no more pods fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import QuestionError
from dra_tools import ReasonKind, Simulation, Snapshot, explain, simulate
from dra_tools.commands.explain_text import text
from packages.tools.tests.objects import (
    CLASS,
    DRIVER,
    POD_SPEC,
    TEMPLATE,
    allocated_claim,
    claim,
    cluster,
    dra,
    gpu,
    node,
    pod,
    pool,
    workload,
)


def run(*manifests: JSON, objects: list[JSON] | None = None, fill: bool = False) -> Simulation:
    return simulate(Snapshot.of(cluster() if objects is None else objects), [TEMPLATE, *manifests], fill=fill)


def test_pods_that_fit_have_nodes_and_devices_and_the_next_pod_has_an_explanation() -> None:
    found = run(workload("Deployment", replicas=5))
    [fit] = found.workloads
    assert (fit.pods, len(fit.placed), found.fits, found.free) == (5, 4, False, 0)
    assert sorted(d for p in fit.placed for d in p.devices) == sorted(
        f"r: gpu.example.com/n{i}/g{k}" for i in range(2) for k in range(2)
    )
    assert fit.stopped is not None
    assert ReasonKind.HELD in fit.stopped.kinds


BARE = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}, "spec": POD_SPEC}
CRON = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "w"},
    "spec": {"jobTemplate": {"spec": {"parallelism": 2, "template": {"spec": POD_SPEC}}}},
}


@pytest.mark.parametrize(
    ("obj", "pods"),
    [
        (BARE, 1),
        (workload("Deployment"), 1),
        (workload("Deployment", replicas=0), 0),
        (workload("ReplicaSet", replicas=3), 3),
        (workload("StatefulSet", replicas=2), 2),
        (workload("Job", parallelism=3, completions=2), 2),
        (workload("Job", parallelism=3), 3),
        (workload("Job", completions=9), 1),
        (CRON, 2),
        (workload("DaemonSet"), 2),
        (workload("DaemonSet", spec={"nodeSelector": {"kubernetes.io/hostname": "n1"}}), 1),
    ],
    ids=lambda v: v["kind"] if isinstance(v, dict) else str(v),
)
def test_a_workload_creates_the_pods_that_run_at_the_same_time(obj: JSON, pods: int) -> None:
    [fit] = run(obj).workloads
    assert (fit.pods, len(fit.placed)) == (pods, pods)


def test_a_daemon_set_pod_that_does_not_fit_does_not_stop_the_pods_of_other_nodes() -> None:
    objects = [*cluster(), allocated_claim("h", "n0", "g0", "g1")]
    [fit] = run(workload("DaemonSet"), objects=objects).workloads
    assert [p.node for p in fit.placed] == ["n1"]
    assert fit.stopped is not None
    assert fit.stopped.subject == "pod default/w-n0"


def test_fill_counts_further_pods_for_each_workload_separately() -> None:
    found = run(workload("Deployment", "a"), workload("Deployment", "b"), fill=True)
    assert [(f.more, f.limited) for f in found.workloads] == [(2, False), (2, False)]
    assert found.free == 2
    # Every requested pod fits, so only further pods are explained, and no change is tried for them.
    for fit in found.workloads:
        assert fit.stopped is None
        assert fit.no_more is not None
        assert fit.no_more.summary.endswith("on all 2 nodes")
        assert fit.no_more.changes == ()


def test_simulate_places_pods_of_higher_priority_first() -> None:
    low = workload("Deployment", "low", replicas=4)
    high = workload("Deployment", "high", spec={"priority": 10}, replicas=4)
    placed = {f.workload: len(f.placed) for f in run(low, high).workloads}
    assert placed == {"Deployment default/high": 4, "Deployment default/low": 0}


def test_simulate_uses_a_priority_class_of_the_manifests() -> None:
    low, high = workload("Deployment", "low", replicas=4), workload("Deployment", "high", replicas=4)
    high["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 7}
    found = run(low, high, urgent)
    assert {f.workload: len(f.placed) for f in found.workloads}["Deployment default/high"] == 4
    assert not found.notes


def test_pods_with_volumes_that_are_not_examined_have_no_known_result() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    found = run(workload("Deployment", spec={"volumes": [volume]}))
    assert list(map(str, found.unevaluated)) == [
        "not evaluated: Deployment default/w: volume data of kind persistentVolumeClaim"
    ]
    assert (found.fits, found.known) == (True, False)


def test_pods_of_one_claim_go_to_the_node_of_the_claim() -> None:
    shared = {"resourceClaims": [{"name": "e", "resourceClaimName": "c"}]}
    found = run(claim(), workload("Deployment", spec=shared, replicas=4), fill=True)
    [fit] = found.workloads
    assert len(fit.placed) == 4
    assert len(fit.nodes) == 1
    assert found.free == 3


def test_simulate_allocates_devices_for_extended_resources() -> None:
    by_name = {**CLASS, "spec": {**CLASS["spec"], "extendedResourceName": "example.com/gpu"}}
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"example.com/gpu": "1"}}}],
        "resourceClaims": [],
    }
    [fit] = run(by_name, workload("Deployment", spec=spec, replicas=5)).workloads
    assert len(fit.placed) == 4
    assert all(len(p.devices) == 1 for p in fit.placed)


def test_simulate_reports_a_cause_that_is_not_a_device() -> None:
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "9"}}}],
        "resourceClaims": [],
    }
    [fit] = run(workload("Deployment", spec=spec)).workloads
    assert fit.stopped is not None
    assert fit.stopped.kinds == {ReasonKind.RESOURCES}


def _changed_template(change: Callable[[JSON], Any]) -> JSON:
    template = dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})
    change(template["spec"]["spec"]["devices"]["requests"][0]["exactly"])
    return template


@pytest.mark.parametrize(
    ("manifests", "sentence"),
    [
        ([], "the manifests have no pods"),
        ([TEMPLATE, CLASS], "the manifests have no pods"),
        ([{"kind": "Pod"}], "an object without apiVersion, kind or metadata.name"),
        (
            [_changed_template(lambda r: r.update(count=-1)), BARE],
            "ResourceClaimTemplate t: spec.spec.devices.requests[0].exactly.count",
        ),
        ([_changed_template(lambda r: r.update(kount=1)), BARE], "ResourceClaimTemplate t: "),
        (
            [_changed_template(lambda r: r.update(selectors=[{"cel": {"expression": "device.x"}}])), BARE],
            "undefined field 'x'",
        ),
        ([{**BARE, "spec": {"containers": 3}}], "Pod default/w: its pods cannot be read"),
        (
            [workload("Deployment", replicas=10**9)],
            "Deployment w: 1000000000 pods cannot be simulated: use 0 to 100000",
        ),
        ([workload("Deployment", replicas=-1)], "Deployment w: -1 pods"),
        ([workload("Deployment", replicas="many")], "Deployment w cannot be read"),
        (
            [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}],
            "Job j: its template has no spec",
        ),
    ],
)
def test_manifests_that_a_server_would_reject_are_refused_with_one_sentence(
    manifests: list[JSON], sentence: str
) -> None:
    with pytest.raises(QuestionError) as e:
        simulate(Snapshot.of(cluster()), manifests)
    assert sentence in str(e.value)


def partitions(name: str) -> list[JSON]:
    """Returns a node with a card of four slices: the pool of its partitions and the counters that they share."""
    parts = [
        gpu(
            f"part-{i}",
            consumesCounters=[{"counterSet": "card", "counters": {f"slice-{k}": {"value": "1"} for k in of}}],
        )
        for i, of in enumerate([{0, 1}, {2, 3}, {0}, {1}, {2}, {3}])
    ]
    counters = pool(name, count=2, suffix="-counters")
    del counters["spec"]["devices"]
    slices = {f"slice-{k}": {"value": "1"} for k in range(4)}
    counters["spec"]["sharedCounters"] = [{"name": "card", "counters": slices}]
    return [node(name), pool(name, *parts, count=2), counters]


def test_simulate_reports_the_holders_of_partitions_once_and_exhausted_counters_once() -> None:
    objects = [
        CLASS,
        *partitions("a"),
        *partitions("b"),
        allocated_claim("h", "a", "part-0", "part-1"),
        allocated_claim("i", "b", "part-0", "part-1"),
    ]
    device_request = claim()["spec"]["devices"]["requests"][0]
    template = dra(
        "ResourceClaimTemplate",
        "t",
        {"spec": {"devices": {"requests": [device_request, {**device_request, "name": "s"}]}}},
    )
    [fit] = simulate(Snapshot.of(objects), [template, BARE]).workloads
    assert fit.stopped is not None
    [group] = fit.stopped.groups
    for request in group.requests:
        assert {(r.kind, r.devices) for r in request.reasons} == {(ReasonKind.HELD, 4), (ReasonKind.COUNTERS, 8)}
        [counters] = [r for r in request.reasons if r.kind is ReasonKind.COUNTERS]
        assert (
            counters.examples[0].detail
            == "it needs 1 slice-0 (0 left) of counter set card; claim default/h of pod default/holder"
        )
    lines = text(fit.stopped, Style(coloured=False))
    assert [line.strip() for line in lines if " class gpu;" in line] == [
        "- claim w-e, requests r, s: 1 device each of class gpu; these nodes have no usable device"
    ]


def test_simulate_accepts_cel_functions_of_feature_gates() -> None:
    selectors = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model.includes("a")'}}]
    attributes = {"model": {"strings": ["a", "b"]}}
    objects = [CLASS, node("a"), pool("a", gpu("g0", attributes=attributes))]
    template = dra("ResourceClaimTemplate", "t", {"spec": claim(selectors=selectors)["spec"]})
    assert simulate(Snapshot.of(objects), [template, BARE]).fits


def test_simulate_does_not_change_the_snapshot() -> None:
    snapshot = Snapshot.of([*cluster(), TEMPLATE, claim(), pod("c")])
    before = explain(snapshot, "p")
    simulate(snapshot, [workload("Deployment", replicas=9)], fill=True)
    assert explain(snapshot, "p") == before


def test_no_suggested_change_frees_devices_of_simulated_pods() -> None:
    [fit] = run(workload("Deployment", replicas=5)).workloads
    assert fit.stopped is not None
    assert not fit.stopped.changes
    objects = [*cluster(), allocated_claim("h", "n0", "g0")]
    [fit] = run(workload("Deployment", replicas=5), objects=objects).workloads
    assert fit.stopped is not None
    assert [c.example for c in fit.stopped.changes] == ["n0: claim default/h of pod default/holder"]


def test_simulate_applies_a_taint_rule_of_the_manifests() -> None:
    spec = {"deviceSelector": {"pool": "n0"}, "taint": {"key": "example.com/recall", "effect": "NoSchedule"}}
    found = run(workload("Deployment", replicas=4), dra("DeviceTaintRule", "recall", spec))
    assert len(found.workloads[0].placed) == 2


@pytest.mark.parametrize(("label", "fits"), [("true", True), ("false", False)])
def test_simulate_refuses_admin_access_without_the_label_of_the_namespace(label: str, fits: bool) -> None:
    admin = dra("ResourceClaimTemplate", "t", {"spec": claim(adminAccess=True)["spec"]})
    labels = {"resource.kubernetes.io/admin-access": label}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    [fit] = simulate(Snapshot.of([*cluster(), namespace]), [admin, workload("Deployment")]).workloads
    assert fit.fits is fits
    assert fits or (fit.stopped and ReasonKind.ADMIN_LABEL in fit.stopped.kinds)


def test_a_pod_with_a_node_name_never_gets_devices() -> None:
    [fit] = run(workload("Deployment", spec={"nodeName": "n0"})).workloads
    assert not fit.placed
    assert fit.stopped is not None
    assert ReasonKind.NODE_GIVEN in fit.stopped.kinds


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            {"schedulingGates": [{"name": "quota"}]},
            "the pod has scheduling gates: quota: it is placed as if they were removed",
        ),
        (
            {"schedulerName": "volcano"},
            "the pod names the scheduler volcano: it is placed by the rules of default-scheduler",
        ),
    ],
)
def test_a_pod_with_a_gate_or_another_scheduler_is_placed_and_the_result_is_not_known(spec: JSON, why: str) -> None:
    found = run(workload("Deployment", spec=spec), fill=True)
    assert (found.fits, found.known) == (True, False)
    assert [(u.subject, u.why) for u in found.unevaluated] == [("Deployment default/w", why)]
    [fit] = found.workloads
    assert fit.no_more is not None
    assert ReasonKind.HELD in fit.no_more.kinds
    assert "gates" not in fit.no_more.summary


def test_the_last_definition_of_an_object_wins_and_a_note_names_it() -> None:
    found = run(workload("Deployment", replicas=1), workload("Deployment", replicas=2))
    assert [fit.pods for fit in found.workloads] == [2]
    assert found.notes == ("defined more than once, so the last definition wins: Deployment w",)
