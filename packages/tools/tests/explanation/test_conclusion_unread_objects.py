"""Objects that could not be read never change a result into another result: it stays the same, or it is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, ExplanationState, Snapshot, explain
from dra_tools.commands.explain_text import text
from dra_tools.files import snapshot_of
from dra_tools.snapshot import KINDS, Gap, UnreadableObject, read
from packages.tools.tests.explanation.test_what_if import cluster
from packages.tools.tests.objects import CLASS, allocated_claim, claim, dra, gpu, node, pod, pool

UNKNOWN = ExplanationState.UNKNOWN
DECIDING = ("Node", "DeviceClass", "ResourceSlice", "ResourceClaim", "Pod", "DeviceTaintRule")


def is_subject(obj: JSON) -> bool:
    return obj["kind"] == "Pod" and obj["metadata"]["name"] == "p"


def without_kind(objects: Sequence[JSON], kind: str) -> Snapshot:
    plural = KINDS[kind].plural
    rest = [o for o in objects if o["kind"] != kind or is_subject(o)]
    return Snapshot.of(rest, gaps=[Gap(plural, f"{plural} are not read")])


def without_objects(objects: Sequence[JSON], spoiled: Sequence[JSON]) -> Snapshot:
    """Returns the snapshot in which some objects are malformed."""
    made = Snapshot.of([o for o in objects if o not in spoiled])
    metas = [(o["kind"], read(o, KINDS[o["kind"]])["metadata"]) for o in spoiled]
    unread = tuple(UnreadableObject(kind, m.get("namespace", ""), m["name"], "odd") for kind, m in metas)
    return replace(made, unread=unread)


def compare(whole: Explanation, found: Explanation) -> None:
    assert found.state in {whole.state, UNKNOWN}, (whole, found)
    assert not found.changes or found.changes == whole.changes
    shown = "\n".join(text(found, Style(coloured=False)))
    for words in ("does not exist", "has no nodes", "tried with the allocator", "that was tried"):
        assert words not in shown or words in "\n".join(text(whole, Style(coloured=False))), shown


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_an_unread_kind_or_object_never_changes_a_result_into_another(seed: int) -> None:
    r = Random(seed)
    objects = cluster(r)
    whole = explain(Snapshot.of(objects), "p")
    for kind in DECIDING:
        compare(whole, explain(without_kind(objects, kind), "p"))
        of_kind = [o for o in objects if o["kind"] == kind and not is_subject(o)]
        if of_kind:
            compare(whole, explain(without_objects(objects, [r.choice(of_kind)]), "p"))


# --- one case for each way in which a kind decides ----------------------------------------------------


def made_claim(*requests: JSON) -> JSON:
    return dra("ResourceClaim", "c", {"devices": {"requests": list(requests)}})


def exactly(**more: Any) -> JSON:
    return {"name": "r", "exactly": {"deviceClassName": "gpu", **more}}


def selecting(expression: str) -> JSON:
    return exactly(selectors=[{"cel": {"expression": expression}}])


OTHER = pool("a", {"name": "n0"}, suffix="nics", driver="nic.example.com")
NAMESPACES = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": name}}}
    for name in ("default", "other")
]
LABELLED = NAMESPACES[0] | {"metadata": {"name": "default", "labels": {"resource.kubernetes.io/admin-access": "true"}}}
NEAR = {
    "labelSelector": {"matchLabels": {"app": "x"}}, "namespaceSelector": {"matchLabels": {"team": "other"}},
    "topologyKey": "kubernetes.io/hostname",
}  # fmt: skip
NEIGHBOUR = pod(name="x", nodeName="a")
NEIGHBOUR["metadata"] |= {"namespace": "other", "labels": {"app": "x"}}
BOTH = [CLASS, node("a"), pool("a", gpu("g0"))]


def cases() -> Iterator[tuple[str, str, list[JSON]]]:
    resources = {"requests": {"example.com/gpu": "1"}}
    extended = dra("DeviceClass", "gpu", {**CLASS["spec"], "extendedResourceName": "example.com/gpu"})
    yield "an extended resource", "DeviceClass", [extended, *BOTH[1:], pod(resources=resources)]
    numa = selecting('device.attributes["gpu.example.com"].numa == 0')
    yield "a selector that fails for other devices", "DeviceClass", [*BOTH, OTHER, made_claim(numa), pod("c")]
    held = allocated_claim("h", "a", "n0")
    held["status"]["allocation"]["devices"]["results"][0]["driver"] = "nic.example.com"
    yield "all devices", "DeviceClass", [*BOTH, OTHER, held, made_claim(exactly(allocationMode="All")), pod("c")]
    yield "any other pod", "Pod", [*BOTH, claim(), pod("c")]
    labelled = node("a", labels={"zone": "x"})
    yield "a label", "Node", [CLASS, labelled, *BOTH[2:], claim(), pod("c", nodeSelector={"zone": "x"})]
    mine = allocated_claim("c", "a", "g0", users=("pods/default/p",))
    yield "a node that does not exist", "Node", [*BOTH, mine, pod("c", nodeName="b")]
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}
    near = [*BOTH, *NAMESPACES, NEIGHBOUR, claim(), pod("c", affinity=affinity)]
    yield "a pod nearby", "Pod", near
    yield "a namespace nearby", "Namespace", near
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}
    yield "a namespace not nearby", "Namespace", [*BOTH, *NAMESPACES, NEIGHBOUR, claim(), pod("c", affinity=anti)]
    admin = made_claim(exactly(adminAccess=True))
    yield "admin access", "Namespace", [*BOTH, LABELLED, admin, pod("c")]
    yield "no admin access", "Namespace", [*BOTH, *NAMESPACES, admin, pod("c")]
    yield "a placed pod with an open claim", "ResourceClaim", [*BOTH, claim(), pod("c", nodeName="a")]


CASES = list(cases())


@pytest.mark.parametrize(("kind", "objects"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_result_is_not_known_without_the_kind_that_decides_it(kind: str, objects: list[JSON]) -> None:
    whole = explain(Snapshot.of(objects), "p")
    assert whole.state is not UNKNOWN
    found = explain(without_kind(objects, kind), "p")
    assert (found.state, found.changes) == (UNKNOWN, ())
    compare(
        whole, explain(without_objects(objects, [o for o in objects if o["kind"] == kind and not is_subject(o)]), "p")
    )


def test_a_class_that_cannot_be_read_is_not_called_absent() -> None:
    malformed = {**CLASS, "spec": {"selectors": 3}}
    found = explain(snapshot_of([malformed, *BOTH[1:], claim(), pod("c")]), "p")
    assert found.state is UNKNOWN
    assert next(g.why for g in found.gaps).startswith("the files contain no readable deviceclasses")
    assert "DeviceClass gpu cannot be read" in found.notes[-1]
    shown = "\n".join(text(found, Style(coloured=False)))
    assert "does not exist" not in shown


def test_without_claims_a_pod_does_not_wait_for_the_claim_controller() -> None:
    template = dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})
    waiting_pod = pod("c")
    waiting_pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": "t"}]
    assert explain(snapshot_of([*BOTH, template, waiting_pod]), "p").state is UNKNOWN
    gated = {**waiting_pod, "spec": {**waiting_pod["spec"], "schedulingGates": [{"name": "queue"}]}}
    found = explain(snapshot_of([*BOTH, template, gated]), "p")
    assert (found.state, found.summary) == (ExplanationState.WAITS, "the pod has scheduling gates: queue")


def test_missing_events_are_named_for_a_pod_whose_cause_may_be_in_events() -> None:
    held = allocated_claim("c", "a", "g0", users=("p",))
    placed = explain(snapshot_of([*BOTH, held, pod("c", nodeName="a")]), "p")
    assert placed.state is ExplanationState.SCHEDULED
    assert [g.why for g in placed.gaps] == [
        "the files contain no events: causes that only a kubelet or a controller reports are not known"
    ]
    assert explain(snapshot_of([*BOTH, claim(), pod("c")]), "p").gaps == ()
