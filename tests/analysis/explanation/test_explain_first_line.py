"""The first line, the first nodes and the first change of an explanation are about the real cause, whatever else is wrong in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.analysis import ExplanationState, ReasonKind, Snapshot, explain, waiting
from dra_kubeletplugin.analysis.explanation.grouping import distance
from dra_kubeletplugin.cli.explain_text import text
from dra_kubeletplugin.cli.shell.style import Style

from .test_explain import COUNTERS, asked, claim, dra, gpu, held, node, part, pod, pool
from .test_explain_waiting_cluster import cluster

JSON = dict[str, Any]
MODEL = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.example.com"].numa == 1'}}]}
OTHER = {"numa": {"int": 1}}
UNHEALTHY = {"key": "dra-kubeletplugin.dev/unhealthy", "effect": "NoSchedule"}
WORN = {"key": "gpu.example.com/worn", "effect": "NoSchedule"}
RULE = {"key": "admin.example.com/recall", "value": "7", "effect": "NoSchedule"}

# Causes on node a, each with the first words of the summary. Node b has other devices.
CAUSES: dict[str, tuple[list[JSON], str]] = {
    "no device matches": ([node("a"), pool("a", gpu("g0"))], "too few devices for request r (its selector is false"),
    "held": ([node("a"), pool("a", gpu("g0", attributes=OTHER)), held("h", "a", "g0")], "too few devices for request r (another claim holds it)"),
    "cordoned": ([node("a", unschedulable=True), pool("a", gpu("g0", attributes=OTHER))], "the node is unschedulable"),
    "tainted": ([node("a"), pool("a", gpu("g0", attributes=OTHER, taints=[WORN]))], "too few devices for request r (the taint"),
    "counters": ([node("a"), pool("a", part("g0", "80Gi") | {"attributes": OTHER}, part("g1", "80Gi"), **COUNTERS), held("h", "a", "g1")], "too few devices for request r (counters"),
}  # fmt: skip


def incomplete(name: str, driver: str, where: str) -> JSON:
    return pool(where, gpu("n0"), count=2, suffix="-x", driver=driver) | {"metadata": {"name": name}}


@pytest.mark.parametrize("cause", CAUSES)
def test_an_incomplete_pool_of_another_driver_is_not_the_cause(cause: str) -> None:
    objects, first = CAUSES[cause]
    plain = asked(*objects, node("b"), pool("b", gpu("g0")), claim(**MODEL), pod("c"))
    there = [incomplete(f"x-{n}", "net.example.com", n) for n in ("a", "b")]
    found = asked(*objects, *there, node("b"), pool("b", gpu("g0")), claim(**MODEL), pod("c"))
    assert plain.summary.startswith(first)
    assert ReasonKind.POOL_INCOMPLETE not in found.kinds
    assert (found.summary, found.changes) == (plain.summary, plain.changes)


@pytest.mark.parametrize("expression", ["true", 'device.driver.endswith(".example.com")', 'device.driver != "x"'])
def test_an_incomplete_pool_that_the_class_could_select_is_the_cause(expression: str) -> None:
    wide = dra("DeviceClass", "gpu", {"selectors": [{"cel": {"expression": expression}}]})
    objects = [wide, node("a"), incomplete("x", "net.example.com", "a"), claim(), pod("c")]
    assert explain(Snapshot.of(objects), "p").kinds == {ReasonKind.POOL_INCOMPLETE}


def test_a_request_for_all_devices_waits_for_each_pool_as_in_the_scheduler() -> None:
    objects = [node("a"), pool("a", gpu("g0")), incomplete("x", "net.example.com", "a"), pod("c")]
    assert asked(*objects, claim(allocationMode="All")).kinds == {ReasonKind.POOL_INCOMPLETE}


def test_a_request_for_all_devices_names_the_selector_where_nothing_matches() -> None:
    found = asked(node("a"), pool("a", gpu("g0"), gpu("g1")), claim(allocationMode="All", **MODEL), pod("c"))
    (reason,) = found.groups[0].requests[0].reasons
    assert (reason.kind, reason.devices) == (ReasonKind.SELECTOR, 2)


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_comes_before_nodes_with_other_devices(cause: str) -> None:
    objects, first = CAUSES[cause]
    others = [o for n in ("b", "c", "d") for o in (node(n), pool(n, gpu("g0")))]
    found = asked(*objects, *others, claim(**MODEL), pod("c"))
    assert found.summary.startswith(first)
    assert "a" in found.groups[0].nodes
    assert found.changes[0].example.partition(":")[0] == "a"


@pytest.mark.parametrize("cause", ("held", "cordoned", "tainted"))
def test_the_first_line_does_not_repeat_the_selector_for_nodes_that_have_no_device_for_the_request(cause: str) -> None:
    objects, first = CAUSES[cause]
    found = asked(*objects, node("b"), pool("b", gpu("g0")), node("c"), claim(**MODEL), pod("c"))
    assert found.summary.startswith(first)
    assert found.summary.endswith(", on 1 of 3 nodes; the other 2 have no such device")


def test_the_cause_comes_before_devices_that_the_request_does_not_select() -> None:
    there = [gpu("g0", attributes=OTHER, taints=[WORN]), *(gpu(f"g{i}") for i in range(1, 9))]
    found = asked(node("a"), pool("a", *there), claim(**MODEL), pod("c"))
    assert [r.kind for r in found.groups[0].requests[0].reasons] == [ReasonKind.DEVICE_TAINT, ReasonKind.SELECTOR]


def test_nodes_with_held_devices_come_before_nodes_with_other_and_fewer_devices() -> None:
    a = pool("a", *(gpu(f"g{i}", attributes=OTHER) for i in range(2)))
    found = asked(node("a"), a, held("h", "a", "g0", "g1"), node("b"), pool("b", gpu("g0")), claim(count=3, **MODEL), pod("c"))  # fmt: skip
    assert [g.nodes for g in found.groups] == [("a",), ("b",)]


def test_the_nearest_nodes_come_first_in_a_recorded_cluster() -> None:
    for found in waiting(Snapshot.of(cluster())):
        distances = [distance(g) for g in found.groups if not g.fits]
        assert distances == sorted(distances), found.subject


@pytest.mark.parametrize("of_health", [{"taints": [UNHEALTHY]}, {"taints": [WORN], "attributes": {"dra-kubeletplugin.dev/unhealthy": {"string": "hot"}}}])  # fmt: skip
def test_an_unhealthy_device_is_to_be_repaired_because_a_plugin_refuses_it_to_a_pod_that_tolerates_it(
    of_health: JSON,
) -> None:
    (change,) = asked(node("a"), pool("a", gpu("g0", **of_health)), claim(), pod("c")).changes
    assert change.text.startswith("repair the device, so that its driver removes the taint ")


def test_a_taint_that_is_no_fault_can_be_tolerated() -> None:
    (change,) = asked(node("a"), pool("a", gpu("g0", taints=[WORN])), claim(), pod("c")).changes
    assert change.text.startswith("the request has to tolerate gpu.example.com/worn:NoSchedule, or the driver")


# --- the words ------------------------------------------------------------------------------------


def test_hints_do_not_claim_to_list_all_names_if_there_are_more() -> None:
    classes = [dra("DeviceClass", name, {}) for name in ("gpus", "gpu2", "nic", "fpga")]
    found = asked(node("a"), *classes, claim(deviceClassName="gpu1"), pod("c"))
    assert found.reasons[0].change == "make DeviceClass gpu1; similar names: gpu, gpus, gpu2"


@pytest.mark.parametrize(("asks", "shown"), [("4G", "4G"), ("1536Mi", "1536Mi"), ("4000M", "4G")])
def test_an_amount_is_shown_in_the_format_of_the_capacity_if_that_is_shorter(asks: str, shown: str) -> None:
    policy = {"default": "1G", "validRange": {"min": "512Mi" if asks.endswith("i") else "1G", "step": "512Mi" if asks.endswith("i") else "1G"}}  # fmt: skip
    capacity = {"bandwidth": {"value": "10G", "requestPolicy": policy}}
    port = {"name": "g0", "allowMultipleAllocations": True, "capacity": capacity}
    taken = held("h", "a", "g0", shareID="s", consumedCapacity={"bandwidth": "9G"})
    found = asked(node("a"), pool("a", port), taken, claim(capacity={"requests": {"bandwidth": asks}}), pod("c"))
    (reason,) = found.groups[0].requests[0].reasons
    assert reason.text == f"too little of its bandwidth is left for {shown}"


def test_a_share_of_a_running_pod_is_shown_beside_the_capacity() -> None:
    port = {"name": "g0", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10G"}}}
    taken = held("c", "a", "g0", shareID="0123456789", consumedCapacity={"bandwidth": "3906250Ki"})
    runs = pod("c", nodeName="a", status={"phase": "Running"})
    (state,) = asked(node("a"), pool("a", port), taken, runs).claims
    assert state.devices[0].detail == "share 01234567, bandwidth 4G of 10G"


def test_counters_beyond_two_are_counted_as_counters() -> None:
    amounts = {n: {"value": "2"} for n in ("cores", "memory", "slot-0")}
    whole = gpu("g0", consumesCounters=[{"counterSet": "card", "counters": amounts}])
    half = gpu("g1", consumesCounters=[{"counterSet": "card", "counters": {n: {"value": "1"} for n in amounts}}])
    sets = {"sharedCounters": [{"name": "card", "counters": amounts}]}
    found = asked(node("a"), pool("a", whole, half, **sets), held("h", "a", "g1"), claim(**{"selectors": [{"cel": {"expression": "device.driver != ''"}}]}, count=2), pod("c"))  # fmt: skip
    details = [r.examples[0].detail for r in found.groups[0].requests[0].reasons]
    assert any(
        "it needs 2 cores (1 left), 2 memory (1 left) and 1 more counter of counter set card" in d for d in details
    )


def test_the_change_to_delete_pods_names_the_largest() -> None:
    def eater(name: str, cpu: str) -> JSON:
        out = pod(name=name, nodeName="a", resources={"requests": {"cpu": cpu}}, status={"phase": "Running"})
        del out["spec"]["resourceClaims"]
        return out

    wants = pod("c", resources={"requests": {"cpu": "4"}})
    found = asked(node("a"), pool("a", gpu("g0")), claim(), eater("big", "6"), eater("small", "1500m"), wants)
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
def test_a_key_that_no_device_has_is_probably_misspelt(expression: str, hint: str) -> None:
    wants = claim(selectors=[{"cel": {"expression": expression}}])
    (reason,) = asked(node("a"), pool("a", gpu("g0")), wants, pod("c")).reasons
    assert reason.change.startswith("correct the selector: no device of the cluster has ")
    assert hint in reason.change


def test_a_key_that_some_device_has_is_to_be_checked_first() -> None:
    wants = claim(selectors=[{"cel": {"expression": 'device.attributes["gpu.example.com"].kind == "x"'}}])
    there = pool("a", gpu("g0"), gpu("g1", attributes={"kind": {"string": "x"}}))
    (reason,) = asked(node("a"), there, wants, pod("c")).reasons
    assert reason.change.startswith('a selector that checks first: "kind" in device.attributes["gpu.example.com"] && ')


def test_a_class_of_which_no_device_is_published_is_named() -> None:
    other = dra("DeviceClass", "nic", {"selectors": [{"cel": {"expression": 'device.driver == "net.example.com"'}}]})
    found = asked(node("a"), pool("a", gpu("g0")), other, claim(deviceClassName="nic"), pod("c"))
    assert found.summary == "there is no device of class nic for request r, on the only node"


def test_a_node_that_only_the_error_refuses_says_so() -> None:
    fails = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.example.com"].kind == "x"'}}]}
    fine = gpu("g0", attributes={"kind": {"string": "x"}})
    found = asked(node("a"), node("b"), pool("a", fine), pool("b", gpu("g0")), claim(**fails), pod("c"))
    lines = text(found, Style(coloured=False))
    at = lines.index("1 node: a")
    assert lines[at + 1] == "  - no reason of their own: the error above ends the search on all nodes"


# --- DeviceTaintRules -----------------------------------------------------------------------------


def rule(version: str = "v1", **selector: str) -> JSON:
    spec = {"deviceSelector": selector, "taint": RULE}
    return dra("DeviceTaintRule", "recall", spec) | {"apiVersion": f"resource.k8s.io/{version}"}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_a_rule_keeps_a_pod_away_from_a_device_and_is_named(version: str) -> None:
    objects = [node("a"), pool("a", gpu("g0")), claim(), pod("c")]
    assert asked(*objects).state is ExplanationState.FITS
    assert asked(*objects, rule(version, pool="b")).state is ExplanationState.FITS
    found = asked(*objects, rule(version, pool="a", device="g0"))
    assert found.state is ExplanationState.WAITS
    (reason,) = found.groups[0].requests[0].reasons
    assert (reason.kind, reason.examples[0].detail) == (ReasonKind.DEVICE_TAINT, "of DeviceTaintRule recall")
    assert [c.text for c in found.changes] == [
        "the request has to tolerate admin.example.com/recall=7:NoSchedule, or delete DeviceTaintRule recall"
    ]


def test_a_rule_and_bad_health_are_both_reported() -> None:
    found = asked(node("a"), pool("a", gpu("g0", taints=[UNHEALTHY])), rule(pool="a"), claim(), pod("c"))
    (reason,) = found.groups[0].requests[0].reasons
    assert "unhealthy" in reason.text
    assert "recall" in reason.text


def test_a_rule_without_a_taint_is_left_out_and_reported() -> None:
    broken = rule(pool="a")
    del broken["spec"]["taint"]
    found = asked(node("a"), pool("a", gpu("g0")), broken, claim(), pod("c"))
    assert found.state is ExplanationState.FITS
    assert "DeviceTaintRule recall cannot be read" in found.notes[0]
