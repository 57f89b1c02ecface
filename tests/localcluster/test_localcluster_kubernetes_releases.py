"""The local cluster as Kubernetes 1.34 to 1.37: what each release serves, drops, schedules, and how its kubelet behaves."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NODES, PODS, SLICES
from dra_kubeletplugin.localcluster.apiserver import ApiServer
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.resourceapi.kubernetes_releases import RELEASES, Features, Stage, stage
from tests.helpers.objects import DRIVER, claim, claim_spec, device_class, pod, slice_of
from tests.localcluster.kubelet.test_kubelet import TIMERS, Room

JSON = dict[str, Any]
EACH = pytest.mark.parametrize("release", RELEASES)
KEY = "toy.example.com/sick"

# A slice's spec that uses a gate, and what of it the gate covers. What is left is a good slice.
SLICES_WITH: Mapping[str, tuple[JSON, tuple[str, ...]]] = {
    "DRADeviceTaints": ({"devices": [{"name": "d", "taints": [{"key": KEY, "effect": "NoSchedule"}]}]}, ("taints",)),
    "DRAPartitionableDevices": (
        {"devices": [{"name": "d", "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}]},
        ("consumesCounters",),
    ),
    "DRADeviceBindingConditions": (
        {
            "devices": [
                {"name": "d", "bindsToNode": True, "bindingConditions": ["a"], "bindingFailureConditions": ["b"]}
            ]
        },
        ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    ),
    "DRAConsumableCapacity": (
        {
            "devices": [
                {
                    "name": "d",
                    "allowMultipleAllocations": True,
                    "capacity": {"m": {"value": "4", "requestPolicy": {"default": "1"}}},
                }
            ]
        },
        ("allowMultipleAllocations", "requestPolicy"),
    ),
    "DRAPartitionableDevicesType": ({"partitionTypeAttribute": f"{DRIVER}/profile"}, ("partitionTypeAttribute",)),
    "DRAOptionalNodeOperations": ({"skipNodeOperations": ["*"]}, ("skipNodeOperations",)),
    "DRADeviceCompatibilityGroups": (
        {
            "devices": [
                {
                    "name": "d",
                    "consumesCounters": [
                        {"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["mig"]}
                    ],
                }
            ]
        },
        ("compatibilityGroups",),
    ),
}
ALSO = {
    "DRADeviceCompatibilityGroups": ("DRAPartitionableDevices",),
    "DRAPartitionableDevicesType": ("DRAPartitionableDevices",),
}


def made(spec: JSON) -> JSON:
    return {**(s := slice_of("node-1", ["d"])), "spec": {**s["spec"], **copy.deepcopy(spec)}}


def names(value: Any) -> set[str]:
    """Every name of a field anywhere in an object."""
    if isinstance(value, dict):
        return set(value) | {n for v in value.values() for n in names(v)}
    return {n for v in value for n in names(v)} if isinstance(value, list) else set()


@contextlib.asynccontextmanager
async def server(features: Features, storage: Any = None) -> AsyncIterator[tuple[ApiServer, KubeClient]]:
    api = ApiServer(storage=storage, features=features)
    await api.start()
    try:
        async with KubeClient(api.config) as client:
            yield api, client
    finally:
        await api.close()


# --- what is served ---------------------------------------------------------------------------------


@EACH
async def test_a_release_states_its_version_and_serves_the_stable_version_alone(release: str) -> None:
    async with LocalCluster(features=Features.of(release)) as cluster:
        version = await cluster.client.call("GET", "/version", None)
        assert (version["major"], version["minor"]) == ("1", release[2:])
        assert version["gitVersion"].startswith(f"v{release}.")
        node = await cluster.client.get(NODES, "node-1")
        assert node["status"]["nodeInfo"]["kubeletVersion"] == version["gitVersion"]
        group = await cluster.client.call("GET", "/apis/resource.k8s.io", None)
        assert [v["version"] for v in group["versions"]] == ["v1"]
        with pytest.raises(ApiError, match="404"):
            await cluster.client.list(Resource("resource.k8s.io", "v1beta1", "resourceslices"))


@pytest.mark.parametrize(
    ("release", "versions"),
    [
        ("1.34", {"v1alpha3"}),
        ("1.35", {"v1alpha3"}),
        ("1.36", {"v1beta2", "v1alpha3"}),
        ("1.37", {"v1", "v1beta2", "v1alpha3"}),
    ],
)
async def test_rules_of_taints_are_served_in_the_versions_of_the_release(release: str, versions: set[str]) -> None:
    async with server(Features.of(release, runtime_config={"api/all": True})) as (_, client):
        for version in ("v1", "v1beta2", "v1beta1", "v1alpha3"):
            found = await client.call("GET", f"/apis/resource.k8s.io/{version}", None)
            assert ("devicetaintrules" in {r["name"] for r in found["resources"]}) == (version in versions)


@EACH
async def test_slices_can_be_selected_by_their_pool_since_1_37(release: str) -> None:
    async with server(Features.of(release)) as (_, client):
        await client.create(SLICES, slice_of("node-1", ["d"]))
        await client.create(SLICES, slice_of("node-2", ["d"]))
        if release == "1.37":
            found = await client.list(SLICES, fields="spec.pool.name=node-2")
            assert [s["metadata"]["name"] for s in found["items"]] == ["s-node-2"]
        else:
            with pytest.raises(ApiError, match="field label not supported: spec"):
                await client.list(SLICES, fields="spec.pool.name=node-2")


# --- what is dropped --------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("gate", SLICES_WITH)
async def test_a_field_of_a_slice_is_kept_where_its_gate_is_on_in_the_release(release: str, gate: str) -> None:
    spec, fields = SLICES_WITH[gate]
    async with server(features := Features.of(release)) as (_, client):
        echo = await client.create(SLICES, made(spec))
        kept = names(echo["spec"]).intersection(fields)
        assert kept == (set(fields) if features.has(gate) else set())


@pytest.mark.parametrize("gate", SLICES_WITH)
async def test_an_alpha_gate_that_is_switched_on_keeps_its_fields_and_what_used_them_keeps_them_when_it_is_off(
    gate: str,
) -> None:
    spec, fields = SLICES_WITH[gate]
    release = next(
        r for r in reversed(RELEASES) if stage(gate, r) is not Stage.ABSENT and stage(gate, r) is not Stage.STABLE
    )
    if stage(gate, "1.37") is Stage.STABLE:
        release = "1.36"
    on = Features.of(release, dict.fromkeys((gate, *ALSO.get(gate, ())), True))
    async with server(on) as (api, client):
        used = await client.create(SLICES, made(spec))
        assert names(used["spec"]).issuperset(fields)
        bare = await client.create(SLICES, slice_of("node-2", ["d"]))
        async with server(Features.of(release, {gate: False}), api.storage) as (_, later):
            changed = {**used, "spec": {**used["spec"], "pool": {**used["spec"]["pool"], "generation": 2}}}
            assert names((await later.update(SLICES, changed))["spec"]).issuperset(fields), "in use"
            changed = {**bare, "spec": {**bare["spec"], **copy.deepcopy(spec)}}
            assert names((await later.update(SLICES, changed))["spec"]).isdisjoint(fields), "not used before"


@EACH
async def test_a_field_that_a_release_has_never_heard_of_is_an_error_to_strict_readers_only(release: str) -> None:
    spec = {"skipNodeOperations": ["*"]}
    async with server(Features.of(release)) as (_, client):
        path = f"{SLICES.path()}?fieldValidation=Strict"
        if release == "1.37":
            assert "skipNodeOperations" not in (await client.call("POST", path, made(spec)))["spec"]
            return
        with pytest.raises(ApiError, match=r'strict decoding error: unknown field "spec.skipNodeOperations"'):
            await client.call("POST", path, made(spec))
        assert "skipNodeOperations" not in (await client.create(SLICES, made(spec)))["spec"]


@EACH
async def test_an_attribute_of_which_nothing_is_left_is_refused(release: str) -> None:
    spec = {"devices": [{"name": "d", "attributes": {"n": {"ints": [1, 2]}}}]}
    gates = {"DRAListTypeAttributes": True} if release >= "1.36" else {}
    async with server(Features.of(release)) as (_, client):
        with pytest.raises(ApiError, match="exactly one value must be specified"):
            await client.create(SLICES, made(spec))
    async with server(Features.of(release, gates)) as (_, client):
        if gates:
            assert "ints" in names(await client.create(SLICES, made(spec)))


async def test_the_effect_none_came_with_1_35() -> None:
    spec = {"devices": [{"name": "d", "taints": [{"key": KEY, "effect": "None"}]}]}
    for release in ("1.34", "1.35"):
        async with server(Features.of(release, {"DRADeviceTaints": True})) as (_, client):
            if release == "1.35":
                assert (await client.create(SLICES, made(spec)))["spec"]["devices"][0]["taints"]
            else:
                with pytest.raises(ApiError, match='Unsupported value: "None"'):
                    await client.create(SLICES, made(spec))


@EACH
async def test_a_claim_requests_what_the_release_knows(release: str) -> None:
    spec = claim_spec()
    exactly = spec["devices"]["requests"][0]["exactly"]
    exactly["tolerations"] = [{"key": KEY, "operator": "Exists"}]
    exactly["capacity"] = {"requests": {"m": "1"}}
    async with server(features := Features.of(release)) as (_, client):
        echo = await client.create(CLAIMS, {**claim("c", spec), "metadata": {"name": "c", "namespace": "default"}})
        found = names(echo["spec"])
        assert ("tolerations" in found) == features.has("DRADeviceTaints")
        assert ("capacity" in found) == features.has("DRAConsumableCapacity")
        result = {"request": "device", "driver": DRIVER, "pool": "p", "device": "d", "skipNodeOperations": ["*"]}
        result |= {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]}
        status = {"allocation": {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}}
        kept = names((await client.update(CLAIMS, {**echo, "status": status}, "status"))["status"])
        assert (
            ("bindingConditions" in kept)
            == ("allocationTimestamp" in kept)
            == features.has("DRADeviceBindingConditions")
        )
        assert "skipNodeOperations" not in kept


# --- what is scheduled ------------------------------------------------------------------------------


@EACH
async def test_an_extended_resource_is_had_as_a_device_where_the_gate_is_on(release: str) -> None:
    name = f"{DRIVER}/gpu"
    async with LocalCluster(features=Features.of(release), timers=TIMERS) as cluster:
        given = device_class()
        await cluster.apply(
            {**given, "spec": {**given["spec"], "extendedResourceName": name}}, slice_of("node-1", ["d"])
        )
        stored = await cluster.client.get(CLASSES, "devices")
        on = cluster.features.has("DRAExtendedResource")
        assert ("extendedResourceName" in stored["spec"]) == on
        for resource, wanted in ((name, "explicit"), ("deviceclass.resource.kubernetes.io/devices", "implicit")):
            body = pod(wanted)
            body["spec"]["containers"][0]["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
            await cluster.apply(body)

        async def told() -> bool:
            if on:  # there is one device
                found = [await cluster.pod(n) or {} for n in ("explicit", "implicit")]
                return any(p.get("spec", {}).get("nodeName") for p in found)
            return all(any("Insufficient" in e for e in cluster.events(n)) for n in ("explicit", "implicit"))

        await cluster.wait("the scheduler's word", told)
        assert bool(cluster.claims()) == on


def counted(name: str, *groups: str) -> JSON:
    drawn = {"counterSet": "card", "counters": {"slots": {"value": "1"}}}
    return {"name": name, "consumesCounters": [drawn | ({"compatibilityGroups": list(groups)} if groups else {})]}


async def allocated(cluster: LocalCluster, *pods: JSON, bound: int) -> dict[str, JSON]:
    """Claim → its allocation, once so many of the pods have a node and the others were told why they have none."""
    names = {p["metadata"]["name"] for p in pods}
    await cluster.apply(*pods)

    async def told() -> bool:
        there = {p["metadata"]["name"] for p in (await cluster.client.list(PODS))["items"] if p["spec"].get("nodeName")}
        refused = [n for n in names - there if any("FailedScheduling" in e for e in cluster.events(n))]
        return len(names & there) >= bound and len(refused) == len(names - there)

    await cluster.wait(f"the scheduler's word on {sorted(names)}", told)
    return {c["metadata"]["name"]: c["status"]["allocation"] for c in cluster.claims() if c["status"].get("allocation")}


@pytest.mark.parametrize("on", [True, False])
async def test_devices_of_one_card_go_together_only_where_they_have_a_compatibility_group_in_common(on: bool) -> None:
    gates = {"DRADeviceCompatibilityGroups": on}
    async with LocalCluster(features=Features.of("1.37", gates), timers=TIMERS) as cluster:
        devices = [counted("a", "mig", "x"), counted("b", "vgpu"), counted("c", "x", "vgpu"), counted("d")]
        sets = slice_of("node-1", [], name="s-0")
        sets["spec"] |= {"sharedCounters": [{"name": "card", "counters": {"slots": {"value": "9"}}}]}
        del sets["spec"]["devices"]
        parts = slice_of("node-1", devices, name="s-1")
        for one in (sets, parts):
            one["spec"]["pool"]["resourceSliceCount"] = 2
        await cluster.apply(device_class(), sets, parts, *(claim(f"c{i}") for i in range(4)))
        pods = [pod(f"p{i}", claims=[f"c{i}"]) for i in range(4)]
        found = await allocated(cluster, *pods, bound=2 if on else 4)
        taken = sorted(r["device"] for a in found.values() for r in a["devices"]["results"])
        assert taken == (["a", "c"] if on else ["a", "b", "c", "d"])


@pytest.mark.parametrize(("release", "taken"), [("1.36", "1"), ("1.37", "400m")])
async def test_steps_of_a_range_are_counted_in_thousandths_since_1_37(release: str, taken: str) -> None:
    policy = {"default": "200m", "validRange": {"min": "200m", "max": "1", "step": "100m"}}
    shared = {
        "name": "d",
        "allowMultipleAllocations": True,
        "capacity": {"cores": {"value": "1", "requestPolicy": policy}},
    }
    async with LocalCluster(features=Features.of(release), timers=TIMERS) as cluster:
        spec = claim_spec()
        spec["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"cores": "350m"}}
        await cluster.apply(device_class(), slice_of("node-1", [shared]), claim("c", spec))
        found = await allocated(cluster, pod("p", claims=["c"]), bound=1)
        [result] = found["c"]["devices"]["results"]
        assert result["consumedCapacity"] == {"cores": taken}


async def test_a_default_that_is_no_whole_number_of_steps_is_refused_since_1_37() -> None:
    policy = {"default": "250m", "validRange": {"min": "200m", "max": "1", "step": "100m"}}
    shared = {
        "name": "d",
        "allowMultipleAllocations": True,
        "capacity": {"cores": {"value": "1", "requestPolicy": policy}},
    }
    async with server(Features.of("1.36")) as (_, client):
        await client.create(SLICES, slice_of("node-1", [shared]))
    async with server(Features.of("1.37")) as (_, client):
        with pytest.raises(ApiError, match="value is not a multiple of a given step"):
            await client.create(SLICES, slice_of("node-1", [shared]))


async def test_lists_match_where_they_have_a_value_in_common() -> None:
    gates = {"DRAListTypeAttributes": True}
    async with LocalCluster(features=Features.of("1.36", gates), timers=TIMERS) as cluster:
        numa = ([0, 1], [2], [1, 2])
        devices = [{"name": f"d{i}", "attributes": {"numa": {"ints": n}}} for i, n in enumerate(numa)]
        spec = claim_spec(count=2)
        spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/numa"}]
        await cluster.apply(device_class(), slice_of("node-1", devices), claim("c", spec))
        found = await allocated(cluster, pod("p", claims=["c"]), bound=1)
        assert [r["device"] for r in found["c"]["devices"]["results"]] == ["d0", "d2"]


@pytest.mark.parametrize("on", [True, False])
async def test_a_pod_with_devices_that_need_no_plugin_starts_without_one(on: bool) -> None:
    gates = {"DRAOptionalNodeOperations": on}
    async with LocalCluster(features=Features.of("1.37", gates), timers=TIMERS) as cluster:
        there = slice_of("node-1", ["d"])
        there["spec"]["skipNodeOperations"] = ["*"]
        await cluster.apply(device_class(), there, claim("c"), pod("p", claims=["c"]))
        if on:
            await cluster.wait_running("p")
            await cluster.delete_pod("p")
        else:
            room = Room(cluster)
            await room.told("p", f"DRA driver {DRIVER} is not registered")


# --- the kubelet ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def room_of(release: str) -> AsyncIterator[Room]:
    async with LocalCluster(timers=TIMERS, features=Features.of(release)) as cluster:
        yield Room(cluster)


@pytest.mark.parametrize(
    ("release", "streams"),
    [("1.34", None), ("1.35", None), ("1.36", "v1alpha1.DRAResourceHealth"), ("1.37", "v1.DRAResourceHealth")],
)
async def test_health_is_requested_in_the_version_of_the_release(release: str, streams: str | None) -> None:
    async with (
        room_of(release) as room,
        room.plugin(health=("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")) as plugin,
    ):
        await room.run()
        await room.runs()
        if streams:
            await room.healthy("Healthy")
            assert plugin.streams == {streams: 1}
        else:
            assert await room.health() == []
            assert not plugin.streams


async def test_1_36_requests_the_health_of_a_plugin_that_offers_none_again_and_again_and_1_37_does_not() -> None:
    for release in ("1.36", "1.37"):
        async with room_of(release) as room, room.plugin():
            await room.registered()
            asked = room.kubelet.health.streams
            if release == "1.36":
                await room.until("a third question", lambda asked=asked: sum(asked.values()) >= 3)
            else:
                await room.run()
                await room.runs()
                assert not asked


@pytest.mark.parametrize(("release", "unprepared"), [("1.36", 1), ("1.37", 0)])
async def test_a_pod_that_was_never_allowed_to_use_a_claim_takes_it_along_until_1_37(
    release: str, unprepared: int
) -> None:
    """kubernetes/kubernetes#140212."""
    async with room_of(release) as room, room.plugin() as plugin:
        await room.run("user", shared="c")
        await room.runs("user")
        await room.cluster.apply(pod("stranger", claims=["c", "missing"], nodeName="node-1"))
        await room.told("stranger", "fetch ResourceClaim missing")
        await room.delete("stranger")
        await room.gone("stranger")
        assert plugin.count("unprepare") == unprepared


async def test_a_pod_that_has_finished_takes_nobody_s_claim_along_in_1_36() -> None:
    async with room_of("1.36") as room, room.plugin() as plugin:
        await room.run("user", shared="c")
        await room.run("first", shared="c")
        await room.runs("user")
        first = await room.runs("first")
        room.cluster.node.runtime.end(first["metadata"]["uid"], "main")
        await room.until("its end", lambda: room.phase("first", "Succeeded"))
        await room.delete("first")
        await room.gone("first")
        assert plugin.count("unprepare") == 0


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_a_retry_is_for_all_claims_of_a_pod_and_its_devices_are_doubled_until_1_37(release: str) -> None:
    """kubernetes/kubernetes#140274. The kubelet ends while the other driver works, after the first has answered."""
    async with room_of(release) as room, room.plugin() as one, room.plugin("zz.example.com") as other:
        other.gate.clear()
        await room.run("p", DRIVER, "zz.example.com")
        await room.until("the other to be asked", lambda: other.count("prepare"))
        await room.kubelet.stop()
        assert one.count("prepare") == 1
        other.gate.set()
        await room.kubelet.restart()
        await room.runs()
        assert one.count("prepare") == 2
        info = next(iter(room.kubelet.manager.claims.values()))
        assert len(info.devices[DRIVER]) == (2 if release == "1.36" else 1)


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_a_pod_that_comes_while_its_claim_is_unprepared_has_it_prepared_again_since_1_37(release: str) -> None:
    """kubernetes/kubernetes#140527."""
    async with room_of(release) as room, room.plugin() as plugin:
        await room.run("first", shared="c")
        await room.runs("first")
        await room.run("second", shared="c", schedulingGates=None)
        await room.runs("second")
        await room.delete("second")
        await room.gone("second")
        prepared = plugin.count("prepare")
        plugin.gate.clear()
        [info] = room.kubelet.manager.claims.values()
        await room.delete("first")
        await room.until("the unprepare", lambda: plugin.count("unprepare") == 1)
        await room.run("third", shared="c")
        if release == "1.36":
            await room.until("the third to join", lambda: len(info.pods) == 2)
        plugin.gate.set()
        if release == "1.37":
            await room.runs("third")
            assert plugin.count("prepare") == prepared + 1
        else:
            await room.gone("first")
            assert plugin.count("prepare") == prepared


# --- what was asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "gates", "told"),
    [
        ("1.33", {}, "Kubernetes '1.33' is not supported: use one of 1.34, 1.35, 1.36, 1.37"),
        ("1.36", {"DRADeviceTaint": True}, "did you mean DRADeviceTaints?"),
        ("1.36", {"DRAPrioritizedList": False}, "cannot be switched off in Kubernetes 1.36: it is stable there"),
        (
            "1.36",
            {"DRAOptionalNodeOperations": True},
            "has no feature gate DRAOptionalNodeOperations: it was added in 1.37",
        ),
        ("1.37", {"DRADerivedAttributes": True}, "cannot be switched on in the local cluster: its allocator"),
        (
            "1.34",
            {"DRADeviceBindingConditions": True, "DRAResourceClaimDeviceStatus": False},
            "needs DRAResourceClaimDeviceStatus, which is off",
        ),
    ],
)
def test_what_cannot_be_had_is_reported_in_a_sentence(release: str, gates: dict[str, bool], told: str) -> None:
    with pytest.raises(SettingsError, match=told.replace("?", r"\?")):
        Features.of(release, gates)


def test_the_environment_states_the_release_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_KUBERNETES_VERSION", "1.35")
    assert Features.of().release == "1.35"
    assert Features.of("1.37").release == "1.37"


# --- rules of taints --------------------------------------------------------------------------------


def rule(version: str, effect: str, **selector: str) -> JSON:
    spec = {"deviceSelector": selector, "taint": {"key": KEY, "effect": effect}}
    api = f"resource.k8s.io/{version}"
    return {"apiVersion": api, "kind": "DeviceTaintRule", "metadata": {"name": effect.lower()}, "spec": spec}


@pytest.mark.parametrize(
    ("release", "gates", "version"),
    [("1.37", {}, "v1"), ("1.36", {"DRADeviceTaintRules": True}, "v1beta2"), ("1.36", {}, "v1beta2")],
)
async def test_a_rule_keeps_pods_from_devices_and_evicts_them_where_its_gate_is_on(
    release: str, gates: dict[str, bool], version: str
) -> None:
    config = {f"resource.k8s.io/{version}": True}
    async with LocalCluster(features=Features.of(release, gates, config), timers=TIMERS) as cluster:
        on = cluster.features.has("DRADeviceTaintRules")
        there = slice_of("node-1", ["a", "b"])
        there["spec"]["skipNodeOperations"] = ["*"]
        # Before there is a device to be had.
        await cluster.apply(rule(version, "NoSchedule", driver=DRIVER, device="a"))
        await cluster.apply(device_class(), there, claim("c0"), claim("c1"))
        rules = Resource("resource.k8s.io", version, "devicetaintrules")
        async with Room(cluster).plugin() as _:
            found = await allocated(cluster, pod("p0", claims=["c0"]), bound=1)
            assert [r["device"] for r in found["c0"]["devices"]["results"]] == ["b" if on else "a"]
            if not on:
                return
            await cluster.client.delete(rules, "noschedule")
            await cluster.wait_running("p0")
            await cluster.apply(rule(version, "NoExecute", pool="node-1", device="b"))

            async def evicted() -> bool:
                return await cluster.pod("p0") is None

            await cluster.wait("the eviction", evicted)
            assert "DeviceTaintManagerEviction: Marking for deletion" in cluster.events("p0")
            found = await allocated(cluster, pod("p1", claims=["c1"]), bound=1)
            assert [r["device"] for r in found["c1"]["devices"]["results"]] == ["a"]
