"""``explain`` on plain objects names each obstacle of a pod and the change that removes it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

import pytest

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import QuestionError
from dra_tools import Explanation, ExplanationState, ReasonKind, Snapshot, explain, waiting
from dra_tools.commands.explain_text import text
from dra_tools.explanation import node_feasibility
from packages.tools.tests.objects import (
    CLASS,
    COUNTERS,
    DRIVER,
    LABELLED,
    MEMORY,
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


def failed_binding(message: str) -> JSON:
    """Returns a claim that the scheduler will deallocate because its binding failed."""
    claim_object = allocated_claim(
        "c", "a", "g0", users=("pods/default/p",), bindingConditions=["Attached"], bindingFailureConditions=["Off"]
    )
    condition = {"type": "Off", "status": "True", "reason": "BindingFailed", "message": message}
    claim_object["status"]["devices"] = [{"driver": DRIVER, "pool": "a", "device": "g0", "conditions": [condition]}]
    return claim_object


def cpus(amount: str) -> JSON:
    """Returns the fields of a device that is cpus of its node (KEP-5517)."""
    return {"nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": amount}}}}


SELECTS = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}" && {MEMORY}'}}]}
UNHEALTHY = {"key": "gpu.example.com/unhealthy", "effect": "NoSchedule"}


def shared_device(name: str) -> JSON:
    return gpu(name, allowMultipleAllocations=True)


ATTRIBUTES = f'device.attributes["{DRIVER}"]'
POD_REASONS = {
    ReasonKind.CLASS_MISSING, ReasonKind.CLAIM_MISSING, ReasonKind.TEMPLATE_MISSING, ReasonKind.ADMIN_LABEL, ReasonKind.CLAIM_ON_OTHER_NODE, ReasonKind.RESERVATION,
    ReasonKind.BINDING, ReasonKind.TOO_MANY, ReasonKind.GATED, ReasonKind.SCHEDULER_NAME, ReasonKind.NODE_GIVEN, ReasonKind.EXTENDED, ReasonKind.SELECTOR_ERROR,
}  # fmt: skip
# Each obstacle has the objects, the reason's kind, a part of its text or an example, and a part of the suggested change.
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
    "fewer devices than requested": (
        [node("a"), pool("a", gpu("g0")), claim(count=2), pod("c")],
        ReasonKind.TOO_FEW,
        "each node has at most 1 usable",
        "ask for 1 instead of 2 in request r",
    ),
    "devices that are cpus of a node that has too few": (
        [node("a"), pool("a", gpu("g0", **cpus("6"))), claim(), pod("c", resources={"requests": {"cpu": "3"}})],
        ReasonKind.RESOURCES,
        "the node has too little cpu for the pod and the devices of its claims (a: 9 wanted, of which 6 by the devices of claim c; 8 of 8 free)",
        "devices that use less cpu",
    ),
    "a claim of another pod": (
        [node("a"), pool("a", gpu("g0")), allocated_claim("h", "a", "g0"), claim(), pod("c")],
        ReasonKind.HELD,
        "claim default/h of pod default/holder",
        "delete the pods of these claims, or a claim that no pod uses (on a: claim default/h of pod default/holder)",
    ),
    "a claim without users": (
        [node("a"), pool("a", gpu("g0")), allocated_claim("h", "a", "g0", users=()), claim(), pod("c")],
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
            pool("a", partition("half", "40Gi"), partition("whole", "80Gi"), count=2),
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
            allocated_claim("h", "a", "half"),
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
    "capacity that another claim consumes": (
        [
            node("a"),
            pool("a", shared_device("g0")),
            allocated_claim("h", "a", "g0", shareID="s", consumedCapacity={"memory": "60Gi"}),
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
    "an incomplete pool": (
        [node("a"), pool("a", gpu("g0"), generation=3, count=2), claim(), pod("c")],
        ReasonKind.POOL_INCOMPLETE,
        f"pool {DRIVER}/a, generation 3: 1 of 2 slices",
        "",
    ),
    "a pool with a duplicate device name": (
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
    "a missing class": (
        [node("a"), claim(deviceClassName="gpus"), pod("c")],
        ReasonKind.CLASS_MISSING,
        "DeviceClass gpus does not exist",
        "similar name: gpu",
    ),
    "a missing claim": (
        [node("a"), claim("cc"), pod("c")],
        ReasonKind.CLAIM_MISSING,
        "claim default/c does not exist",
        "there is only cc",
    ),
    "a missing template": (
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
    "a claim that is allocated on another node": (
        [node("a"), node("b", unschedulable=True), allocated_claim("c", "b", "g0"), pod("c")],
        ReasonKind.CLAIM_ON_OTHER_NODE,
        "allocated for other nodes, and pod default/holder uses it there",
        "",
    ),
    "a claim with the maximum number of users": (
        [node("a"), allocated_claim("c", "a", "g0", users=tuple(f"u{i}" for i in range(256))), pod("c")],
        ReasonKind.RESERVATION,
        "reserved for 256 pods",
        "one of these pods has to end",
    ),
    "binding conditions": (
        [
            node("a"),
            allocated_claim("c", "a", "g0", users=("pods/default/p",), bindingConditions=["Attached"]),
            pod("c"),
        ],
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
    "more devices than a claim may request": (
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
    "an unknown scheduler": (
        [node("a"), pool("a", gpu("g0")), claim(), pod("c", schedulerName="mine")],
        ReasonKind.SCHEDULER_NAME,
        "the scheduler mine",
        "start a scheduler named mine",
    ),
    "a pod with a node name": (
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
def test_explain_names_each_obstacle_with_a_change_that_helps(case: tuple[list[JSON], ReasonKind, str, str]) -> None:
    objects, kind, expected_text, expected_change = case
    found = explain_objects(*objects)
    output = " ".join(" ".join(text(found, Style(coloured=False))).split())
    assert found.state is ExplanationState.WAITS, output
    assert kind in found.kinds, output
    assert expected_text in output
    assert expected_change in output


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=name) for name, c in OBSTACLES.items() if c[1] not in {ReasonKind.NO_NODES}]
)
def test_with_a_suitable_node_only_the_pods_own_obstacles_remain(
    case: tuple[list[JSON], ReasonKind, str, str],
) -> None:
    free_pool = pool("z", *(gpu(f"z{i}") for i in range(4)))
    nodes = [*case[0], node("z", labels={"disk": "ssd"}), free_pool]
    if case[1] is ReasonKind.RESOURCES:
        nodes[-2]["status"]["allocatable"]["cpu"] = "64"
    found = explain_objects(*nodes)
    if case[1] in POD_REASONS:
        assert found.state is ExplanationState.WAITS
        assert case[1] in found.kinds
    else:
        assert (found.state, found.nodes) == (ExplanationState.FITS, ("z",))


def test_a_node_is_too_small_for_devices_because_of_another_pod_whose_devices_use_it() -> None:
    entry = {
        "resourceClaimName": "h",
        "containers": ["main"],
        "overhead": [{"name": "cpu", "perPod": "2", "perContainer": "1"}],
    }
    holder = pod(
        name="holder", nodeName="a", status={"phase": "Running", "nodeAllocatableResourceClaimStatuses": [entry]}
    )
    objects = [
        node("a"),
        pool("a", gpu("g0", **cpus("6")), gpu("g1")),
        allocated_claim("h", "a", "g1"),
        holder,
        claim(),
        pod("c"),
    ]
    found = explain_objects(*objects)
    output = " ".join(" ".join(text(found, Style(coloured=False))).split())
    assert "(a: 6 wanted, of which 6 by the devices of claim c; 5 of 8 free)" in output
    assert "delete pods" in output and "pod default/holder requests 3 cpu" in output
    larger = node("b")
    larger["status"]["allocatable"]["cpu"] = "5"
    assert explain_objects(*objects, larger, pool("b", gpu("g0", **cpus("5")))).nodes == ("b",)


def test_a_claim_whose_device_is_a_part_of_the_node_cannot_be_shared() -> None:
    objects = [node("a"), pool("a", gpu("g0", **cpus("1"))), allocated_claim("c", "a", "g0"), pod("c")]
    found = explain_objects(*objects)
    assert found.state is ExplanationState.WAITS
    assert "claim c has a mapped device and cannot be shared across pods" in " ".join(
        text(found, Style(coloured=False))
    )


def test_nodes_with_equal_reasons_are_one_group_for_different_claims() -> None:
    nodes = [
        x
        for i in range(300)
        for x in (node(f"n{i}"), pool(f"n{i}", gpu("g0")), allocated_claim(f"h{i}", f"n{i}", "g0"))
    ]
    found = explain_objects(*nodes, claim(), pod("c"))
    assert [len(g.nodes) for g in found.groups] == [300]
    [reason] = found.groups[0].requests[0].reasons
    assert (reason.devices, len(reason.examples)) == (300, 3)
    assert len(text(found, Style(coloured=False))) < 25


def test_a_change_is_reported_only_for_nodes_where_it_suffices() -> None:
    """On node b the taint is not the only obstacle."""
    tainted = gpu("g0", taints=[UNHEALTHY])
    found = explain_objects(
        node("a"), node("b"), pool("a", tainted), pool("b", tainted), allocated_claim("h", "b", "g0"), claim(), pod("c")
    )
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
def test_the_change_for_a_failing_selector_checks_the_missing_key_first(expression: str, change: str) -> None:
    selectors = [{"cel": {"expression": expression}}]
    found = explain_objects(node("a"), pool("a", gpu("g0")), claim(selectors=selectors), pod("c"))
    [reason] = found.reasons
    assert reason.kind is ReasonKind.SELECTOR_ERROR and change in reason.change


def test_explain_shows_the_devices_of_a_running_pod_with_their_slices() -> None:
    running = pod("c", nodeName="a", status={"phase": "Running"})
    found = explain_objects(node("a"), pool("a", gpu("g0")), allocated_claim("c", "a", "g0", users=("p",)), running)
    assert (found.state, found.node) == (ExplanationState.RUNS, "a")
    [device] = found.claims[0].devices
    assert (device.device, device.node, device.slice) == ("g0", "a", "a-slice")


def test_explain_shows_the_kubelets_event_for_a_bound_pod_that_does_not_start() -> None:
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "type": "Warning", "reason": "FailedPrepareDynamicResources",
        "message": "NodePrepareResources failed", "involvedObject": {"uid": "pods/default/p"},
    }  # fmt: skip
    found = explain_objects(node("a"), allocated_claim("c", "a", "g0", users=("p",)), pod("c", nodeName="a"), event)
    assert [r.kind for r in found.reasons] == [ReasonKind.KUBELET]
    assert "NodePrepareResources failed" in found.summary


def test_explain_hides_events_before_the_start_of_a_running_pod_and_shows_later_ones() -> None:
    running = {"state": {"running": {"startedAt": "2026-01-01T00:05:00Z"}}}
    running_pod = pod("c", nodeName="a", status={"phase": "Running", "containerStatuses": [running]})

    def warning_event(timestamp: str, message: str) -> JSON:
        meta = {"name": f"e{timestamp}", "namespace": "default"}
        return {
            "apiVersion": "v1", "kind": "Event", "metadata": meta, "type": "Warning", "reason": "FailedPrepareDynamicResources",
            "message": message, "lastTimestamp": timestamp, "involvedObject": {"uid": "pods/default/p"},
        }  # fmt: skip

    objects = [node("a"), allocated_claim("c", "a", "g0", users=("pods/default/p",)), running_pod]
    before = warning_event("2026-01-01T00:01:00Z", "the firmware is not loaded")
    found = explain_objects(*objects, before)
    assert (found.state, found.message, found.message_time) == (ExplanationState.RUNS, "", "")
    later = explain_objects(*objects, before, warning_event("2026-01-02T00:00:00Z", "the device is unhealthy"))
    assert (later.message, later.message_time) == ("the device is unhealthy", "2026-01-02T00:00:00Z")
    assert re.search(
        r"Kubernetes says, \d+d ago: the device is unhealthy", "\n".join(text(later, Style(coloured=False)))
    )


def test_the_summary_names_the_cause_on_the_nodes_with_matching_devices() -> None:
    """Most nodes have no device of the class, or other labels. The summary must not name this as the cause."""
    others = [o for n in "bcd" for o in (node(n), pool(n, gpu("g0"), driver="net.example.com"))]
    objects = [*others, node("e"), node("a"), pool("a", gpu("g0")), allocated_claim("h", "a", "g0"), claim(), pod("c")]
    first = "too few devices for request r (another claim holds it)"
    assert explain_objects(*objects).summary == f"{first}, on 1 of 5 nodes; the other 4 have no such device"
    two = [node("f"), pool("f", gpu("g0"), gpu("g1", attributes=LABELLED))]
    pair = claim(count=2, constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    found = explain_objects(*others, *two, *objects[-4:-2], pair, pod("c"))
    assert found.summary.startswith(f"no choice of devices satisfies matchAttribute {DRIVER}/numa, on 1 of ")
    selected = [
        node("a", labels={"disk": "ssd"}, unschedulable=True),
        node("b"),
        node("c"),
        claim(),
        pod("c", nodeSelector={"disk": "ssd"}),
    ]
    assert explain_objects(*(pool(n, gpu("g0")) for n in "abc"), *selected).summary.startswith(
        "the node is unschedulable, on 1 of 3 nodes; on 2 more: nodeSelector"
    )


def test_explain_suggests_only_the_largest_count_that_fits_on_some_node() -> None:
    objects = [
        o
        for n, count in (("a", 1), ("b", 3), ("c", 2))
        for o in (node(n), pool(n, *(gpu(f"g{i}") for i in range(count))))
    ]
    found = explain_objects(*objects, claim(count=4), pod("c"))
    assert [(c.text, c.example) for c in found.changes] == [("ask for 3 instead of 4 in request r", "b")]


@pytest.mark.parametrize(
    ("policy", "used", "most"),
    [
        ({}, "40Gi", "40Gi"),
        ({"validRange": {"min": "1Gi", "step": "1Gi"}}, "39.5Gi", "40Gi"),
        ({"validRange": {"min": "1Gi", "max": "30Gi"}}, "10Gi", "30Gi"),
        ({"validValues": ["10Gi", "20Gi", "60Gi"]}, "30Gi", "20Gi"),
    ],
)
def test_explain_suggests_the_largest_share_that_is_left_and_that_the_policy_allows(
    policy: JSON, used: str, most: str
) -> None:
    """The larger devices have too much for a suggestion, and their selectors do not match."""
    memory = {"value": "80Gi", "requestPolicy": {"default": "10Gi", **policy}}
    shared = gpu("shared", attributes=LABELLED, allowMultipleAllocations=True) | {"capacity": {"memory": memory}}
    larger = [gpu(f"g{i}", f"{i}00Gi") for i in range(1, 7)]
    wanted = claim(
        selectors=[{"cel": {"expression": f"{ATTRIBUTES}.numa == 1"}}], capacity={"requests": {"memory": "55Gi"}}
    )
    holder = allocated_claim("h", "a", "shared", shareID="s", consumedCapacity={"memory": used})
    found = explain_objects(node("a"), pool("a", *larger, shared), holder, wanted, pod("c"))
    assert f"ask for at most {most} of memory" in [c.text for c in found.changes]


def test_explain_reports_a_timeout_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_feasibility, "LIMIT", 0.0)
    found = explain_objects(node("a"), pool("a", gpu("g0")), claim(), pod("c"))
    assert (found.state, found.kinds) == (ExplanationState.UNKNOWN, {ReasonKind.TIMEOUT})
    assert "the scheduler stops after 10 s" in found.summary


def test_explanations_of_all_waiting_pods_equal_the_explanation_of_each_pod() -> None:
    other_namespace = pod("c", name="far")
    other_namespace["metadata"]["namespace"] = "other"
    placed, finished = pod("c", name="placed", nodeName="a"), pod("c", name="ended", status={"phase": "Succeeded"})
    malformed = pod("c", name="odd") | {"spec": {"containers": 3, "resourceClaims": [{"name": "e"}]}}
    objects = [
        CLASS,
        node("a"),
        pool("a", gpu("g0")),
        allocated_claim("h", "a", "g0"),
        claim(),
        pod("c"),
        pod(name="bare"),
    ]
    snapshot = Snapshot.of([*objects, other_namespace, placed, finished, malformed])
    found = waiting(snapshot)
    assert [e.subject for e in found] == ["pod default/p", "pod default/placed", "pod other/far"]
    assert [e.subject for e in waiting(snapshot, "other")] == ["pod other/far"]
    single = explain(snapshot, "p")
    assert found[0] == single
    whole = Snapshot.of([*objects, other_namespace, placed, finished])
    assert waiting(whole)[0] == dataclasses.replace(explain(whole, "p"), changes=())
    assert explain(whole, "p").changes


def test_explain_explains_a_single_claim() -> None:
    objects = [node("a"), pool("a", gpu("g0"))]
    assert explain_objects(*objects, claim(), subject="claim/c").state is ExplanationState.FITS
    assert explain_objects(*objects, allocated_claim("c", "a", "g0"), subject="claim/c").state is ExplanationState.RUNS
    explanation = explain_objects(*objects, allocated_claim("h", "a", "g0"), claim(), pod("c"), subject="claim/c")
    assert explanation.state is ExplanationState.WAITS and ReasonKind.HELD in explanation.kinds
    assert any("default/p" in note for note in explanation.notes)


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        ("trian", "there is no pod trian in namespace default; similar name: train"),
        ("pod/web", "pod default/web asks for no devices"),
        ("claim/x", "there is no claim x in namespace default; there is only c"),
        ("node/a", "'node/a' is neither pod/NAME nor claim/NAME"),
        ("pod/", "'pod/' is neither pod/NAME nor claim/NAME"),
        ("far", "it exists in namespace other (use -n)"),
    ],
)
def test_an_invalid_subject_is_refused_with_one_sentence(subject: str, sentence: str) -> None:
    other_namespace = pod(name="far")
    other_namespace["metadata"]["namespace"] = "other"
    with pytest.raises(QuestionError) as e:
        explain_objects(node("a"), claim(), pod("c", name="train"), pod(name="web"), other_namespace, subject=subject)
    assert sentence in str(e.value)
    assert "\n" not in str(e.value)


def test_explain_converts_objects_of_older_versions() -> None:
    old = json.loads(json.dumps([claim(), pool("a", gpu("g0")), CLASS]).replace("/v1", "/v1beta1"))
    old[0]["spec"]["devices"]["requests"] = [{"name": "r", "deviceClassName": "gpu"}]
    device = old[1]["spec"]["devices"][0]
    old[1]["spec"]["devices"] = [{"name": device.pop("name"), "basic": device}]
    assert explain(Snapshot.of([*old, node("a"), pod("c")]), "p").state is ExplanationState.FITS


def test_explain_skips_and_reports_a_malformed_object() -> None:
    malformed = pod("c", name="odd", nodeName="a")
    malformed["spec"]["containers"] = [{"resources": 3}]
    found = explain_objects(node("a"), pool("a", gpu("g0")), claim(), pod("c"), malformed)
    assert found.state is ExplanationState.UNKNOWN
    assert any("Pod default/odd cannot be read" in n for n in found.notes)


# --- derived attributes in constraints (KEP-6080) -------------------------------------------------------

DERIVED_KEY = "derived/key"


def numa(name: str, value: int) -> JSON:
    return gpu(name, attributes={"numa": {"int": value}})


def derived(expression: str) -> list[JSON]:
    return [{"name": DERIVED_KEY, "expression": expression}]


def explained_by_derived(wanted: JSON, *devices: JSON) -> Explanation:
    return explain(Snapshot.of([CLASS, node("a"), pool("a", *devices), wanted, pod("c")]), "p")


def pair(expression: str) -> JSON:
    return claim(count=2, constraints=[{"matchAttribute": DERIVED_KEY}], derivedAttributes=derived(expression))


def test_a_pod_fits_whose_devices_have_the_same_derived_attribute() -> None:
    found = explained_by_derived(
        pair("device.attributes['gpu.example.com'].numa / 2"), numa("g0", 1), numa("g1", 2), numa("g2", 3)
    )
    assert (found.state, found.unevaluated) == (ExplanationState.FITS, ())


def test_the_values_of_a_derived_attribute_explain_why_a_constraint_fails() -> None:
    found = explained_by_derived(pair("device.attributes['gpu.example.com'].numa * 10"), numa("g0", 2), numa("g1", 1))
    assert found.state is ExplanationState.WAITS
    assert f"no choice of devices satisfies matchAttribute {DERIVED_KEY}" in found.summary
    assert "values of the usable devices: 20 on 1, 10 on 1" in repr(found)


def test_the_values_of_a_derived_attribute_are_of_the_requests_of_the_constraint() -> None:
    requests = [
        {"name": "x", "exactly": {"deviceClassName": "gpu", "derivedAttributes": derived("'first'")}},
        {"name": "y", "exactly": {"deviceClassName": "gpu", "derivedAttributes": derived("'second'")}},
    ]
    wanted = dra(
        "ResourceClaim", "c", {"devices": {"requests": requests, "constraints": [{"matchAttribute": DERIVED_KEY}]}}
    )
    found = explained_by_derived(wanted, numa("g0", 1), numa("g1", 2))
    assert "values of the usable devices: first on 2, second on 2" in repr(found)


def test_an_expression_that_fails_is_the_reason() -> None:
    found = explained_by_derived(pair("device.attributes['gpu.example.com'].missing"), numa("g0", 1), numa("g1", 2))
    assert found.state is ExplanationState.WAITS
    assert f"derived attribute {DERIVED_KEY}: CEL runtime error" in repr(found)
    assert "no such key: missing" in repr(found)
