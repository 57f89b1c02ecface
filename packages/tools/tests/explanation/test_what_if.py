"""Each change that ``explain`` suggests is enough: the test makes the change on a random cluster, and explains and places the pod again."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dra_devkit.commands.style import Style
from dra_devkit.scheduling.cel.parts import without
from dra_devkit.scheduling.framework.device_taint_rules import taints_of
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.quantity import parse
from dra_tools import ExplanationState, Snapshot, SuggestedChange, explain, simulate
from dra_tools.commands.explain_text import text
from dra_tools.explanation.device_reasons import FREEING
from packages.tools.tests.objects import CLASS, DRIVER, allocated_claim, claim, dra, node, pod, pool

EXTENDED = "example.com/gpu"
AWAY = "node.kubernetes.io/not-ready"
GPUS = dra("DeviceClass", "gpus", {**CLASS["spec"], "extendedResourceName": EXTENDED})
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
PARTS = [
    f"{ATTRIBUTES}.numa == 0",
    f'{ATTRIBUTES}.model == "x"',
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
]


def cluster(r: Random) -> list[JSON]:
    """Returns up to three nodes with various devices, some of them allocated, and the pod p with the claims c0 and c1."""
    objects: list[JSON] = [CLASS, GPUS]
    for name in ("a", "b", "c")[: r.randint(1, 3)]:
        cordoned = r.random() < 0.2
        taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if cordoned else []
        taints += [{"key": "k", "effect": "NoSchedule"}] if r.random() < 0.2 else []
        taints += [{"key": AWAY, "effect": "NoExecute"}] if r.random() < 0.1 else []
        objects.append(node(name, labels={"zone": r.choice("xy")}, unschedulable=cordoned, taints=taints))
        objects += _devices(r, name)
    if r.random() < 0.3:
        wide = {
            "name": "w",
            "attributes": {"numa": {"int": 0}, "model": {"string": "x"}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        everywhere = pool("wide", wide)
        del everywhere["spec"]["nodeName"]
        everywhere["spec"]["allNodes"] = True
        objects.append(everywhere)
    claims = ["c0", "c1"][: r.randint(1, 2)]
    objects += [dra("ResourceClaim", name, {"devices": _claim_devices(r)}) for name in claims]
    objects += _pods(r)
    more: JSON = {"nodeSelector": {"zone": "x"}} if r.random() < 0.2 else {}
    more |= {"schedulingGates": [{"name": "queue"}]} if r.random() < 0.1 else {}
    more |= {"schedulerName": "volcano"} if r.random() < 0.1 else {}
    if r.random() < 0.2:
        term = {"labelSelector": {"matchLabels": {"app": "p"}}, "topologyKey": "kubernetes.io/hostname"}
        more["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if r.random() < 0.1:
        claims = [*claims, "placed"]
        objects.append(allocated_claim("placed", r.choice("abc"), "g9", users=()))
    requests = {"cpu": r.choice(["1", "1", "9"])}
    if r.random() < 0.3:
        requests[r.choice([EXTENDED, EXTENDED, "example.com/typo"])] = r.choice("123")
    claims = claims if len(requests) == 1 else claims[: r.randint(0, 2)]
    return [*objects, *_rules(r), pod(*claims, resources={"requests": requests}, **more)]


def _rules(r: Random) -> Iterator[JSON]:
    """Yields DeviceTaintRules. Devices may already have the same taint."""
    for name in ("rule-0", "rule-1")[: r.choice([0, 0, 0, 0, 1, 2])]:
        selector = r.choice([None, {}, {"driver": DRIVER}, {"driver": "other"}, {"pool": "a"}, {"device": "g1"}])
        spec = {"taint": {"key": r.choice("tv"), "effect": r.choice(["NoSchedule", "NoSchedule", "None"])}}
        yield dra("DeviceTaintRule", name, spec | ({} if selector is None else {"deviceSelector": selector}))


def _pods(r: Random) -> Iterator[JSON]:
    """Yields pods that take the CPU of a node, and pods that wait for the same devices."""
    for name in ("a", "b", "c"):
        if r.random() < 0.2:
            other = pod(name=f"cpu-{name}", nodeName=name, resources={"requests": {"cpu": r.choice("48")}})
            other["metadata"]["labels"] = {"app": r.choice("pq")}
            yield other
    if r.random() < 0.2:
        yield pod("c0", name="rival", status={"nominatedNodeName": "a"}, resources={"requests": {"cpu": "4"}})


def _devices(r: Random, name: str) -> Iterator[JSON]:
    counted = r.random() < 0.3
    devices = []
    for i in range(r.randint(0, 5)):
        capacity = {"memory": {"value": r.choice(["16Gi", "40Gi", "80Gi"])}, "cores": {"value": r.choice(["10", "20"])}}
        if r.random() < 0.2:
            del capacity["cores"]
        attributes = {"numa": {"int": r.randint(0, 1)}, "model": {"string": r.choice("xy")}}
        device: JSON = {"name": f"g{i}", "attributes": attributes, "capacity": capacity}
        if r.random() < 0.3:
            device["taints"] = [{"key": key, "effect": "NoSchedule"} for key in r.choice(["t", "u", "tu"])]
        if r.random() < 0.25:
            device["allowMultipleAllocations"] = True
        if counted:
            device["consumesCounters"] = [{"counterSet": "s", "counters": {"m": {"value": r.choice("123")}}}]
        devices.append(device)
    yield pool(name, *devices, count=1 + counted + (r.random() < 0.1))
    if counted:
        shared = [{"name": "s", "counters": {"m": {"value": r.choice("245")}}}]
        spec = pool(name, count=2)["spec"]
        del spec["devices"]
        yield dra("ResourceSlice", f"{name}-counters", {**spec, "sharedCounters": shared})
    for number, device in enumerate(devices):
        if r.random() < 0.45:
            share = {}
            if device.get("allowMultipleAllocations"):
                share = {"shareID": str(number), "consumedCapacity": {"memory": "8Gi"}}
            yield allocated_claim(f"h-{name}-{number}", name, device["name"], **share)


def _claim_devices(r: Random) -> JSON:
    requests: list[JSON] = []
    for k in range(r.randint(1, 2)):
        exact_request = {"name": f"r{k}", "exactly": _device_request(r)}
        subs = [{"name": f"s{i}", **_device_request(r)} for i in range(r.randint(1, 2))]
        requests.append(exact_request if r.random() < 0.8 else {"name": f"r{k}", "firstAvailable": subs})
    constraints = []
    for _ in range(r.choice([0, 0, 0, 1, 1, 2])):
        kind = "matchAttribute" if r.random() < 0.7 else "distinctAttribute"
        constraints.append({kind: f"{DRIVER}/{r.choice(['numa', 'model'])}"})
    return {"requests": requests, "constraints": constraints}


def _device_request(r: Random) -> JSON:
    out: JSON = {"deviceClassName": "gpu"}
    if r.random() < 0.5:
        out["selectors"] = [{"cel": {"expression": " && ".join(r.sample(PARTS, r.randint(1, 2)))}}]
    if r.random() < 0.4:
        out |= r.choice([{"count": 2}, {"count": 3}, {"allocationMode": "All"}])
    if r.random() < 0.4:
        amounts = {"memory": r.choice(["10Gi", "40Gi", "100Gi"]), "cores": r.choice(["5", "15"])}
        out["capacity"] = {"requests": amounts}
    if r.random() < 0.2:
        out["adminAccess"] = True
    if r.random() < 0.2:
        out["tolerations"] = [{"key": r.choice("tuv"), "operator": "Exists"}]
    return out


def apply_change(objects: list[JSON], change: SuggestedChange) -> list[list[JSON]]:
    """Returns the object lists that the change allows. It returns several lists if the text of the change is ambiguous."""
    place, _, example = change.example.partition(": ")
    found = [copy.deepcopy(objects)]
    for part in change.text.split("; and "):
        found = [after for before in found for after in _apply_part(before, part, place, example)]
    return found


def _apply_part(objects: list[JSON], change_text: str, place: str, example: str) -> Iterator[list[JSON]]:
    """Yields the objects after one change. It yields several lists if the text of the change is ambiguous."""
    if change_text == FREEING:
        removed = re.findall(r"claim default/(\S+)", example)
        yield [o for o in objects if o["metadata"]["name"] not in removed]
    elif m := re.fullmatch(r"ask for (\d) instead of \d in request (r\d)", change_text):
        yield from _with_count(objects, m[2], int(m[1]))
    else:
        if m := re.match(r"the request has to tolerate (\w):NoSchedule, or the driver", change_text):
            # The toleration also admits devices of other nodes, with which the mode All can fail a constraint, an error for all nodes.
            untainted = copy.deepcopy(objects)
            for spec in (
                o["spec"] for o in untainted if o["kind"] == "ResourceSlice" and o["spec"].get("nodeName") == place
            ):
                for device in spec.get("devices") or []:
                    device["taints"] = [t for t in device.get("taints") or [] if t["key"] != m[1]]
            yield untainted
        if not _change_requests(objects, change_text) and not _change_pod(objects, change_text):
            _change_cluster(objects, change_text, place)
        yield objects


def _change_requests(objects: list[JSON], change_text: str) -> bool:
    requests = [r for c in _claims(objects) for r in c["spec"]["devices"]["requests"]]
    device_requests = [one for r in requests for one in r.get("firstAvailable") or [r["exactly"]]]
    if m := re.match(r"the request has to tolerate (\w):NoSchedule", change_text):
        for one in device_requests:
            one.setdefault("tolerations", []).append({"key": m[1], "operator": "Exists"})
    elif m := re.fullmatch(r"a selector without (.*), or devices that match", change_text):
        for one in device_requests:
            for s in one.get("selectors") or []:
                s["cel"]["expression"] = without(s["cel"]["expression"], m[1])
    elif m := re.fullmatch(r"ask for (?:no|at most (?P<most>\S+) of) (?P<name>\w+)", change_text):
        for one in device_requests:
            amounts = one.setdefault("capacity", {"requests": {}})["requests"]
            if not m["most"]:
                amounts.pop(m["name"], None)
            elif m["name"] not in amounts or parse(amounts[m["name"]]) > parse(m["most"]):
                amounts[m["name"]] = m["most"]
    elif m := re.fullmatch(r"remove the constraint (\w+) (\S+) from claim (\S+)", change_text):
        for devices in (c["spec"]["devices"] for c in _claims(objects) if c["metadata"]["name"] == m[3]):
            devices["constraints"] = [k for k in devices["constraints"] if k.get(m[1]) != m[2]]
    else:
        return False
    return True


def _change_pod(objects: list[JSON], change_text: str) -> bool:
    spec = objects[-1]["spec"]
    requests = spec["containers"][0]["resources"]["requests"]
    if m := re.fullmatch(r"ask for (\d) instead of \d of (\S+) in container \w+", change_text):
        requests[m[2]] = m[1]
    elif m := re.match(r"the pod has to tolerate (\S+):No\w+, or the taint", change_text):
        spec["tolerations"] = [{"key": m[1], "operator": "Exists"}]
    elif change_text == "other affinity terms, or other pods on the node":
        del spec["affinity"]
    elif change_text.startswith("another nodeSelector"):
        del spec["nodeSelector"]
    elif change_text.startswith("less cpu"):
        requests["cpu"] = "0"
    else:
        return False
    return True


def _change_cluster(objects: list[JSON], change_text: str, place: str) -> None:
    if change_text == "make the node schedulable again":  # the node controller removes the taint too
        node_object = next(o for o in objects if o["kind"] == "Node" and o["metadata"]["name"] == place)
        node_object["spec"] |= {
            "unschedulable": False,
            "taints": [t for t in node_object["spec"]["taints"] if t["key"] == "k"],
        }
    elif m := re.fullmatch(r"the driver has to remove the taint (\w):NoSchedule", change_text):
        for device in (d for o in objects if o["kind"] == "ResourceSlice" for d in o["spec"].get("devices") or []):
            device["taints"] = [t for t in device.get("taints") or [] if t["key"] != m[1]]
    elif m := re.fullmatch(r"delete DeviceTaintRule (\S+)", change_text):
        objects[:] = [o for o in objects if o["metadata"]["name"] != m[1]]
    elif change_text == "delete pods":
        objects[:] = [o for o in objects if o["kind"] != "Pod" or o["metadata"]["name"] == "p"]
    else:
        raise AssertionError(f"the test does not know how to make this change: {change_text}")


def _with_count(objects: list[JSON], name: str, count: int) -> Iterator[list[JSON]]:
    """The change may refer to the request of either claim."""
    for number in range(len(_claims(objects))):
        other = copy.deepcopy(objects)
        for request in _claims(other)[number]["spec"]["devices"]["requests"]:
            if request["name"] == name and "exactly" in request:
                request["exactly"]["count"] = count
        yield other


def _claims(objects: list[JSON]) -> list[JSON]:
    return [o for o in objects if o["kind"] == "ResourceClaim" and o["metadata"]["name"] in {"c0", "c1"}]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
@example(506)  # a request for an extended resource competes for the tainted device and cannot tolerate the taint
@example(1311506)  # a toleration admits devices of another node, with which the scheduler ends with an error
@example(177108)  # tolerations of two taints are not enough, but the removal of both taints is
def test_each_change_alone_makes_the_pod_fit_its_node(seed: int) -> None:
    objects = cluster(Random(seed))
    found = explain(Snapshot.of(objects), "p")
    assert not (found.reasons and found.changes), (
        "a pod that waits for a gate or another scheduler is not helped by a node"
    )
    for change in found.changes:
        place = change.example.partition(":")[0]
        assert any(_fits(others, place) for others in apply_change(objects, change)), change


def _fits(objects: list[JSON], place: str) -> bool:
    """Returns whether explain and simulate both place the pod, and whether explain lists the node."""
    *others, waiting_pod = objects
    found = explain(Snapshot.of(objects), "p")
    return place in found.nodes and simulate(Snapshot.of(others), [waiting_pod]).fits


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_command_of_a_change_is_a_complete_command_line(seed: int) -> None:
    objects = cluster(Random(seed))
    found = explain(Snapshot.of(objects), "p")
    nodes = "|".join(o["metadata"]["name"] for o in objects if o["kind"] == "Node")
    lines = [line.strip() for line in text(found, Style(coloured=False)) if "kubectl" in line]
    for line in lines:
        assert re.fullmatch(
            rf"kubectl (uncordon ({nodes})|taint node ({nodes}) (k:NoSchedule|{AWAY}:NoExecute)-)", line
        ), line
    assert {c.command for c in found.changes if c.command} <= set(lines)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_explain_and_simulate_agree_and_each_unsuitable_node_has_a_reason(seed: int) -> None:
    *objects, waiting_pod = cluster(Random(seed))
    found = explain(Snapshot.of([*objects, waiting_pod]), "p")
    placed = simulate(Snapshot.of(objects), [waiting_pod])
    if found.unevaluated:
        assert not placed.known
    elif not found.reasons:  # simulate ignores scheduling gates and the scheduler's name
        assert placed.fits == (found.state is ExplanationState.FITS)
        assert {p.node for w in placed.workloads for p in w.placed} <= set(found.nodes)
    for group in found.groups:
        assert group.fits or group.reasons or any(q.reasons for q in group.requests) or found.reasons


def test_a_change_names_all_claims_that_must_be_deleted() -> None:
    gpus = [{"name": name} for name in ("g0", "g1")]
    objects = [
        CLASS,
        node("a"),
        pool("a", *gpus),
        allocated_claim("h", "a", "g0"),
        allocated_claim("i", "a", "g1"),
        claim(count=2),
        pod("c"),
    ]
    (change,) = explain(Snapshot.of(objects), "p").changes
    assert change.example == "a: claim default/h of pod default/holder and claim default/i of pod default/holder"


def test_explain_does_not_suggest_deletion_of_the_pods_own_claim() -> None:
    own_claim = allocated_claim("own", "a", "g0", users=("p",))
    found = explain(
        Snapshot.of([CLASS, node("a"), pool("a", {"name": "g0"}), own_claim, claim(), pod("own", "c")]), "p"
    )
    assert found.state is ExplanationState.WAITS
    assert not found.changes


def test_deletion_of_a_claim_frees_its_device_and_its_counters() -> None:
    partition = {"name": "g0", "consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": "1"}}}]}
    counters = pool("a", count=2, suffix="-counters")
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "s", "counters": {"m": {"value": "1"}}}]
    objects = [
        CLASS,
        node("a"),
        pool("a", partition, count=2),
        counters,
        allocated_claim("h", "a", "g0"),
        claim(),
        pod("c"),
    ]
    (change,) = explain(Snapshot.of(objects), "p").changes
    assert change.example == "a: claim default/h of pod default/holder"


def test_the_only_change_for_a_cordoned_node_is_uncordon() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cordoned = node("a", unschedulable=True, taints=[taint])
    found = explain(Snapshot.of([CLASS, cordoned, pool("a", {"name": "g0"}), claim(), pod("c")]), "p")
    assert [c.text for c in found.changes] == ["make the node schedulable again"]


def test_explain_does_not_suggest_deletion_of_pods_on_a_node_that_is_too_small() -> None:
    waiting_pod = pod("c", resources={"requests": {"cpu": "4000"}})
    found = explain(Snapshot.of([CLASS, node("a"), pool("a", {"name": "g0"}), claim(), waiting_pod]), "p")
    assert [c.text for c in found.changes] == ["less cpu"]


def test_explain_reports_a_pod_on_a_deleted_node_as_waiting() -> None:
    lost = pod("c", nodeName="gone", status={"phase": "Running"})
    found = explain(Snapshot.of([CLASS, node("a"), claim(), lost]), "p")
    assert found.state is ExplanationState.WAITS
    assert "does not exist" in found.summary


def test_explain_does_not_suggest_less_cpu_if_an_incomplete_pool_then_fails_the_request() -> None:
    """A request for all devices fails at an incomplete pool. Without enough CPU the scheduler does not reach this pool."""
    waiting_pod = pod("c", resources={"requests": {"cpu": "9"}})
    objects = [CLASS, node("a"), pool("a", {"name": "g0"}), claim(allocationMode="All"), waiting_pod]
    assert [c.text for c in explain(Snapshot.of(objects), "p").changes] == ["less cpu"]
    incomplete = [node("b"), pool("b", {"name": "g0"}, count=2)]
    assert not explain(Snapshot.of([*incomplete, *objects]), "p").changes


def test_the_summary_counts_the_cpu_of_a_pod_that_is_nominated_to_the_node() -> None:
    rival = pod(name="rival", status={"nominatedNodeName": "a"}, resources={"requests": {"cpu": "5"}})
    waiting_pod = pod("c", resources={"requests": {"cpu": "4"}})
    found = explain(Snapshot.of([CLASS, node("a"), pool("a", {"name": "g0"}), claim(), rival, waiting_pod]), "p")
    assert found.summary == (
        "the node has too little cpu, counting pod default/rival, which the scheduler has nominated to it, on the only node"
    )


def test_explain_tries_several_shares_of_one_device_as_the_scheduler_does() -> None:
    def snapshot_with_claims(memory: str, **more: Any) -> Snapshot:
        shared = {"name": "g0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
        device = {**shared, "taints": [{"key": "t", "effect": "NoSchedule"}]}
        requests = {"capacity": {"requests": {"memory": memory}}}
        claims = claim("c0", **requests), claim("c1", **requests, **more)
        return Snapshot.of([CLASS, node("a"), pool("a", device), *claims, pod("c0", "c1")])

    change = "the request has to tolerate t:NoSchedule, or the driver has to remove the taint"
    assert [c.text for c in explain(snapshot_with_claims("40Gi"), "p").changes] == [change]
    assert not explain(snapshot_with_claims("41Gi"), "p").changes
    assert not explain(snapshot_with_claims("41Gi", adminAccess=True), "p").changes


def test_a_rule_with_the_selector_of_an_old_alpha_version_taints_nothing() -> None:
    """The rule selects by class or CEL, which the analysis does not evaluate. Other devices must not look tainted."""
    spec = {"deviceSelector": {"deviceClassName": "gpu"}, "taint": {"key": "k", "effect": "NoSchedule"}}
    rule = {**dra("DeviceTaintRule", "old", spec), "apiVersion": "resource.k8s.io/v1alpha3"}
    snapshot = Snapshot.of([pool("a", {"name": "g0"}), rule])
    assert snapshot.tainted_slices[0]["spec"]["devices"] == [{"name": "g0"}]
    assert [str(u) for u in snapshot.unread] == [
        "DeviceTaintRule old cannot be read, and is left out: ValueError: deviceClassName of its deviceSelector is not known"
    ]
    assert taints_of([rule], DRIVER, "a", "g0") == []  # as an API server sends the rule
