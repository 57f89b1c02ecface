"""The first line, the first nodes and the first change of an explanation name the pod's real cause, not another fault of the cluster."""

from __future__ import annotations

import pytest

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_tools import ExplanationState, ReasonKind, Snapshot, explain, waiting
from dra_tools.commands.explain_text import text
from dra_tools.explanation.grouping import distance
from packages.tools.tests.explanation.test_explain_waiting_cluster import cluster
from packages.tools.tests.objects import (
    COUNTERS,
    allocated_claim,
    claim,
    dra,
    explain_objects,
    gpu,
    node,
    partition,
    pod,
    pool,
)

MODEL = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.example.com"].numa == 1'}}]}
OTHER = {"numa": {"int": 1}}
UNHEALTHY = {"key": "dra-kubeletplugin.dev/unhealthy", "effect": "NoSchedule"}
WORN = {"key": "gpu.example.com/worn", "effect": "NoSchedule"}
RULE = {"key": "admin.example.com/recall", "value": "7", "effect": "NoSchedule"}

# Causes on node a, each with the start of the summary. Node b has other devices.
CAUSES: dict[str, tuple[list[JSON], str]] = {
    "no device matches": ([node("a"), pool("a", gpu("g0"))], "too few devices for request r (its selector is false"),
    "held": ([node("a"), pool("a", gpu("g0", attributes=OTHER)), allocated_claim("h", "a", "g0")], "too few devices for request r (another claim holds it)"),
    "cordoned": ([node("a", unschedulable=True), pool("a", gpu("g0", attributes=OTHER))], "the node is unschedulable"),
    "tainted": ([node("a"), pool("a", gpu("g0", attributes=OTHER, taints=[WORN]))], "too few devices for request r (the taint"),
    "counters": ([node("a"), pool("a", partition("g0", "80Gi") | {"attributes": OTHER}, partition("g1", "80Gi"), **COUNTERS), allocated_claim("h", "a", "g1")], "too few devices for request r (counters"),
}  # fmt: skip


def incomplete_pool(name: str, driver: str, node_name: str) -> JSON:
    return pool(node_name, gpu("n0"), count=2, suffix="-x", driver=driver) | {"metadata": {"name": name}}


@pytest.mark.parametrize("cause", CAUSES)
def test_an_incomplete_pool_of_another_driver_is_not_the_cause(cause: str) -> None:
    objects, first = CAUSES[cause]
    baseline = explain_objects(*objects, node("b"), pool("b", gpu("g0")), claim(**MODEL), pod("c"))
    incomplete_pools = [incomplete_pool(f"x-{n}", "net.example.com", n) for n in ("a", "b")]
    found = explain_objects(*objects, *incomplete_pools, node("b"), pool("b", gpu("g0")), claim(**MODEL), pod("c"))
    assert baseline.summary.startswith(first)
    assert ReasonKind.POOL_INCOMPLETE not in found.kinds
    assert (found.summary, found.changes) == (baseline.summary, baseline.changes)


@pytest.mark.parametrize("expression", ["true", 'device.driver.endswith(".example.com")', 'device.driver != "x"'])
def test_an_incomplete_pool_that_the_class_could_select_is_the_cause(expression: str) -> None:
    wide = dra("DeviceClass", "gpu", {"selectors": [{"cel": {"expression": expression}}]})
    objects = [wide, node("a"), incomplete_pool("x", "net.example.com", "a"), claim(), pod("c")]
    assert explain(Snapshot.of(objects), "p").kinds == {ReasonKind.POOL_INCOMPLETE}


def test_a_request_for_all_devices_waits_for_each_incomplete_pool() -> None:
    objects = [node("a"), pool("a", gpu("g0")), incomplete_pool("x", "net.example.com", "a"), pod("c")]
    assert explain_objects(*objects, claim(allocationMode="All")).kinds == {ReasonKind.POOL_INCOMPLETE}


def test_a_request_for_all_devices_names_the_selector_if_no_device_matches() -> None:
    found = explain_objects(node("a"), pool("a", gpu("g0"), gpu("g1")), claim(allocationMode="All", **MODEL), pod("c"))
    (reason,) = found.groups[0].requests[0].reasons
    assert (reason.kind, reason.devices) == (ReasonKind.SELECTOR, 2)


@pytest.mark.parametrize("cause", CAUSES)
def test_the_summary_lists_the_cause_before_nodes_with_other_devices(cause: str) -> None:
    objects, first = CAUSES[cause]
    others = [o for n in ("b", "c", "d") for o in (node(n), pool(n, gpu("g0")))]
    found = explain_objects(*objects, *others, claim(**MODEL), pod("c"))
    assert found.summary.startswith(first)
    assert "a" in found.groups[0].nodes
    assert found.changes[0].example.partition(":")[0] == "a"


@pytest.mark.parametrize("cause", ("held", "cordoned", "tainted"))
def test_the_first_line_omits_the_selector_for_nodes_without_a_matching_device(cause: str) -> None:
    objects, first = CAUSES[cause]
    found = explain_objects(*objects, node("b"), pool("b", gpu("g0")), node("c"), claim(**MODEL), pod("c"))
    assert found.summary.startswith(first)
    assert found.summary.endswith(", on 1 of 3 nodes; the other 2 have no such device")


def test_the_reasons_list_the_cause_before_devices_that_the_request_does_not_select() -> None:
    devices = [gpu("g0", attributes=OTHER, taints=[WORN]), *(gpu(f"g{i}") for i in range(1, 9))]
    found = explain_objects(node("a"), pool("a", *devices), claim(**MODEL), pod("c"))
    assert [r.kind for r in found.groups[0].requests[0].reasons] == [ReasonKind.DEVICE_TAINT, ReasonKind.SELECTOR]


def test_nodes_with_allocated_devices_come_before_nodes_with_other_and_fewer_devices() -> None:
    a = pool("a", *(gpu(f"g{i}", attributes=OTHER) for i in range(2)))
    found = explain_objects(node("a"), a, allocated_claim("h", "a", "g0", "g1"), node("b"), pool("b", gpu("g0")), claim(count=3, **MODEL), pod("c"))  # fmt: skip
    assert [g.nodes for g in found.groups] == [("a",), ("b",)]


def test_the_nearest_nodes_come_first_in_a_recorded_cluster() -> None:
    for found in waiting(Snapshot.of(cluster())):
        distances = [distance(g) for g in found.groups if not g.fits]
        assert distances == sorted(distances), found.subject


@pytest.mark.parametrize("health", [{"taints": [UNHEALTHY]}, {"taints": [WORN], "attributes": {"dra-kubeletplugin.dev/unhealthy": {"string": "hot"}}}])  # fmt: skip
def test_explain_suggests_repair_of_an_unhealthy_device_and_no_toleration(
    health: JSON,
) -> None:
    (change,) = explain_objects(node("a"), pool("a", gpu("g0", **health)), claim(), pod("c")).changes
    assert change.text.startswith("repair the device, so that its driver removes the taint ")


def test_explain_suggests_a_toleration_for_a_taint_that_is_no_health_fault() -> None:
    (change,) = explain_objects(node("a"), pool("a", gpu("g0", taints=[WORN])), claim(), pod("c")).changes
    assert change.text.startswith("the request has to tolerate gpu.example.com/worn:NoSchedule, or the driver")


# --- wording --------------------------------------------------------------------------------------


def test_hints_list_at_most_three_similar_names() -> None:
    classes = [dra("DeviceClass", name, {}) for name in ("gpus", "gpu2", "nic", "fpga")]
    found = explain_objects(node("a"), *classes, claim(deviceClassName="gpu1"), pod("c"))
    assert found.reasons[0].change == "make DeviceClass gpu1; similar names: gpu, gpu2, gpus"


@pytest.mark.parametrize(("requested", "shown"), [("4G", "4G"), ("1536Mi", "1536Mi"), ("4000M", "4G")])
def test_explain_shows_an_amount_in_the_format_of_the_capacity_if_that_is_shorter(requested: str, shown: str) -> None:
    policy = {"default": "1G", "validRange": {"min": "512Mi" if requested.endswith("i") else "1G", "step": "512Mi" if requested.endswith("i") else "1G"}}  # fmt: skip
    capacity = {"bandwidth": {"value": "10G", "requestPolicy": policy}}
    port = {"name": "g0", "allowMultipleAllocations": True, "capacity": capacity}
    consuming_claim = allocated_claim("h", "a", "g0", shareID="s", consumedCapacity={"bandwidth": "9G"})
    found = explain_objects(
        node("a"), pool("a", port), consuming_claim, claim(capacity={"requests": {"bandwidth": requested}}), pod("c")
    )
    (reason,) = found.groups[0].requests[0].reasons
    assert reason.text == f"too little of its bandwidth is left for {shown}"


def test_explain_shows_the_share_of_a_running_pod_with_the_capacity() -> None:
    port = {"name": "g0", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10G"}}}
    consuming_claim = allocated_claim("c", "a", "g0", shareID="0123456789", consumedCapacity={"bandwidth": "3906250Ki"})
    running_pod = pod("c", nodeName="a", status={"phase": "Running"})
    (state,) = explain_objects(node("a"), pool("a", port), consuming_claim, running_pod).claims
    assert state.devices[0].detail == "share 01234567, bandwidth 4G of 10G"


def test_explain_names_two_counters_and_counts_the_rest() -> None:
    amounts = {n: {"value": "2"} for n in ("cores", "memory", "slot-0")}
    whole = gpu("g0", consumesCounters=[{"counterSet": "card", "counters": amounts}])
    half = gpu("g1", consumesCounters=[{"counterSet": "card", "counters": {n: {"value": "1"} for n in amounts}}])
    sets = {"sharedCounters": [{"name": "card", "counters": amounts}]}
    found = explain_objects(node("a"), pool("a", whole, half, **sets), allocated_claim("h", "a", "g1"), claim(**{"selectors": [{"cel": {"expression": "device.driver != ''"}}]}, count=2), pod("c"))  # fmt: skip
    details = [r.examples[0].detail for r in found.groups[0].requests[0].reasons]
    assert any(
        "it needs 2 cores (1 left), 2 memory (1 left) and 1 more counter of counter set card" in d for d in details
    )


def test_the_change_to_delete_pods_names_the_largest_pod() -> None:
    def cpu_pod(name: str, cpu: str) -> JSON:
        running_pod = pod(name=name, nodeName="a", resources={"requests": {"cpu": cpu}}, status={"phase": "Running"})
        del running_pod["spec"]["resourceClaims"]
        return running_pod

    waiting_pod = pod("c", resources={"requests": {"cpu": "4"}})
    found = explain_objects(
        node("a"), pool("a", gpu("g0")), claim(), cpu_pod("big", "6"), cpu_pod("small", "1500m"), waiting_pod
    )
    (change,) = found.changes
    assert (change.text, change.example) == ("less cpu, or delete pods", "a: pod default/big requests 6 cpu")


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ('device.attributes["gpu.example.con"].numa == 0', "in device.attributes[\"gpu.example.con\"], did you mean 'gpu.example.com'?"),
        ('device.attributes["gpu.example.com"].nume == 0', "has nume in device.attributes[\"gpu.example.com\"], did you mean 'numa'?"),
        ('device.capacity["gpu.example.com"].cores.isGreaterThan(quantity("1"))', 'has cores in device.capacity["gpu.example.com"].'),
    ],
)  # fmt: skip
def test_explain_suggests_a_correction_for_a_key_that_no_device_has(expression: str, hint: str) -> None:
    request_claim = claim(selectors=[{"cel": {"expression": expression}}])
    (reason,) = explain_objects(node("a"), pool("a", gpu("g0")), request_claim, pod("c")).reasons
    assert reason.change.startswith("correct the selector: no device of the cluster has ")
    assert hint in reason.change


def test_explain_suggests_a_check_for_a_key_that_some_devices_have() -> None:
    request_claim = claim(selectors=[{"cel": {"expression": 'device.attributes["gpu.example.com"].kind == "x"'}}])
    devices = pool("a", gpu("g0"), gpu("g1", attributes={"kind": {"string": "x"}}))
    (reason,) = explain_objects(node("a"), devices, request_claim, pod("c")).reasons
    assert reason.change.startswith('a selector that checks first: "kind" in device.attributes["gpu.example.com"] && ')


def test_the_summary_names_a_class_without_published_devices() -> None:
    other = dra("DeviceClass", "nic", {"selectors": [{"cel": {"expression": 'device.driver == "net.example.com"'}}]})
    found = explain_objects(node("a"), pool("a", gpu("g0")), other, claim(deviceClassName="nic"), pod("c"))
    assert found.summary == "there is no device of class nic for request r, on the only node"


def test_a_node_without_own_reasons_refers_to_the_selector_error() -> None:
    failing_selector = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.example.com"].kind == "x"'}}]}
    matching = gpu("g0", attributes={"kind": {"string": "x"}})
    found = explain_objects(
        node("a"), node("b"), pool("a", matching), pool("b", gpu("g0")), claim(**failing_selector), pod("c")
    )
    lines = text(found, Style(coloured=False))
    index = lines.index("1 node: a")
    assert lines[index + 1] == "  - no reason of their own: the error above ends the search on all nodes"


# --- DeviceTaintRules -----------------------------------------------------------------------------


def rule(version: str = "v1", **selector: str) -> JSON:
    spec = {"deviceSelector": selector, "taint": RULE}
    return dra("DeviceTaintRule", "recall", spec) | {"apiVersion": f"resource.k8s.io/{version}"}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_a_rule_excludes_a_device_and_the_reason_names_the_rule(version: str) -> None:
    objects = [node("a"), pool("a", gpu("g0")), claim(), pod("c")]
    assert explain_objects(*objects).state is ExplanationState.FITS
    assert explain_objects(*objects, rule(version, pool="b")).state is ExplanationState.FITS
    found = explain_objects(*objects, rule(version, pool="a", device="g0"))
    assert found.state is ExplanationState.WAITS
    (reason,) = found.groups[0].requests[0].reasons
    assert (reason.kind, reason.examples[0].detail) == (ReasonKind.DEVICE_TAINT, "of DeviceTaintRule recall")
    assert [c.text for c in found.changes] == [
        "the request has to tolerate admin.example.com/recall=7:NoSchedule, or delete DeviceTaintRule recall"
    ]


def test_explain_reports_both_a_rule_and_bad_health() -> None:
    found = explain_objects(node("a"), pool("a", gpu("g0", taints=[UNHEALTHY])), rule(pool="a"), claim(), pod("c"))
    (reason,) = found.groups[0].requests[0].reasons
    assert "unhealthy" in reason.text
    assert "recall" in reason.text


def test_explain_skips_and_reports_a_rule_without_a_taint() -> None:
    broken = rule(pool="a")
    del broken["spec"]["taint"]
    found = explain_objects(node("a"), pool("a", gpu("g0")), broken, claim(), pod("c"))
    assert found.state is ExplanationState.UNKNOWN
    assert "DeviceTaintRule recall cannot be read" in found.notes[0]
