"""Claims of PodGroups (KEP-5729): made once, reserved for the group, allocated once, given back when the group goes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, SLICES
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.informer import POD_GROUPS
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from tests.helpers.fake_plugin import FakePlugin
from tests.helpers.objects import DRIVER, claim, device_class, pod, slice_of, template
from tests.localcluster.kubelet.test_kubelet import TIMERS, Room

JSON = dict[str, Any]
GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
GROUPS = POD_GROUPS["v1alpha2"]
EACH = pytest.mark.parametrize(("release", "version"), [("1.36", "v1alpha2"), ("1.37", "v1beta1")])
FROM_TEMPLATE = {"name": "t0", "resourceClaimTemplateName": "t"}
BY_NAME = {"name": "c0", "resourceClaimName": "c"}


def group(name: str = "g", *claims: JSON, version: str = "v1alpha2", **spec: Any) -> JSON:
    body = {"schedulingPolicy": {"basic": {}}} | ({"resourceClaims": list(claims)} if claims else {}) | spec
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": {"name": name}, "spec": body}


def member(name: str, of: str = "g", **how: Any) -> JSON:
    return pod(name, schedulingGroup={"podGroupName": of}, **how)


class GroupRoom(Room):
    async def group(self, name: str = "g") -> JSON | None:
        return await found(self.cluster, GROUPS, name)

    async def claim_of(self, name: str = "g") -> JSON:
        """The one claim that was made for a group."""

        async def made() -> JSON | None:
            one = await self.group(name)
            statuses = (one or {}).get("status", {}).get("resourceClaimStatuses") or [{}]
            known = statuses[0].get("resourceClaimName")
            return await found(self.cluster, CLAIMS, known) if known else None

        answer: JSON = await self.until(f"the claim of group {name}", made)
        return answer

    async def reserved(self, name: str) -> JSON:
        async def check() -> JSON | None:
            one = await found(self.cluster, CLAIMS, name)
            return one if one and (one.get("status") or {}).get("reservedFor") else None

        answer: JSON = await self.until(f"{name} to be reserved", check)
        return answer

    async def bound(self, *names: str) -> None:
        for name in names:

            async def check(name: str = name) -> bool:
                return bool(((await self.cluster.pod(name)) or {"spec": {}})["spec"].get("nodeName"))

            await self.until(f"{name} to have a node", check)


async def found(cluster: LocalCluster, resource: Resource, name: str) -> JSON | None:
    try:
        return await cluster.client.get(resource, name, "default")
    except NotFoundError:
        return None


@contextlib.asynccontextmanager
async def room(*nodes: str, gates: Mapping[str, bool] | None = None, release: str = "1.36") -> AsyncIterator[GroupRoom]:
    gates = GATES if gates is None else gates
    async with LocalCluster(nodes, timers=TIMERS, features=Features.of(release, gates)) as cluster:
        await cluster.apply(device_class(), template(), claim())
        yield GroupRoom(cluster)


@contextlib.asynccontextmanager
async def with_devices() -> AsyncIterator[tuple[GroupRoom, FakePlugin]]:
    """A node with a plugin and two devices."""
    async with room("node-1") as r, r.plugin() as plugin:
        await r.registered()
        await r.cluster.apply(slice_of("node-1", ["d0", "d1"]))
        yield r, plugin


def consumers(one: JSON) -> list[tuple[str, str, str]]:
    entries = (one.get("status") or {}).get("reservedFor") or []
    return [(e.get("apiGroup", ""), e["resource"], e["name"]) for e in entries]


FOR_GROUP = [("scheduling.k8s.io", "podgroups", "g")]


# --- the API ----------------------------------------------------------------------------------------


@EACH
async def test_pod_groups_are_served_only_where_their_gate_is_on(release: str, version: str) -> None:
    async with room(gates={}, release=release) as r:
        with pytest.raises(ApiError, match="404"):
            await r.cluster.client.list(POD_GROUPS[version])
    async with room(release=release) as r:
        [made] = await r.cluster.apply(group("g", FROM_TEMPLATE, version=version))
        assert made["spec"]["resourceClaims"] == [FROM_TEMPLATE]
        assert [g["metadata"]["name"] for g in (await r.cluster.client.list(POD_GROUPS[version]))["items"]] == ["g"]


async def test_without_its_gate_a_pod_loses_its_group_and_runs_alone() -> None:
    async with room("node-1", gates={}) as r:
        [made] = await r.cluster.apply(member("p"))
        assert "schedulingGroup" not in made["spec"]
        await r.runs()


async def test_without_the_gate_of_claims_a_group_loses_them_and_each_pod_has_a_claim_of_its_own() -> None:
    async with room(gates={"GenericWorkload": True}) as r:
        [made] = await r.cluster.apply(group("g", FROM_TEMPLATE))
        assert "resourceClaims" not in made["spec"]
        await r.cluster.apply(member("p", templates=["t"]), member("q", templates=["t"]))

        async def two() -> bool:
            owners = [c["metadata"].get("ownerReferences", [{}])[0].get("name") for c in r.cluster.claims()]
            return {"p", "q"} <= set(owners)

        await r.until("a claim for each pod", two)


async def test_fields_of_gates_that_are_off_are_dropped_as_by_the_real_strategy() -> None:
    async with room() as r:
        [made] = await r.cluster.apply(
            group(disruptionMode="PodGroup", priority=3, schedulingConstraints={"topology": []})
        )
        assert made["spec"] == {"schedulingPolicy": {"basic": {}}}


@pytest.mark.parametrize(
    ("spec", "told"),
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
async def test_a_group_that_breaks_a_rule_is_refused(spec: JSON, told: str) -> None:
    async with room() as r:
        with pytest.raises(ApiError, match=r"Invalid value|Too many") as e:
            await r.cluster.client.create(GROUPS, group(**spec), "default")
        assert told in str(e.value)


async def test_a_groups_spec_never_changes_and_its_status_names_its_own_claims() -> None:
    async with room() as r:
        [made] = await r.cluster.apply(group("g", BY_NAME))
        with pytest.raises(ApiError, match="field is immutable"):
            await r.cluster.client.update(GROUPS, {**made, "spec": group("g", FROM_TEMPLATE)["spec"]})
        status = {"resourceClaimStatuses": [{"name": "other", "resourceClaimName": "x"}]}
        with pytest.raises(ApiError, match=r"must match the name of an entry in `spec\.resourceClaims`"):
            await r.cluster.client.patch(GROUPS, "g", {"status": status}, "default", "status")


@pytest.mark.parametrize(
    ("release", "gates", "told"),
    [
        ("1.36", {"DRAWorkloadResourceClaims": True}, "needs GenericWorkload, which is off"),
        ("1.35", {"GenericWorkload": True}, "in 1.35 they are part of Workloads"),
        ("1.35", {"DRAWorkloadResourceClaims": True}, "it was added in 1.36"),
    ],
)
def test_gates_that_do_not_go_together_are_reported(release: str, gates: dict[str, bool], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Features.of(release, gates)


async def test_a_workload_is_refused_with_what_to_do_instead() -> None:
    async with room() as r:
        body = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "Workload", "metadata": {"name": "w"}, "spec": {}}
        with pytest.raises(ApiError, match="create the PodGroups"):
            await r.cluster.client.create(Resource("scheduling.k8s.io", "v1alpha2", "workloads", True), body, "default")


# --- the claim controller ---------------------------------------------------------------------------


@EACH
async def test_one_claim_is_made_for_a_group_and_its_pods_are_informed_of_it(release: str, version: str) -> None:
    async with room(release=release) as r:
        await r.cluster.apply(group("g", FROM_TEMPLATE, version=version))

        async def made() -> JSON | None:
            one = await found(r.cluster, POD_GROUPS[version], "g")
            return (one or {}).get("status")

        status = await r.until("the group's status", made)
        [entry] = status["resourceClaimStatuses"]
        assert entry["name"] == "t0"
        one = await found(r.cluster, CLAIMS, entry["resourceClaimName"])
        assert one is not None
        assert one["metadata"]["name"].startswith("g-t0-")
        [owner] = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("PodGroup", "g")
        assert owner["apiVersion"] == f"scheduling.k8s.io/{version}"
        assert not (one.get("status") or {}).get("allocation"), "it is allocated for the first pod"
        await r.cluster.apply(member("p", templates=["t"]), member("q", templates=["t"]))
        for name in ("p", "q"):

            async def told(name: str = name) -> bool:
                here = await r.cluster.pod(name)
                return bool(here and here["status"].get("resourceClaimStatuses") == [entry])

            await r.until(f"{name} to know the claim", told)
        assert len([c for c in r.cluster.claims() if c["metadata"]["name"] != "c"]) == 1


async def test_an_entry_that_is_not_the_groups_in_every_field_is_the_pods_own() -> None:
    async with room() as r:
        other = {"name": "other", "resourceClaimTemplateName": "t"}
        await r.cluster.apply(group("g", other), member("p", templates=["t"]))

        async def own() -> bool:
            return any(o["name"] == "p" for c in r.cluster.claims() for o in c["metadata"].get("ownerReferences") or [])

        await r.until("the pod's own claim", own)


async def test_a_template_that_is_missing_is_reported_about_the_group_and_comes_later() -> None:
    async with room() as r:
        await r.cluster.apply(group("g", {"name": "t0", "resourceClaimTemplateName": "late"}))
        missing = 'resource claim template "late": resourceclaimtemplate.resource.k8s.io "late" not found'
        await r.told("g", f"FailedResourceClaimCreation: PodGroupResourceClaim t0: {missing}")
        await r.cluster.apply(template("late"))
        await r.claim_of()


async def test_a_pod_whose_group_is_missing_waits_with_a_sentence_and_is_scheduled_when_it_comes() -> None:
    async with with_devices() as (r, _):
        await r.cluster.apply(member("alone"), member("p", templates=["t"]))
        await r.told("alone", 'podgroup.scheduling.k8s.io "g" not found')
        await r.told("p", 'PodResourceClaim t0: podgroup.scheduling.k8s.io "g" not found')
        await r.cluster.apply(group("g", FROM_TEMPLATE))
        await r.runs("alone")
        await r.runs("p")


# --- scheduling, preparing, giving back -------------------------------------------------------------


async def test_pods_of_a_group_share_one_device_and_another_group_has_another() -> None:
    async with with_devices() as (r, plugin):
        await r.cluster.apply(group("g", FROM_TEMPLATE), group("h", FROM_TEMPLATE))
        await r.cluster.apply(*(member(f"{of}{i}", of, templates=["t"]) for of in "gh" for i in range(2)))
        for name in ("g0", "g1", "h0", "h1"):
            await r.runs(name)
        claims = {name: await r.claim_of(name) for name in "gh"}
        devices = {n: c["status"]["allocation"]["devices"]["results"][0]["device"] for n, c in claims.items()}
        assert sorted(devices.values()) == ["d0", "d1"]
        assert consumers(claims["g"]) == FOR_GROUP
        prepared = {uid for m, uids in plugin.calls if m == "prepare" for uid in uids}
        assert prepared == {c["metadata"]["uid"] for c in claims.values()}


async def test_a_claim_that_a_group_names_is_reserved_for_the_group_and_others_beside_it() -> None:
    async with with_devices() as (r, _):
        await r.cluster.apply(group("g", BY_NAME), member("p", claims=["c"]), member("q", claims=["c"]))
        await r.runs("p")
        await r.runs("q")
        assert consumers(await r.reserved("c")) == FOR_GROUP
        await r.cluster.apply(pod("stranger", claims=["c"]))
        await r.runs("stranger")
        assert sorted(consumers(await r.reserved("c"))) == [("", "pods", "stranger"), *FOR_GROUP]


async def test_one_claim_serves_more_pods_than_it_has_room_for_consumers() -> None:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "1000"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    async with room() as r:
        await r.cluster.apply({**node, "status": {"allocatable": amounts, "capacity": amounts}})
        await r.cluster.apply(slice_of("node-1", ["d0"]), group("g", FROM_TEMPLATE))
        names = [f"p{i}" for i in range(260)]
        await r.cluster.apply(*(member(name, templates=["t"]) for name in names))
        await r.bound(*names)
        assert consumers(await r.claim_of()) == FOR_GROUP


async def test_the_claim_of_a_group_outlives_its_pods_and_goes_with_the_group() -> None:
    async with with_devices() as (r, plugin):
        await r.cluster.apply(group("g", FROM_TEMPLATE, BY_NAME))
        await r.cluster.apply(member("p", templates=["t"], claims=["c"]), member("q", templates=["t"]))
        await r.runs("p")
        await r.runs("q")
        await r.delete("p", grace=0)
        await r.gone("p")
        await r.until("the claim that p alone used to be unprepared", lambda: plugin.count("unprepare") == 1)
        await r.delete("q", grace=0)
        await r.gone("q")
        await r.until("the other to be unprepared", lambda: plugin.count("unprepare") == 2)
        made = await r.claim_of()
        assert consumers(made) == FOR_GROUP
        await r.cluster.client.delete(GROUPS, "g", "default")

        async def free() -> bool:
            named = await found(r.cluster, CLAIMS, "c")
            gone = await found(r.cluster, CLAIMS, made["metadata"]["name"]) is None
            return gone and named is not None and named["status"] == {}

        await r.until("the claims to be given back", free)


async def test_a_group_stays_while_pods_that_have_not_finished_name_it() -> None:
    async with with_devices() as (r, _):
        await r.cluster.apply(group("g", FROM_TEMPLATE), member("p", templates=["t"]))
        await r.runs("p")

        async def protected() -> bool:
            return "scheduling.k8s.io/podgroup-protection" in ((await r.group()) or {})["metadata"].get(
                "finalizers", []
            )

        await r.until("the group to be protected", protected)
        await r.cluster.client.delete(GROUPS, "g", "default")
        going = await r.group()
        assert going is not None
        assert going["metadata"]["deletionTimestamp"]
        assert consumers(await r.claim_of()) == FOR_GROUP
        await r.delete("p", grace=0)

        async def gone() -> bool:
            return await r.group() is None

        await r.until("the group to go", gone)


async def test_a_pod_bound_by_hand_has_its_claim_reserved_for_its_group() -> None:
    async with with_devices() as (r, _):
        await r.cluster.apply(group("g", BY_NAME), pod("first", claims=["c"]))
        await r.runs("first")
        await r.cluster.apply(member("p", claims=["c"], nodeName="node-1"))
        await r.runs("p")
        assert sorted(consumers(await r.reserved("c"))) == [("", "pods", "first"), *FOR_GROUP]


async def test_a_gang_waits_with_a_sentence() -> None:
    async with with_devices() as (r, _):
        await r.cluster.apply(group("g", FROM_TEMPLATE, schedulingPolicy={"gang": {"minCount": 2}}))
        await r.cluster.apply(member("p", templates=["t"]))
        await r.told("p", "schedulingPolicy gang of PodGroup g: pods are placed one by one")
        await r.waits("p")


async def test_a_taint_on_a_groups_device_evicts_the_pods_that_use_it() -> None:
    async with with_devices() as (r, _):
        await r.cluster.apply(group("g", FROM_TEMPLATE), member("other"))
        await r.cluster.apply(member("p", templates=["t"]), member("q", templates=["t"]))
        for name in ("p", "q", "other"):
            await r.runs(name)
        taint = {"key": f"{DRIVER}/bad", "effect": "NoExecute"}
        devices = [{"name": d, "taints": [taint]} for d in ("d0", "d1")]
        await r.cluster.client.patch(SLICES, "s-node-1", {"spec": {"devices": devices}})
        await r.gone("p")
        await r.gone("q")
        await r.runs("other")


async def test_a_group_whose_device_never_becomes_ready_gives_it_back() -> None:
    async with room("node-1") as r, r.plugin() as _:
        await r.registered()
        conditions = {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
        await r.cluster.apply(slice_of("node-1", [{"name": "d0", **conditions}]), group("g", FROM_TEMPLATE))
        await r.cluster.apply(member("p", templates=["t"]))
        one = await r.reserved((await r.claim_of())["metadata"]["name"])
        assert consumers(one) == FOR_GROUP
        failed = {
            "type": "broken",
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": one["metadata"]["creationTimestamp"],
        }
        device = {"driver": DRIVER, "pool": "node-1", "device": "d0", "conditions": [failed]}
        await r.cluster.client.patch(
            CLAIMS, one["metadata"]["name"], {"status": {"devices": [device]}}, "default", "status"
        )

        async def taken_back() -> bool:
            now = await found(r.cluster, CLAIMS, one["metadata"]["name"])
            before = one["status"]["allocation"]["allocationTimestamp"]
            after = ((now or {}).get("status") or {}).get("allocation")
            return after is None or after["allocationTimestamp"] != before or not consumers(now or {})

        await r.until("the reservation to be taken back", taken_back)


async def test_nodes_are_those_of_the_first_pod() -> None:
    """A group's claim has one allocation, so all of its pods go where the device is."""
    async with room("node-1", "node-2") as r:
        await r.cluster.apply(slice_of("node-2", ["d0"]), group("g", FROM_TEMPLATE))
        await r.cluster.apply(*(member(f"p{i}", templates=["t"]) for i in range(4)))
        await r.bound(*(f"p{i}" for i in range(4)))
        assert {(await r.cluster.pod(f"p{i}") or {})["spec"]["nodeName"] for i in range(4)} == {"node-2"}
        assert await r.cluster.client.get(NODES, "node-1")
