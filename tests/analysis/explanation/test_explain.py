"""``explain`` on plain objects: each thing that can stand in a pod's way is named, with what would have to change."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from dra_kubeletplugin.analysis import Explanation, ExplanationState, Gap, ReasonKind, Snapshot, explain, waiting
from dra_kubeletplugin.analysis.explanation import node_feasibility
from dra_kubeletplugin.cli.explain_text import text
from dra_kubeletplugin.cli.shell.style import Style
from dra_kubeletplugin.errors import QuestionError

JSON = dict[str, Any]
DRIVER = "gpu.example.com"
MEMORY = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'


def node(name: str, **more: Any) -> JSON:
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}
    labels = {"kubernetes.io/hostname": name} | more.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": more,
        "status": status,
    }


def gpu(name: str, memory: str = "80Gi", **more: Any) -> JSON:
    return {"name": name, "attributes": {"numa": {"int": 0}}, "capacity": {"memory": {"value": memory}}} | more


def pool(name: str, *devices: JSON, generation: int = 1, count: int = 1, suffix: str = "", **more: Any) -> JSON:
    spec = {"driver": DRIVER, "nodeName": name, "devices": list(devices)}
    spec |= {"pool": {"name": name, "generation": generation, "resourceSliceCount": count}} | more
    return dra("ResourceSlice", f"{name}-slice{suffix}", spec)


def dra(kind: str, name: str, spec: JSON, **more: Any) -> JSON:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec, **more}


CLASS = dra("DeviceClass", "gpu", {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]})


def claim(name: str = "c", constraints: list[JSON] | None = None, **exactly: Any) -> JSON:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", **exactly}}
    return dra("ResourceClaim", name, {"devices": {"requests": [request], "constraints": constraints or []}})


def held(name: str, node_name: str, *devices: str, users: tuple[str, ...] = ("holder",), **result: Any) -> JSON:
    results = [{"request": "r", "driver": DRIVER, "pool": node_name, "device": d, **result} for d in devices]
    where = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}]
    }
    allocation = {"devices": {"results": results}, "nodeSelector": where, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    reserved = [{"resource": "pods", "name": u, "uid": u} for u in users]
    return claim(name) | {"status": {"allocation": allocation, "reservedFor": reserved}}


def failed_binding(why: str) -> JSON:
    """A claim that its scheduler gives back next."""
    out = held(
        "c", "a", "g0", users=("pods/default/p",), bindingConditions=["Attached"], bindingFailureConditions=["Off"]
    )
    condition = {"type": "Off", "status": "True", "reason": "BindingFailed", "message": why}
    out["status"]["devices"] = [{"driver": DRIVER, "pool": "a", "device": "g0", "conditions": [condition]}]
    return out


def pod(*claims: str, name: str = "p", **spec: Any) -> JSON:
    entries = [{"name": f"e{i}", "resourceClaimName": c} for i, c in enumerate(claims)]
    container = {"name": "main", "resources": spec.pop("resources", {})}
    status = spec.pop("status", {"phase": "Pending"})
    spec |= {"containers": [container], "resourceClaims": entries}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status}


def asked(*objects: JSON, gaps: tuple[Gap, ...] = (), what: str = "p") -> Explanation:
    return explain(Snapshot.of([CLASS, *objects], gaps=gaps), what)


SELECTS = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}" && {MEMORY}'}}]}
UNHEALTHY = {"key": "gpu.example.com/unhealthy", "effect": "NoSchedule"}
COUNTERS = {"sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]}


def part(name: str, amount: str) -> JSON:
    return gpu(name, consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": amount}}}])


def shared(name: str) -> JSON:
    return gpu(name, allowMultipleAllocations=True)


ATTRIBUTES = f'device.attributes["{DRIVER}"]'
LABELLED = {"numa": {"int": 1}}
OF_THE_POD = {
    ReasonKind.CLASS_MISSING, ReasonKind.CLAIM_MISSING, ReasonKind.TEMPLATE_MISSING, ReasonKind.ADMIN_LABEL, ReasonKind.CLAIM_ON_OTHER_NODE, ReasonKind.RESERVATION,
    ReasonKind.BINDING, ReasonKind.TOO_MANY, ReasonKind.GATED, ReasonKind.SCHEDULER_NAME, ReasonKind.NODE_GIVEN, ReasonKind.EXTENDED, ReasonKind.SELECTOR_ERROR,
}  # fmt: skip
# What is in the way: the objects, its kind, words of its text or examples, words of what would have to change.
OBSTACLES: Mapping[str, tuple[list[JSON], ReasonKind, str, str]] = {
    "the false part of a selector, with the value": (
        [node("a"), pool("a", gpu("g0", "16Gi")), claim(**SELECTS), pod("c")],
        ReasonKind.SELECTOR,
        f"its selector is false: {MEMORY} (a/g0: memory is 16Gi)",
        f"a selector without {MEMORY}",
    ),
    "a class that selects nothing": (
        [node("a"), pool("a", gpu("g0"), driver="net.example.com"), claim(), pod("c")],
        ReasonKind.CLASS_SELECTOR,
        'driver is "net.example.com"',
        "class gpu",
    ),
    "no slice at all": ([node("a"), claim(), pod("c")], ReasonKind.NO_DEVICES, "no device is published", "a driver"),
    "fewer devices than asked for": (
        [node("a"), pool("a", gpu("g0")), claim(count=2), pod("c")],
        ReasonKind.TOO_FEW,
        "each node has at most 1 usable",
        "ask for 1 instead of 2 in request r",
    ),
    "a claim of another pod": (
        [node("a"), pool("a", gpu("g0")), held("h", "a", "g0"), claim(), pod("c")],
        ReasonKind.HELD,
        "claim default/h of pod default/holder",
        "delete the pods of these claims, or a claim that no pod uses (on a: claim default/h of pod default/holder)",
    ),
    "a claim that nobody uses": (
        [node("a"), pool("a", gpu("g0")), held("h", "a", "g0", users=()), claim(), pod("c")],
        ReasonKind.HELD,
        "claim default/h that no pod uses",
        "or a claim that no pod uses (on a: claim default/h that no pod uses)",
    ),
    "a taint": (
        [node("a"), pool("a", gpu("g0", taints=[UNHEALTHY])), claim(), pod("c")],
        ReasonKind.DEVICE_TAINT,
        "the taint gpu.example.com/unhealthy:NoSchedule is not tolerated",
        "tolerate gpu.example.com/unhealthy:NoSchedule",
    ),
    "a counter": (
        [
            node("a"),
            pool("a", part("half", "40Gi"), part("whole", "80Gi"), count=2),
            dra(
                "ResourceSlice",
                "counters",
                {
                    "driver": DRIVER,
                    "pool": {"name": "a", "generation": 1, "resourceSliceCount": 2},
                    "nodeName": "a",
                    **COUNTERS,
                },
            ),
            held("h", "a", "half"),
            claim(selectors=[{"cel": {"expression": "true"}}]),
            pod("c"),
        ],
        ReasonKind.COUNTERS,
        "it needs 80Gi memory (40Gi left) of counter set gpu-0; claim default/h of pod default/holder",
        "delete the pods of these claims, or a claim that no pod uses (on a: claim default/h of pod default/holder)",
    ),
    "capacity of a device that is too small": (
        [node("a"), pool("a", gpu("g0", "16Gi")), claim(capacity={"requests": {"memory": "40Gi"}}), pod("c")],
        ReasonKind.CAPACITY,
        "its memory is less than 40Gi (a/g0: it has 16Gi)",
        "ask for at most 16Gi of memory (on a)",
    ),
    "capacity that others took": (
        [
            node("a"),
            pool("a", shared("g0")),
            held("h", "a", "g0", shareID="s", consumedCapacity={"memory": "60Gi"}),
            claim(capacity={"requests": {"memory": "40Gi"}}),
            pod("c"),
        ],
        ReasonKind.CAPACITY,
        "20Gi of 80Gi left; claim default/h of pod default/holder",
        "ask for at most 20Gi of memory (on a)",
    ),
    "a constraint": (
        [
            node("a"),
            pool("a", gpu("g0"), gpu("g1", attributes=LABELLED)),
            claim(count=2, constraints=[{"matchAttribute": f"{DRIVER}/numa"}]),
            pod("c"),
        ],
        ReasonKind.CONSTRAINT,
        f"no choice of devices satisfies matchAttribute {DRIVER}/numa",
        f"remove the constraint matchAttribute {DRIVER}/numa from claim c (on a)",
    ),
    "two claims for one device": (
        [node("a"), pool("a", gpu("g0")), claim(), claim("d"), pod("c", "d")],
        ReasonKind.COMPETITION,
        "not for all of them together",
        "",
    ),
    "a pool that is not all there": (
        [node("a"), pool("a", gpu("g0"), generation=3, count=2), claim(), pod("c")],
        ReasonKind.POOL_INCOMPLETE,
        f"pool {DRIVER}/a, generation 3: 1 of 2 slices",
        "",
    ),
    "a pool that contradicts itself": (
        [node("a"), pool("a", gpu("g0"), gpu("g0")), claim(), pod("c")],
        ReasonKind.POOL_INVALID,
        "duplicate device name g0",
        "",
    ),
    "a selector that fails": (
        [
            node("a"),
            pool("a", gpu("g0")),
            claim(selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].uuid == "x"'}}]),
            pod("c"),
        ],
        ReasonKind.SELECTOR_ERROR,
        "no such key: uuid",
        f'a selector that checks first: "uuid" in device.attributes["{DRIVER}"] && ...',
    ),
    "a class that is not there": (
        [node("a"), claim(deviceClassName="gpus"), pod("c")],
        ReasonKind.CLASS_MISSING,
        "DeviceClass gpus does not exist",
        "similar name: gpu",
    ),
    "a claim that is not there": (
        [node("a"), claim("cc"), pod("c")],
        ReasonKind.CLAIM_MISSING,
        "claim default/c does not exist",
        "similar name: cc",
    ),
    "a template that is not there": (
        [
            node("a"),
            pod()
            | {
                "spec": {
                    "containers": [{"name": "x"}],
                    "resourceClaims": [{"name": "e", "resourceClaimTemplateName": "t"}],
                }
            },
        ],
        ReasonKind.TEMPLATE_MISSING,
        "ResourceClaimTemplate default/t does not exist",
        "make ResourceClaimTemplate t in namespace default",
    ),
    "a namespace without the label for admin access": (
        [
            node("a"),
            pool("a", gpu("g0")),
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}},
            claim(adminAccess=True),
            pod("c"),
        ],
        ReasonKind.ADMIN_LABEL,
        "does not have the label resource.kubernetes.io/admin-access=true",
        "kubectl label namespace default",
    ),
    "a claim that is allocated elsewhere": (
        [node("a"), node("b", unschedulable=True), held("c", "b", "g0"), pod("c")],
        ReasonKind.CLAIM_ON_OTHER_NODE,
        "allocated for other nodes, and pod default/holder uses it there",
        "",
    ),
    "a claim with all the users that it may have": (
        [node("a"), held("c", "a", "g0", users=tuple(f"u{i}" for i in range(256))), pod("c")],
        ReasonKind.RESERVATION,
        "reserved for 256 pods",
        "one of these pods has to end",
    ),
    "binding conditions": (
        [node("a"), held("c", "a", "g0", users=("pods/default/p",), bindingConditions=["Attached"]), pod("c")],
        ReasonKind.BINDING,
        f"waits for binding conditions: Attached of {DRIVER}/a/g0",
        f"the controller of {DRIVER}",
    ),
    "a binding that failed": (
        [node("a"), failed_binding("the switch is off"), pod("c")],
        ReasonKind.BINDING,
        'device binding failed: claim=c, reason=BindingFailed, message="the switch is off"',
        f"see the log of the controller of {DRIVER}; the scheduler releases the devices and tries again",
    ),
    "more devices than a claim gets": (
        [node("a"), claim(count=33), pod("c")],
        ReasonKind.TOO_MANY,
        "asks for 33 devices",
        "use several claims",
    ),
    "a scheduling gate": (
        [node("a"), pool("a", gpu("g0")), claim(), pod("c", schedulingGates=[{"name": "x/y"}])],
        ReasonKind.GATED,
        "x/y",
        "the component that set them must remove them",
    ),
    "a scheduler that nobody is": (
        [node("a"), pool("a", gpu("g0")), claim(), pod("c", schedulerName="mine")],
        ReasonKind.SCHEDULER_NAME,
        "the scheduler mine",
        "start a scheduler named mine",
    ),
    "a node that was given": (
        [node("a"), claim(), pod("c", nodeName="a")],
        ReasonKind.NODE_GIVEN,
        "never allocated",
        "without nodeName",
    ),
    "a cordoned node": (
        [node("a", unschedulable=True), pool("a", gpu("g0")), claim(), pod("c")],
        ReasonKind.CORDONED,
        "the node is unschedulable, on the only node",
        "make the node schedulable again (on a): kubectl uncordon a",
    ),
    "a node's taint": (
        [
            node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
            pool("a", gpu("g0")),
            claim(),
            pod("c"),
        ],
        ReasonKind.NODE_TAINT,
        "the taint k=v:NoSchedule",
        "(on a): kubectl taint node a k=v:NoSchedule-",
    ),
    "a node selector": (
        [node("a", labels={"disk": "hdd"}), pool("a", gpu("g0")), claim(), pod("c", nodeSelector={"disk": "ssd"})],
        ReasonKind.NODE_AFFINITY,
        "nodeSelector disk=ssd is not met (a: it is hdd)",
        "",
    ),
    "a node's resources": (
        [node("a"), pool("a", gpu("g0")), claim(), pod("c", resources={"requests": {"cpu": "9"}})],
        ReasonKind.RESOURCES,
        "too little cpu (a: 9 wanted, 8 of 8 free)",
        "less cpu",
    ),
    "an extended resource that no class provides": (
        [node("a"), pod(resources={"limits": {"example.com/gpu": "1"}})],
        ReasonKind.EXTENDED,
        "the node has no example.com/gpu",
        "extendedResourceName example.com/gpu",
    ),
    "no node at all": ([claim(), pod("c")], ReasonKind.NO_NODES, "no nodes", ""),
}


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in OBSTACLES.items()])
def test_what_stands_in_the_way_is_named_with_what_would_help(case: tuple[list[JSON], ReasonKind, str, str]) -> None:
    objects, kind, said, change = case
    found = asked(*objects)
    shown = " ".join(" ".join(text(found, Style(coloured=False))).split())
    assert found.state is ExplanationState.WAITS, shown
    assert kind in found.kinds, shown
    assert said in shown
    assert change in shown


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=name) for name, c in OBSTACLES.items() if c[1] not in {ReasonKind.NO_NODES}]
)
def test_with_a_node_that_has_everything_only_what_concerns_the_pod_is_left(
    case: tuple[list[JSON], ReasonKind, str, str],
) -> None:
    plenty = pool("z", *(gpu(f"z{i}") for i in range(4)))
    nodes = [*case[0], node("z", labels={"disk": "ssd"}), plenty]
    if case[1] is ReasonKind.RESOURCES:
        nodes[-2]["status"]["allocatable"]["cpu"] = "64"
    found = asked(*nodes)
    if case[1] in OF_THE_POD:
        assert found.state is ExplanationState.WAITS
        assert case[1] in found.kinds
    else:
        assert (found.state, found.nodes) == (ExplanationState.FITS, ("z",))


def test_nodes_that_state_the_same_are_one_group_whoever_holds_their_devices() -> None:
    nodes = [x for i in range(300) for x in (node(f"n{i}"), pool(f"n{i}", gpu("g0")), held(f"h{i}", f"n{i}", "g0"))]
    found = asked(*nodes, claim(), pod("c"))
    assert [len(g.nodes) for g in found.groups] == [300]
    [reason] = found.groups[0].requests[0].reasons
    assert (reason.devices, len(reason.examples)) == (300, 3)
    assert len(text(found, Style(coloured=False))) < 25


def test_a_change_is_reported_for_the_nodes_where_it_was_tried_with_success_alone() -> None:
    """On b the taint is not the only thing."""
    tainted = gpu("g0", taints=[UNHEALTHY])
    found = asked(node("a"), node("b"), pool("a", tainted), pool("b", tainted), held("h", "b", "g0"), claim(), pod("c"))
    assert [(c.nodes, c.example) for c in found.changes if "tolerate" in c.text] == [(1, "a")]


@pytest.mark.parametrize(
    ("expression", "change"),
    [
        (
            f'device.capacity["{DRIVER}"].hbm.isGreaterThan(quantity("1"))',
            f'"hbm" in device.capacity["{DRIVER}"] && ...',
        ),
        ('device.attributes["a.b"]["n"] == 1 || false', '"n" in device.attributes["a.b"] && ...'),
        (f"has({ATTRIBUTES}.q) || {ATTRIBUTES}.n == 1", f'"n" in {ATTRIBUTES} && ...'),
        (f"{ATTRIBUTES}.numa > 'a'", "a selector that can be evaluated for every device"),
    ],
)
def test_a_selector_that_fails_is_to_request_what_the_device_has_not(expression: str, change: str) -> None:
    selectors = [{"cel": {"expression": expression}}]
    found = asked(node("a"), pool("a", gpu("g0")), claim(selectors=selectors), pod("c"))
    [reason] = found.reasons
    assert reason.kind is ReasonKind.SELECTOR_ERROR and change in reason.change


def test_a_pod_that_runs_reports_which_devices_it_has_and_where_from() -> None:
    running = pod("c", nodeName="a", status={"phase": "Running"})
    found = asked(node("a"), pool("a", gpu("g0")), held("c", "a", "g0", users=("p",)), running)
    assert (found.state, found.node) == (ExplanationState.RUNS, "a")
    [device] = found.claims[0].devices
    assert (device.device, device.node, device.slice) == ("g0", "a", "a-slice")


def test_a_pod_that_is_placed_and_does_not_start_reports_what_the_kubelet_stated() -> None:
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "type": "Warning", "reason": "FailedPrepareDynamicResources",
        "message": "NodePrepareResources failed", "involvedObject": {"uid": "pods/default/p"},
    }  # fmt: skip
    found = asked(node("a"), held("c", "a", "g0", users=("p",)), pod("c", nodeName="a"), event)
    assert [r.kind for r in found.reasons] == [ReasonKind.KUBELET]
    assert "NodePrepareResources failed" in found.summary


def test_a_running_pod_shows_no_message_from_before_its_start_and_a_later_one_with_its_age() -> None:
    running = {"state": {"running": {"startedAt": "2026-01-01T00:05:00Z"}}}
    runs = pod("c", nodeName="a", status={"phase": "Running", "containerStatuses": [running]})

    def warned(seen: str, message: str) -> JSON:
        meta = {"name": f"e{seen}", "namespace": "default"}
        return {
            "apiVersion": "v1", "kind": "Event", "metadata": meta, "type": "Warning", "reason": "FailedPrepareDynamicResources",
            "message": message, "lastTimestamp": seen, "involvedObject": {"uid": "pods/default/p"},
        }  # fmt: skip

    there = [node("a"), held("c", "a", "g0", users=("pods/default/p",)), runs]
    before = warned("2026-01-01T00:01:00Z", "the firmware is not loaded")
    found = asked(*there, before)
    assert (found.state, found.message, found.message_time) == (ExplanationState.RUNS, "", "")
    later = asked(*there, before, warned("2026-01-02T00:00:00Z", "the device is unhealthy"))
    assert (later.message, later.message_time) == ("the device is unhealthy", "2026-01-02T00:00:00Z")
    assert re.search(
        r"Kubernetes says, \d+d ago: the device is unhealthy", "\n".join(text(later, Style(coloured=False)))
    )


def test_the_summary_names_the_cause_on_the_nodes_that_the_pod_means() -> None:
    """Most nodes have no device of the class, or other labels. They are not the cause that the devices are held."""
    others = [o for n in "bcd" for o in (node(n), pool(n, gpu("g0"), driver="net.example.com"))]
    there = [*others, node("e"), node("a"), pool("a", gpu("g0")), held("h", "a", "g0"), claim(), pod("c")]
    first = "too few devices for request r (another claim holds it)"
    assert asked(*there).summary == f"{first}, on 1 of 5 nodes; the other 4 have no such device"
    two = [node("f"), pool("f", gpu("g0"), gpu("g1", attributes=LABELLED))]
    pair = claim(count=2, constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    found = asked(*others, *two, *there[-4:-2], pair, pod("c"))
    assert found.summary.startswith(f"no choice of devices satisfies matchAttribute {DRIVER}/numa, on 1 of ")
    selected = [
        node("a", labels={"disk": "ssd"}, unschedulable=True),
        node("b"),
        node("c"),
        claim(),
        pod("c", nodeSelector={"disk": "ssd"}),
    ]
    assert asked(*(pool(n, gpu("g0")) for n in "abc"), *selected).summary.startswith(
        "the node is unschedulable, on 1 of 3 nodes; on 2 more: nodeSelector"
    )


def test_of_several_numbers_that_would_fit_on_some_node_only_the_largest_is_suggested() -> None:
    there = [
        o
        for n, have in (("a", 1), ("b", 3), ("c", 2))
        for o in (node(n), pool(n, *(gpu(f"g{i}") for i in range(have))))
    ]
    found = asked(*there, claim(count=4), pod("c"))
    assert [(c.text, c.example) for c in found.changes] == [("ask for 3 instead of 4 in request r", "b")]


def test_a_search_that_takes_too_long_is_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_feasibility, "LIMIT", 0.0)
    found = asked(node("a"), pool("a", gpu("g0")), claim(), pod("c"))
    assert (found.state, found.kinds) == (ExplanationState.UNKNOWN, {ReasonKind.TIMEOUT})
    assert "the scheduler stops after 10 s" in found.summary


def test_all_pods_that_wait_for_devices_are_explained_together_as_they_are_alone() -> None:
    far = pod("c", name="far")
    far["metadata"]["namespace"] = "other"
    placed, ended = pod("c", name="placed", nodeName="a"), pod("c", name="ended", status={"phase": "Succeeded"})
    odd = pod("c", name="odd") | {"spec": {"containers": 3, "resourceClaims": [{"name": "e"}]}}
    there = [CLASS, node("a"), pool("a", gpu("g0")), held("h", "a", "g0"), claim(), pod("c"), pod(name="bare")]
    snapshot = Snapshot.of([*there, far, placed, ended, odd])
    found = waiting(snapshot)
    assert [e.subject for e in found] == ["pod default/p", "pod default/placed", "pod other/far"]
    assert [e.subject for e in waiting(snapshot, "other")] == ["pod other/far"]
    alone = explain(snapshot, "p")
    assert found[0] == dataclasses.replace(alone, changes=())
    assert alone.changes


def test_a_claim_is_explained_by_itself() -> None:
    there = [node("a"), pool("a", gpu("g0"))]
    assert asked(*there, claim(), what="claim/c").state is ExplanationState.FITS
    assert asked(*there, held("c", "a", "g0"), what="claim/c").state is ExplanationState.RUNS
    waits = asked(*there, held("h", "a", "g0"), claim(), pod("c"), what="claim/c")
    assert waits.state is ExplanationState.WAITS and ReasonKind.HELD in waits.kinds
    assert any("default/p" in note for note in waits.notes)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("trian", "there is no pod trian in namespace default; similar name: train"),
        ("pod/web", "pod default/web asks for no devices"),
        ("claim/x", "there is no claim x in namespace default; there is only c"),
        ("node/a", "'node/a' is neither pod/NAME nor claim/NAME"),
        ("pod/", "'pod/' is neither pod/NAME nor claim/NAME"),
        ("far", "it exists in namespace other (use -n)"),
    ],
)
def test_what_cannot_be_asked_gets_one_sentence(what: str, sentence: str) -> None:
    far = pod(name="far")
    far["metadata"]["namespace"] = "other"
    with pytest.raises(QuestionError) as e:
        asked(node("a"), claim(), pod("c", name="train"), pod(name="web"), far, what=what)
    assert sentence in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("gone", "state"),
    [
        ("nodes", ExplanationState.UNKNOWN),
        ("deviceclasses", ExplanationState.UNKNOWN),
        ("pods", ExplanationState.UNKNOWN),
        ("resourceslices", ExplanationState.UNKNOWN),
        ("resourceclaims", ExplanationState.UNKNOWN),
        ("namespaces", ExplanationState.FITS),
        ("resourceclaimtemplates", ExplanationState.FITS),
    ],
)
def test_what_may_not_be_read_is_not_taken_to_be_absent(gone: str, state: ExplanationState) -> None:
    kinds = {
        "nodes": "Node",
        "deviceclasses": "DeviceClass",
        "resourceslices": "ResourceSlice",
        "resourceclaims": "ResourceClaim",
    }
    there = [CLASS, node("a"), pool("a", gpu("g0")), claim(), pod("c")]
    known = [o for o in there if o["kind"] != kinds.get(gone)]
    found = (
        explain(Snapshot.of(known, gaps=[Gap(gone, f"cannot list {gone}")]), "p")
        if gone != "pods"
        else asked(*there[1:], gaps=(Gap(gone, "cannot list pods"),))
    )
    assert found.state is state, found.summary
    assert f"cannot list {gone}" in " ".join(text(found, Style(coloured=False)))


def test_objects_of_older_versions_are_the_same_objects() -> None:
    old = json.loads(json.dumps([claim(), pool("a", gpu("g0")), CLASS]).replace("/v1", "/v1beta1"))
    old[0]["spec"]["devices"]["requests"] = [{"name": "r", "deviceClassName": "gpu"}]
    device = old[1]["spec"]["devices"][0]
    old[1]["spec"]["devices"] = [{"name": device.pop("name"), "basic": device}]
    assert explain(Snapshot.of([*old, node("a"), pod("c")]), "p").state is ExplanationState.FITS


def test_an_object_without_an_objects_form_is_left_out_and_reported() -> None:
    odd = pod("c", name="odd", nodeName="a")
    odd["spec"]["containers"] = [{"resources": 3}]
    found = asked(node("a"), pool("a", gpu("g0")), claim(), pod("c"), odd)
    assert found.state is ExplanationState.FITS
    assert any("Pod default/odd cannot be read" in n for n in found.notes)
