"""Ownership and reservation of claims of pods in groups: the cases of upstream's resourceclaim package."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.localcluster.kubelet.claims import PrepareError
from dra_devkit.localcluster.kubelet.pod_claims import usable_claims
from dra_devkit.scheduling.framework import pod_groups
from dra_kubeletplugin.base.json_types import JSON

BY_NAME = {"name": "c", "resourceClaimName": "x"}
BY_TEMPLATE = {"name": "c", "resourceClaimTemplateName": "x"}
FOR_G = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "group-1"}
FOR_P = {"resource": "pods", "name": "p", "uid": "pod-1"}
OF_G = {
    "apiVersion": "scheduling.k8s.io/v1alpha2",
    "kind": "PodGroup",
    "name": "g",
    "uid": "group-1",
    "controller": True,
}
OF_P = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}


def pod(group: str = "", **spec: Any) -> JSON:
    group_spec = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {"metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"}, "spec": group_spec | spec}


def claim(*reserved: JSON, owner: JSON | None = None) -> JSON:
    meta = {"name": "made", "namespace": "ns", "uid": "claim-1", "ownerReferences": [owner] if owner else []}
    return {"metadata": meta, "status": {"allocation": {}, "reservedFor": list(reserved)}}


@pytest.mark.parametrize(
    ("entries", "shared"),
    [
        ([BY_NAME], True),
        ([{**BY_NAME, "name": "other"}, BY_NAME], True),
        ([{**BY_NAME, "name": "other"}], False),
        ([{**BY_NAME, "resourceClaimName": "y"}], False),
        ([BY_TEMPLATE], False),
        ([], False),
    ],
)
def test_a_claim_belongs_to_the_group_when_all_fields_of_the_entries_are_equal(
    entries: list[JSON], shared: bool
) -> None:
    assert pod_groups.shares({"spec": {"resourceClaims": entries}}, BY_NAME) is shared
    assert not pod_groups.shares(None, BY_NAME)


@pytest.mark.parametrize(
    ("reference", "group", "allowed"),
    [
        (FOR_P, "", True),
        (FOR_P, "g", True),
        ({**FOR_P, "uid": "pod-2"}, "", False),
        (FOR_G, "g", True),
        (FOR_G, "h", False),
        (FOR_G, "", False),
        ({**FOR_G, "resource": "others"}, "g", False),
    ],
)
def test_a_claim_is_usable_by_the_pod_or_group_of_its_reservation(reference: JSON, group: str, allowed: bool) -> None:
    assert pod_groups.is_for(reference, pod(group)) is allowed


@pytest.mark.parametrize(
    ("owner", "group", "expected"),
    [
        (OF_P, "", True),
        ({**OF_P, "uid": "pod-2"}, "", False),
        (OF_G, "g", True),
        ({**OF_G, "apiVersion": "scheduling.k8s.io/v25"}, "g", True),
        ({**OF_G, "apiVersion": "scheduling.volcano.sh/v1"}, "g", False),
        (OF_G, "h", False),
        (OF_G, "", False),
        ({**OF_G, "controller": False}, "g", False),
        (None, "g", False),
    ],
)
def test_a_claim_belongs_to_the_pod_or_group_that_controls_it(owner: JSON | None, group: str, expected: bool) -> None:
    assert pod_groups.made_for(claim(owner=owner), pod(group)) is expected


class FakeClient:
    def __init__(self, stored_claim: JSON) -> None:
        self.stored_claim = stored_claim

    async def get(self, *_: Any) -> JSON:
        return self.stored_claim


async def rejection_of(stored_claim: JSON, group: str, *, groups: bool) -> str:
    """Returns the kubelet's error for a pod with a claim from a template, or an empty string."""
    statuses = [{"name": "c", "resourceClaimName": "made"}]
    pod_object = pod(group, resourceClaims=[BY_TEMPLATE])
    try:
        await usable_claims(FakeClient(stored_claim), pod_object, statuses, groups=groups)  # type: ignore[arg-type]
    except PrepareError as e:
        return str(e)
    return ""


async def test_a_kubelet_accepts_a_claim_of_the_pods_group_only_when_the_gate_is_on() -> None:
    stored_claim = claim(FOR_G, owner=OF_G)
    prefix = "ResourceClaim ns/made was not created for"
    assert await rejection_of(stored_claim, "g", groups=True) == ""
    assert await rejection_of(stored_claim, "g", groups=False) == f"{prefix} pod ns/p (pod is not owner)"
    assert (
        await rejection_of(stored_claim, "h", groups=True)
        == f"{prefix} Pod ns/p (neither Pod nor PodGroup h is the owner)"
    )
    assert await rejection_of(stored_claim, "", groups=True) == f"{prefix} pod ns/p (pod is not owner)"
    unreserved = await rejection_of(claim(owner=OF_G), "g", groups=True)
    assert unreserved == "pod p (pod-1) is not allowed to use ResourceClaim made (claim-1)"
