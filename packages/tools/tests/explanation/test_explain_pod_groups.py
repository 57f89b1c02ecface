"""Claims of PodGroups (KEP-5729): the group owns and uses the claim, and no advice destroys it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_tools import ExplanationState, ReasonKind, Snapshot, explain, overview, take
from packages.tools.tests.objects import CLASS, allocated_claim, claim, dra, gpu, node, pod, pool

VERSIONS = ("v1alpha2", "v1beta1")
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "t"}
REFERENCE = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": "uid-group"}
CLUSTER = [CLASS, node("a"), pool("a", gpu("g0"), gpu("g1"))]


def group(version: str = "v1alpha2", **spec: Any) -> JSON:
    meta = {"name": "group", "namespace": "default", "uid": "uid-group"}
    spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": [ENTRY], **spec}
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": meta, "spec": spec}


def member(name: str = "member", *, made: str = "group-gpu", of: str = "group") -> JSON:
    statuses = [{"name": "gpu", "resourceClaimName": made}] if made else []
    found = pod(
        name=name, schedulingGroup={"podGroupName": of}, status={"phase": "Pending", "resourceClaimStatuses": statuses}
    )
    found["spec"]["resourceClaims"] = [ENTRY]
    return found


def owned(obj: JSON, version: str = "v1alpha2") -> JSON:
    owner = {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "name": "group",
        "uid": "uid-group",
        "controller": True,
    }
    return {
        **obj,
        "metadata": {**obj["metadata"], "name": "group-gpu", "namespace": "default", "ownerReferences": [owner]},
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pod_of_the_group_may_use_the_groups_claim(version: str) -> None:
    found = explain(Snapshot.of([*CLUSTER, group(version), owned(claim(), version), member()]), "member")
    assert (found.state, found.reasons, found.unevaluated) == (ExplanationState.FITS, (), ())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_claim_of_the_group_that_is_too_large_waits_for_devices_only(version: str) -> None:
    found = explain(Snapshot.of([*CLUSTER, group(version), owned(claim(count=9), version), member()]), "member")
    assert (found.state, found.reasons) == (ExplanationState.WAITS, ())
    assert "fewer than 9 devices" in found.summary
    assert not any("delete claim" in str(r) for r in (found.changes, found.reasons))


@pytest.mark.parametrize("of", ["other", ""])
def test_no_advice_deletes_the_claim_of_a_group_to_which_the_pod_does_not_belong(of: str) -> None:
    found = explain(Snapshot.of([*CLUSTER, group(), owned(claim()), member(of=of)]), "member")
    [reason] = found.reasons
    assert reason.kind is ReasonKind.CLAIM_OF_OTHER
    assert (
        reason.text == "claim default/group-gpu was made for PodGroup default/group, and the pod is not in this group"
    )
    assert "delete" not in reason.change


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([group()], "no claim has been made from template t for PodGroup default/group yet"),
        ([group(resourceClaims=[])], "no claim has been made from template t yet"),
        ([], "PodGroup default/group, which may share a claim with the pod, is not known"),
    ],
)
def test_a_claim_that_is_not_made_yet_is_the_groups(groups: list[JSON], text: str) -> None:
    template = dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})
    found = explain(Snapshot.of([*CLUSTER, template, *groups, member(made="")]), "member")
    assert text in found.summary


def test_a_reservation_for_the_group_is_the_pods_reservation_and_every_answer_names_the_group() -> None:
    held = owned(allocated_claim("x", "a", "g0"))
    held["status"]["reservedFor"] = [REFERENCE]
    del held["status"]["allocation"]["allocationTimestamp"]  # only a reserved claim may be used without it
    objects = [*CLUSTER, group(), held, member()]
    found = explain(Snapshot.of(objects), "member")
    assert (found.state, found.reasons) == (ExplanationState.FITS, ())
    assert found.claims[0].users == ("PodGroup default/group",)
    assert explain(Snapshot.of(objects), "claim/group-gpu").summary.endswith("reserved for PodGroup default/group")
    [row] = [d for d in overview(Snapshot.of(objects)).devices if d.name == "g0"]
    assert row.holders[0].pods == ("podgroups default/group",)
    waiting = explain(Snapshot.of([*objects, claim("big", count=2), pod("big", name="late")]), "late")
    assert "claim default/group-gpu of PodGroup default/group" in str(waiting)


def test_a_claim_of_the_group_without_a_reservation_is_not_called_unused() -> None:
    held = owned(allocated_claim("x", "a", "g0", users=()))
    found = explain(Snapshot.of([*CLUSTER, group(), held, claim("big", count=2), pod("big", name="late")]), "late")
    assert "claim default/group-gpu of PodGroup default/group" in str(found)
    assert "that no pod uses" not in str(found.changes).replace("or a claim that no pod uses", "")


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_a_waiting_pod_of_a_group_on_a_cluster_gets_no_advice_to_delete(
    release: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    features = Features.of(release, {"GenericWorkload": True, "DRAWorkloadResourceClaims": True})
    template = dra("ResourceClaimTemplate", "t", {"spec": claim(count=9)["spec"]})
    of_cluster = group(features.pod_groups)
    del of_cluster["metadata"]["uid"]
    waiting = member(made="")
    waiting["spec"]["containers"][0]["image"] = "x"
    del waiting["status"]
    async with LocalCluster([], features=features) as cluster:
        await cluster.apply(*CLUSTER, template, of_cluster, waiting)

        async def has_claim() -> bool:
            pods = (await take(cluster.client, "default")).pods
            return bool(pods and (pods[0].get("status") or {}).get("resourceClaimStatuses"))

        await cluster.wait("a claim of the group", has_claim)
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        assert await asyncio.to_thread(main, ["explain", "member", "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "fewer than 9 devices" in found["summary"]
    assert "delete" not in json.dumps([found["reasons"], found["changes"]])
    assert "not examined" not in json.dumps(found["notes"])
