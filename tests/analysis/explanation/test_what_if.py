"""What ``explain`` says would be enough is enough: on random clusters the change is made, and the pod asked for again."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.analysis import ExplanationState, Snapshot, SuggestedChange, explain, simulate
from dra_kubeletplugin.scheduling.cel.parts import without
from tests.analysis.explanation.test_explain import CLASS, DRIVER, JSON, claim, dra, held, node, pod, pool

ATTRIBUTES = f'device.attributes["{DRIVER}"]'
PARTS = [
    f"{ATTRIBUTES}.numa == 0",
    f'{ATTRIBUTES}.model == "x"',
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
]


def cluster(r: Random) -> list[JSON]:
    """Up to three nodes with devices of all sorts, some of them held, and the pod p with the claims c0 and c1."""
    objects: list[JSON] = [CLASS]
    for name in ("a", "b", "c")[: r.randint(1, 3)]:
        cordoned = r.random() < 0.2
        taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if cordoned else []
        taints += [{"key": "k", "effect": "NoSchedule"}] if r.random() < 0.2 else []
        objects.append(node(name, labels={"zone": r.choice("xy")}, unschedulable=cordoned, taints=taints))
        objects += _devices(r, name)
    claims = ["c0", "c1"][: r.randint(1, 2)]
    objects += [dra("ResourceClaim", name, {"devices": _wanted(r)}) for name in claims]
    zone = {"nodeSelector": {"zone": "x"}} if r.random() < 0.2 else {}
    return [*objects, pod(*claims, resources={"requests": {"cpu": r.choice(["1", "1", "9"])}}, **zone)]


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
    yield pool(name, *devices, count=1 + counted)
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
            yield held(f"h-{name}-{number}", name, device["name"], **share)


def _wanted(r: Random) -> JSON:
    requests: list[JSON] = []
    for k in range(r.randint(1, 2)):
        one = {"name": f"r{k}", "exactly": _one(r)}
        requests.append(one if r.random() < 0.8 else {"name": f"r{k}", "firstAvailable": [{"name": "s", **_one(r)}]})
    constraints = [{"matchAttribute": f"{DRIVER}/{r.choice(['numa', 'model'])}"}] if r.random() < 0.35 else []
    return {"requests": requests, "constraints": constraints}


def _one(r: Random) -> JSON:
    out: JSON = {"deviceClassName": "gpu"}
    if r.random() < 0.5:
        out["selectors"] = [{"cel": {"expression": " && ".join(r.sample(PARTS, r.randint(1, 2)))}}]
    if r.random() < 0.4:
        out |= r.choice([{"count": 2}, {"count": 3}, {"allocationMode": "All"}])
    if r.random() < 0.4:
        asked = {"memory": r.choice(["10Gi", "40Gi", "100Gi"]), "cores": r.choice(["5", "15"])}
        out["capacity"] = {"requests": asked}
    return out


def changed(objects: list[JSON], change: SuggestedChange) -> list[list[JSON]]:
    """The objects as someone would leave them who reads a change; several where its words leave a choice."""
    place, _, example = change.example.partition(": ")
    found = [copy.deepcopy(objects)]
    for text in change.text.split("; and "):
        found = [after for before in found for after in _changed(before, text, place, example)]
    return found


def _changed(objects: list[JSON], text: str, place: str, example: str) -> Iterator[list[JSON]]:
    asked = [
        r.get("exactly") or r["firstAvailable"][0] for c in _claims(objects) for r in c["spec"]["devices"]["requests"]
    ]
    if text == "claims that hold such devices must be deleted":
        gone = re.findall(r"claim default/(\S+)", example)
        yield [o for o in objects if o["metadata"]["name"] not in gone]
        return
    if m := re.fullmatch(r"ask for (\d) in request (r\d) in place of \d", text):
        yield from _with_count(objects, m[2], int(m[1]))
        return
    elif m := re.match(r"the request has to tolerate (\w):NoSchedule", text):
        for one in asked:
            one.setdefault("tolerations", []).append({"key": m[1], "operator": "Exists"})
    elif m := re.fullmatch(r"a selector without (.*), or devices that match", text):
        for one in asked:
            for s in one.get("selectors") or []:
                s["cel"]["expression"] = without(s["cel"]["expression"], m[1])
    elif m := re.fullmatch(r"ask for (?:no|at most (?P<most>\S+) of) (?P<name>\w+)", text):
        for one in asked:
            amounts = one.setdefault("capacity", {"requests": {}})["requests"]
            amounts.pop(m["name"], None)
            amounts |= {m["name"]: m["most"]} if m["most"] else {}
    else:
        _change_whole(objects, text, place)
    yield objects


def _change_whole(objects: list[JSON], text: str, place: str) -> None:
    spec = objects[-1]["spec"]
    if text.startswith("kubectl uncordon"):  # and the node controller takes the taint away
        at = next(o for o in objects if o["kind"] == "Node" and o["metadata"]["name"] == place)
        at["spec"] |= {"unschedulable": False, "taints": [t for t in at["spec"]["taints"] if t["key"] == "k"]}
    elif text.startswith("the pod has to tolerate k:NoSchedule"):
        spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
    elif text.startswith("another nodeSelector"):
        del spec["nodeSelector"]
    elif text.startswith("without this constraint of claim "):
        for c in _claims(objects):
            if f"of claim {c['metadata']['name']} " in text:
                c["spec"]["devices"]["constraints"] = []
    elif text == "less cpu":
        spec["containers"][0]["resources"] = {}
    else:
        raise AssertionError(f"nobody knows how to do this: {text}")


def _with_count(objects: list[JSON], name: str, count: int) -> Iterator[list[JSON]]:
    """The request of either claim may be meant."""
    for number in range(len(_claims(objects))):
        other = copy.deepcopy(objects)
        for request in _claims(other)[number]["spec"]["devices"]["requests"]:
            if request["name"] == name and "exactly" in request:
                request["exactly"]["count"] = count
        yield other


def _claims(objects: list[JSON]) -> list[JSON]:
    return [o for o in objects if o["kind"] == "ResourceClaim" and o["metadata"]["name"] in {"c0", "c1"}]


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_each_change_alone_lets_its_node_take_the_pod(r: Random) -> None:
    objects = cluster(r)
    for change in explain(Snapshot.of(objects), "p").changes:
        place = change.example.partition(":")[0]
        after = [explain(Snapshot.of(others), "p") for others in changed(objects, change)]
        assert any(place in found.nodes for found in after), change


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_explain_and_simulate_state_of_a_pod_agrees_and_a_node_that_refuses_it_reports_why(r: Random) -> None:
    *objects, asking = cluster(r)
    found = explain(Snapshot.of([*objects, asking]), "p")
    placed = simulate(Snapshot.of(objects), [asking])
    assert placed.fits == (found.state is ExplanationState.FITS)
    assert {p.node for w in placed.workloads for p in w.placed} <= set(found.nodes)
    for group in found.groups:
        assert group.fits or group.reasons or any(q.reasons for q in group.requests) or found.reasons


def test_of_several_claims_all_are_named_that_have_to_go() -> None:
    gpus = [{"name": name} for name in ("g0", "g1")]
    objects = [CLASS, node("a"), pool("a", *gpus), held("h", "a", "g0"), held("i", "a", "g1"), claim(count=2), pod("c")]
    (change,) = explain(Snapshot.of(objects), "p").changes
    assert change.example == "a: claim default/h of pod default/holder and claim default/i of pod default/holder"


def test_a_claim_that_the_pod_has_itself_makes_no_room_for_it() -> None:
    mine = held("own", "a", "g0", users=("p",))
    found = explain(Snapshot.of([CLASS, node("a"), pool("a", {"name": "g0"}), mine, claim(), pod("own", "c")]), "p")
    assert found.state is ExplanationState.WAITS
    assert not found.changes


def test_a_device_that_is_held_and_has_no_counters_left_is_had_when_its_claim_goes() -> None:
    part = {"name": "g0", "consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": "1"}}}]}
    counters = pool("a", count=2, suffix="-counters")
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "s", "counters": {"m": {"value": "1"}}}]
    objects = [CLASS, node("a"), pool("a", part, count=2), counters, held("h", "a", "g0"), claim(), pod("c")]
    (change,) = explain(Snapshot.of(objects), "p").changes
    assert change.example == "a: claim default/h of pod default/holder"


def test_a_node_that_is_cordoned_has_to_be_uncordoned_and_nothing_else() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cordoned = node("a", unschedulable=True, taints=[taint])
    found = explain(Snapshot.of([CLASS, cordoned, pool("a", {"name": "g0"}), claim(), pod("c")]), "p")
    assert [c.text for c in found.changes] == ["kubectl uncordon NODE"]


def test_a_node_that_is_too_small_is_not_helped_by_pods_that_go() -> None:
    asking = pod("c", resources={"requests": {"cpu": "4000"}})
    found = explain(Snapshot.of([CLASS, node("a"), pool("a", {"name": "g0"}), claim(), asking]), "p")
    assert [c.text for c in found.changes] == ["less cpu"]


def test_more_devices_than_a_node_has_are_reported_to_be_so_whoever_holds_them() -> None:
    objects = [CLASS, node("a"), pool("a", {"name": "g0"}), held("h", "a", "g0"), claim(count=2), pod("c")]
    found = explain(Snapshot.of(objects), "p")
    assert "the node has fewer than 2 devices for request r" in found.summary


def test_of_a_pod_whose_node_is_gone_nobody_reports_that_it_runs() -> None:
    lost = pod("c", nodeName="gone", status={"phase": "Running"})
    found = explain(Snapshot.of([CLASS, node("a"), claim(), lost]), "p")
    assert found.state is ExplanationState.WAITS
    assert "does not exist" in found.summary
