"""Claims of PodGroups (KEP-5729).

A claim is created once, reserved for the group and allocated once. The group's deletion releases it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.informer import POD_GROUPS
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, SLICES
from packages.devkit.tests.localcluster.kubelet.harness import TIMERS, KubeletHarness
from tests.helpers.fake_plugin import FakePlugin
from tests.helpers.objects import DRIVER, claim, device_class, pod, slice_of, template

GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
GROUPS = POD_GROUPS["v1alpha2"]
EACH = pytest.mark.parametrize(("release", "version"), [("1.36", "v1alpha2"), ("1.37", "v1beta1")])
FROM_TEMPLATE = {"name": "t0", "resourceClaimTemplateName": "t"}
BY_NAME = {"name": "c0", "resourceClaimName": "c"}


def group(name: str = "g", *claims: JSON, version: str = "v1alpha2", **spec: Any) -> JSON:
    body = {"schedulingPolicy": {"basic": {}}} | ({"resourceClaims": list(claims)} if claims else {}) | spec
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": {"name": name}, "spec": body}


def member(name: str, group_name: str = "g", **fields: Any) -> JSON:
    return pod(name, schedulingGroup={"podGroupName": group_name}, **fields)


class PodGroupHarness(KubeletHarness):
    async def group(self, name: str = "g") -> JSON | None:
        return await get_or_none(self.cluster, GROUPS, name)

    async def claim_of(self, name: str = "g") -> JSON:
        """Waits for the claim that is created for a group."""

        async def get_claim() -> JSON | None:
            group = await self.group(name)
            statuses = (group or {}).get("status", {}).get("resourceClaimStatuses") or [{}]
            claim_name = statuses[0].get("resourceClaimName")
            return await get_or_none(self.cluster, CLAIMS, claim_name) if claim_name else None

        created: JSON = await self.wait_until(f"the claim of group {name}", get_claim)
        return created

    async def wait_until_reserved(self, name: str) -> JSON:
        async def check() -> JSON | None:
            current = await get_or_none(self.cluster, CLAIMS, name)
            return current if current and (current.get("status") or {}).get("reservedFor") else None

        reserved: JSON = await self.wait_until(f"{name} to be reserved", check)
        return reserved

    async def wait_until_bound(self, *names: str) -> None:
        for name in names:

            async def check(name: str = name) -> bool:
                return bool(((await self.cluster.pod(name)) or {"spec": {}})["spec"].get("nodeName"))

            await self.wait_until(f"{name} to have a node", check)


async def get_or_none(cluster: LocalCluster, resource: Resource, name: str) -> JSON | None:
    try:
        return await cluster.client.get(resource, name, "default")
    except NotFoundError:
        return None


@contextlib.asynccontextmanager
async def pod_group_harness(
    *nodes: str, gates: Mapping[str, bool] | None = None, release: str = "1.36"
) -> AsyncIterator[PodGroupHarness]:
    gates = GATES if gates is None else gates
    async with LocalCluster(nodes, timers=TIMERS, features=Features.of(release, gates)) as cluster:
        await cluster.apply(device_class(), template(), claim())
        yield PodGroupHarness(cluster)


@contextlib.asynccontextmanager
async def with_devices() -> AsyncIterator[tuple[PodGroupHarness, FakePlugin]]:
    """Starts a node with a plugin and two devices."""
    async with pod_group_harness("node-1") as harness, harness.plugin() as plugin:
        await harness.wait_until_registered()
        await harness.cluster.apply(slice_of("node-1", ["d0", "d1"]))
        yield harness, plugin


def consumers(claim_object: JSON) -> list[tuple[str, str, str]]:
    entries = (claim_object.get("status") or {}).get("reservedFor") or []
    return [(e.get("apiGroup", ""), e["resource"], e["name"]) for e in entries]


FOR_GROUP = [("scheduling.k8s.io", "podgroups", "g")]


# --- the API ----------------------------------------------------------------------------------------


@EACH
async def test_pod_groups_are_served_only_when_their_gate_is_on(release: str, version: str) -> None:
    async with pod_group_harness(gates={}, release=release) as harness:
        with pytest.raises(ApiError, match="404"):
            await harness.cluster.client.list(POD_GROUPS[version])
    async with pod_group_harness(release=release) as harness:
        [created] = await harness.cluster.apply(group("g", FROM_TEMPLATE, version=version))
        assert created["spec"]["resourceClaims"] == [FROM_TEMPLATE]
        assert [g["metadata"]["name"] for g in (await harness.cluster.client.list(POD_GROUPS[version]))["items"]] == [
            "g"
        ]


async def test_a_pod_loses_its_scheduling_group_when_the_gate_is_off() -> None:
    async with pod_group_harness("node-1", gates={}) as harness:
        [created] = await harness.cluster.apply(member("p"))
        assert "schedulingGroup" not in created["spec"]
        await harness.wait_until_running()


async def test_each_pod_has_its_own_claim_when_the_gate_of_group_claims_is_off() -> None:
    async with pod_group_harness(gates={"GenericWorkload": True}) as harness:
        [created] = await harness.cluster.apply(group("g", FROM_TEMPLATE))
        assert "resourceClaims" not in created["spec"]
        await harness.cluster.apply(member("p", templates=["t"]), member("q", templates=["t"]))

        async def both_claims_exist() -> bool:
            owners = [c["metadata"].get("ownerReferences", [{}])[0].get("name") for c in harness.cluster.claims()]
            return {"p", "q"} <= set(owners)

        await harness.wait_until("a claim for each pod", both_claims_exist)


async def test_the_api_server_drops_fields_of_disabled_gates() -> None:
    async with pod_group_harness() as harness:
        [created] = await harness.cluster.apply(
            group(disruptionMode="PodGroup", priority=3, schedulingConstraints={"topology": []})
        )
        assert created["spec"] == {"schedulingPolicy": {"basic": {}}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"schedulingPolicy": {}}, "must specify one of: `basic`, `gang`"),
        ({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}, "must specify exactly one of: `basic`, `gang`"),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, "must be greater than or equal to 1"),
        ({"resourceClaims": [{**BY_NAME, "name": f"c{i}"} for i in range(5)]}, "must have at most 4 items"),
        ({"resourceClaims": [{"name": "c"}]}, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
        ({"resourceClaims": [{**BY_NAME, **FROM_TEMPLATE}]}, "must specify exactly one of: `resourceClaimName`"),
        ({"resourceClaims": [{**BY_NAME, "name": "C"}]}, "lower case"),
    ],
)
async def test_an_invalid_group_is_rejected(spec: JSON, message: str) -> None:
    async with pod_group_harness() as harness:
        with pytest.raises(ApiError, match=r"Invalid value|Too many") as e:
            await harness.cluster.client.create(GROUPS, group(**spec), "default")
        assert message in str(e.value)


async def test_a_groups_spec_is_immutable_and_its_status_must_name_its_claims() -> None:
    async with pod_group_harness() as harness:
        [created] = await harness.cluster.apply(group("g", BY_NAME))
        with pytest.raises(ApiError, match="field is immutable"):
            await harness.cluster.client.update(GROUPS, {**created, "spec": group("g", FROM_TEMPLATE)["spec"]})
        status = {"resourceClaimStatuses": [{"name": "other", "resourceClaimName": "x"}]}
        with pytest.raises(ApiError, match=r"must match the name of an entry in `spec\.resourceClaims`"):
            await harness.cluster.client.patch(GROUPS, "g", {"status": status}, "default", "status")


@pytest.mark.parametrize(
    ("release", "gates", "message"),
    [
        ("1.36", {"DRAWorkloadResourceClaims": True}, "needs GenericWorkload, which is off"),
        ("1.35", {"GenericWorkload": True}, "in 1.35 they are part of Workloads"),
        ("1.35", {"DRAWorkloadResourceClaims": True}, "it was added in 1.36"),
    ],
)
def test_an_invalid_combination_of_gates_is_reported(release: str, gates: dict[str, bool], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Features.of(release, gates)


async def test_a_workload_is_rejected_with_an_alternative() -> None:
    async with pod_group_harness() as harness:
        body = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "Workload", "metadata": {"name": "w"}, "spec": {}}
        with pytest.raises(ApiError, match="create the PodGroups"):
            await harness.cluster.client.create(
                Resource("scheduling.k8s.io", "v1alpha2", "workloads", True), body, "default"
            )


# --- the claim controller ---------------------------------------------------------------------------


@EACH
async def test_the_controller_creates_one_claim_for_a_group_and_names_it_in_its_pods(
    release: str, version: str
) -> None:
    async with pod_group_harness(release=release) as harness:
        await harness.cluster.apply(group("g", FROM_TEMPLATE, version=version))

        async def get_status() -> JSON | None:
            pod_group = await get_or_none(harness.cluster, POD_GROUPS[version], "g")
            return (pod_group or {}).get("status")

        status = await harness.wait_until("the group's status", get_status)
        [entry] = status["resourceClaimStatuses"]
        assert entry["name"] == "t0"
        claim_object = await get_or_none(harness.cluster, CLAIMS, entry["resourceClaimName"])
        assert claim_object is not None
        assert claim_object["metadata"]["name"].startswith("g-t0-")
        [owner] = claim_object["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("PodGroup", "g")
        assert owner["apiVersion"] == f"scheduling.k8s.io/{version}"
        assert not (claim_object.get("status") or {}).get("allocation"), (
            "the claim is not allocated before the first pod"
        )
        await harness.cluster.apply(member("p", templates=["t"]), member("q", templates=["t"]))
        for name in ("p", "q"):

            async def status_names_claim(name: str = name) -> bool:
                current = await harness.cluster.pod(name)
                return bool(current and current["status"].get("resourceClaimStatuses") == [entry])

            await harness.wait_until(f"{name} to have the claim in its status", status_names_claim)
        assert len([c for c in harness.cluster.claims() if c["metadata"]["name"] != "c"]) == 1


async def test_a_pod_entry_that_differs_from_the_groups_entry_gets_its_own_claim() -> None:
    async with pod_group_harness() as harness:
        other = {"name": "other", "resourceClaimTemplateName": "t"}
        await harness.cluster.apply(group("g", other), member("p", templates=["t"]))

        async def pod_owns_claim() -> bool:
            return any(
                o["name"] == "p" for c in harness.cluster.claims() for o in c["metadata"].get("ownerReferences") or []
            )

        await harness.wait_until("the pod's own claim", pod_owns_claim)


async def test_a_missing_template_is_reported_on_the_group_until_it_exists() -> None:
    async with pod_group_harness() as harness:
        await harness.cluster.apply(group("g", {"name": "t0", "resourceClaimTemplateName": "late"}))
        missing = 'resource claim template "late": resourceclaimtemplate.resource.k8s.io "late" not found'
        await harness.wait_for_event("g", f"FailedResourceClaimCreation: PodGroupResourceClaim t0: {missing}")
        await harness.cluster.apply(template("late"))
        await harness.claim_of()


async def test_a_pod_with_a_missing_group_reports_it_and_is_scheduled_after_its_creation() -> None:
    async with with_devices() as (harness, _):
        await harness.cluster.apply(member("alone"), member("p", templates=["t"]))
        await harness.wait_for_event("alone", 'podgroup.scheduling.k8s.io "g" not found')
        await harness.wait_for_event("p", 'PodResourceClaim t0: podgroup.scheduling.k8s.io "g" not found')
        await harness.cluster.apply(group("g", FROM_TEMPLATE))
        await harness.wait_until_running("alone")
        await harness.wait_until_running("p")


# --- scheduling, preparing, releasing -------------------------------------------------------------------


async def test_pods_of_a_group_share_one_device_and_each_group_has_its_own() -> None:
    async with with_devices() as (harness, plugin):
        await harness.cluster.apply(group("g", FROM_TEMPLATE), group("h", FROM_TEMPLATE))
        await harness.cluster.apply(
            *(member(f"{group_name}{i}", group_name, templates=["t"]) for group_name in "gh" for i in range(2))
        )
        for name in ("g0", "g1", "h0", "h1"):
            await harness.wait_until_running(name)
        claims = {name: await harness.claim_of(name) for name in "gh"}
        devices = {n: c["status"]["allocation"]["devices"]["results"][0]["device"] for n, c in claims.items()}
        assert sorted(devices.values()) == ["d0", "d1"]
        assert consumers(claims["g"]) == FOR_GROUP
        prepared = {uid for m, uids in plugin.calls if m == "prepare" for uid in uids}
        assert prepared == {c["metadata"]["uid"] for c in claims.values()}


async def test_a_claim_named_by_a_group_is_reserved_for_the_group_and_for_other_pods() -> None:
    async with with_devices() as (harness, _):
        await harness.cluster.apply(group("g", BY_NAME), member("p", claims=["c"]), member("q", claims=["c"]))
        await harness.wait_until_running("p")
        await harness.wait_until_running("q")
        assert consumers(await harness.wait_until_reserved("c")) == FOR_GROUP
        await harness.cluster.apply(pod("stranger", claims=["c"]))
        await harness.wait_until_running("stranger")
        assert sorted(consumers(await harness.wait_until_reserved("c"))) == [("", "pods", "stranger"), *FOR_GROUP]


async def test_a_claim_of_a_group_serves_more_pods_than_the_limit_of_consumers() -> None:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "1000"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    async with pod_group_harness() as harness:
        await harness.cluster.apply({**node, "status": {"allocatable": amounts, "capacity": amounts}})
        await harness.cluster.apply(slice_of("node-1", ["d0"]), group("g", FROM_TEMPLATE))
        names = [f"p{i}" for i in range(260)]
        await harness.cluster.apply(*(member(name, templates=["t"]) for name in names))
        await harness.wait_until_bound(*names)
        assert consumers(await harness.claim_of()) == FOR_GROUP


async def test_the_claim_of_a_group_is_deleted_with_the_group_not_with_its_pods() -> None:
    async with with_devices() as (harness, plugin):
        await harness.cluster.apply(group("g", FROM_TEMPLATE, BY_NAME))
        await harness.cluster.apply(member("p", templates=["t"], claims=["c"]), member("q", templates=["t"]))
        await harness.wait_until_running("p")
        await harness.wait_until_running("q")
        await harness.delete("p", grace=0)
        await harness.wait_until_deleted("p")
        await harness.wait_until("the unprepare call for the claim of p", lambda: plugin.count("unprepare") == 1)
        await harness.delete("q", grace=0)
        await harness.wait_until_deleted("q")
        await harness.wait_until("the second unprepare call", lambda: plugin.count("unprepare") == 2)
        group_claim = await harness.claim_of()
        assert consumers(group_claim) == FOR_GROUP
        await harness.cluster.client.delete(GROUPS, "g", "default")

        async def claims_are_released() -> bool:
            named_claim = await get_or_none(harness.cluster, CLAIMS, "c")
            is_deleted = await get_or_none(harness.cluster, CLAIMS, group_claim["metadata"]["name"]) is None
            return is_deleted and named_claim is not None and named_claim["status"] == {}

        await harness.wait_until("the release of the claims", claims_are_released)


async def test_a_group_is_not_deleted_while_unfinished_pods_name_it() -> None:
    async with with_devices() as (harness, _):
        await harness.cluster.apply(group("g", FROM_TEMPLATE), member("p", templates=["t"]))
        await harness.wait_until_running("p")

        async def has_finalizer() -> bool:
            return "scheduling.k8s.io/podgroup-protection" in ((await harness.group()) or {})["metadata"].get(
                "finalizers", []
            )

        await harness.wait_until("the group to be protected", has_finalizer)
        await harness.cluster.client.delete(GROUPS, "g", "default")
        terminating = await harness.group()
        assert terminating is not None
        assert terminating["metadata"]["deletionTimestamp"]
        assert consumers(await harness.claim_of()) == FOR_GROUP
        await harness.delete("p", grace=0)

        async def group_is_deleted() -> bool:
            return await harness.group() is None

        await harness.wait_until("the deletion of the group", group_is_deleted)


async def test_the_claim_of_a_directly_bound_pod_is_reserved_for_its_group() -> None:
    async with with_devices() as (harness, _):
        await harness.cluster.apply(group("g", BY_NAME), pod("first", claims=["c"]))
        await harness.wait_until_running("first")
        await harness.cluster.apply(member("p", claims=["c"], nodeName="node-1"))
        await harness.wait_until_running("p")
        assert sorted(consumers(await harness.wait_until_reserved("c"))) == [("", "pods", "first"), *FOR_GROUP]


async def test_a_gang_waits_and_an_event_reports_the_reason() -> None:
    async with with_devices() as (harness, _):
        await harness.cluster.apply(group("g", FROM_TEMPLATE, schedulingPolicy={"gang": {"minCount": 2}}))
        await harness.cluster.apply(member("p", templates=["t"]))
        await harness.wait_for_event("p", "schedulingPolicy gang of PodGroup g: pods are placed one by one")
        await harness.assert_pending("p")


async def test_a_taint_on_a_groups_device_evicts_its_pods() -> None:
    async with with_devices() as (harness, _):
        await harness.cluster.apply(group("g", FROM_TEMPLATE), member("other"))
        await harness.cluster.apply(member("p", templates=["t"]), member("q", templates=["t"]))
        for name in ("p", "q", "other"):
            await harness.wait_until_running(name)
        taint = {"key": f"{DRIVER}/bad", "effect": "NoExecute"}
        devices = [{"name": d, "taints": [taint]} for d in ("d0", "d1")]
        await harness.cluster.client.patch(SLICES, "s-node-1", {"spec": {"devices": devices}})
        await harness.wait_until_deleted("p")
        await harness.wait_until_deleted("q")
        await harness.wait_until_running("other")


async def test_a_group_releases_a_device_that_never_becomes_ready() -> None:
    async with pod_group_harness("node-1") as harness, harness.plugin() as _:
        await harness.wait_until_registered()
        conditions = {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
        await harness.cluster.apply(slice_of("node-1", [{"name": "d0", **conditions}]), group("g", FROM_TEMPLATE))
        await harness.cluster.apply(member("p", templates=["t"]))
        claim_object = await harness.wait_until_reserved((await harness.claim_of())["metadata"]["name"])
        assert consumers(claim_object) == FOR_GROUP
        failed = {
            "type": "broken",
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": claim_object["metadata"]["creationTimestamp"],
        }
        device = {"driver": DRIVER, "pool": "node-1", "device": "d0", "conditions": [failed]}
        await harness.cluster.client.patch(
            CLAIMS, claim_object["metadata"]["name"], {"status": {"devices": [device]}}, "default", "status"
        )

        async def reservation_is_removed() -> bool:
            current = await get_or_none(harness.cluster, CLAIMS, claim_object["metadata"]["name"])
            before = claim_object["status"]["allocation"]["allocationTimestamp"]
            after = ((current or {}).get("status") or {}).get("allocation")
            return after is None or after["allocationTimestamp"] != before or not consumers(current or {})

        await harness.wait_until("the removal of the reservation", reservation_is_removed)


async def test_all_pods_of_a_group_run_on_the_node_of_the_first_pod() -> None:
    """A group's claim has one allocation, so all of its pods run on the node of the device."""
    async with pod_group_harness("node-1", "node-2") as harness:
        await harness.cluster.apply(slice_of("node-2", ["d0"]), group("g", FROM_TEMPLATE))
        await harness.cluster.apply(*(member(f"p{i}", templates=["t"]) for i in range(4)))
        await harness.wait_until_bound(*(f"p{i}" for i in range(4)))
        assert {(await harness.cluster.pod(f"p{i}") or {})["spec"]["nodeName"] for i in range(4)} == {"node-2"}
        assert await harness.cluster.client.get(NODES, "node-1")
