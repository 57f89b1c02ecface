"""For whom a claim is made and reserved where pods are in groups: the cases of upstream's resourceclaim package."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.localcluster.kubelet.claims import PrepareError
from dra_kubeletplugin.localcluster.kubelet.pod_claims import usable_claims
from dra_kubeletplugin.scheduling.framework import pod_groups

JSON = dict[str, Any]
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
    of = {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {"metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"}, "spec": of | spec}


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
def test_a_claim_is_the_groups_where_all_fields_of_the_entries_are_the_same(entries: list[JSON], shared: bool) -> None:
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
def test_a_claim_may_be_used_by_the_pod_or_the_group_that_it_is_reserved_for(
    reference: JSON, group: str, allowed: bool
) -> None:
    assert pod_groups.is_for(reference, pod(group)) is allowed


@pytest.mark.parametrize(
    ("owner", "group", "made"),
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
def test_a_claim_was_made_for_its_controller_the_pod_or_its_group(owner: JSON | None, group: str, made: bool) -> None:
    assert pod_groups.made_for(claim(owner=owner), pod(group)) is made


class Server:
    def __init__(self, known: JSON) -> None:
        self.known = known

    async def get(self, *_: Any) -> JSON:
        return self.known


async def told(known: JSON, group: str, *, groups: bool) -> str:
    """What a kubelet says of a pod with a claim from a template; empty where it takes it."""
    statuses = [{"name": "c", "resourceClaimName": "made"}]
    one = pod(group, resourceClaims=[BY_TEMPLATE])
    try:
        await usable_claims(Server(known), one, statuses, groups=groups)  # type: ignore[arg-type]
    except PrepareError as e:
        return str(e)
    return ""


async def test_a_kubelet_takes_a_claim_of_the_pods_group_only_where_the_gate_is_on() -> None:
    known = claim(FOR_G, owner=OF_G)
    made = "ResourceClaim ns/made was not created for"
    assert await told(known, "g", groups=True) == ""
    assert await told(known, "g", groups=False) == f"{made} pod ns/p (pod is not owner)"
    assert await told(known, "h", groups=True) == f"{made} Pod ns/p (neither Pod nor PodGroup h is the owner)"
    assert await told(known, "", groups=True) == f"{made} pod ns/p (pod is not owner)"
    unreserved = await told(claim(owner=OF_G), "g", groups=True)
    assert unreserved == "pod p (pod-1) is not allowed to use ResourceClaim made (claim-1)"
