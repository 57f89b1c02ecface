"""The local cluster as Kubernetes 1.34 to 1.37: served versions, dropped fields, scheduling and the kubelet's behavior of each release."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import RELEASES, Features, Stage, parse_runtime_config, stage
from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NODES, PODS, SLICES
from packages.devkit.tests.localcluster.kubelet.harness import TIMERS, KubeletHarness
from tests.helpers.objects import DRIVER, claim, claim_spec, device_class, pod, slice_of

EACH = pytest.mark.parametrize("release", RELEASES)
KEY = "toy.example.com/sick"

# The spec of a slice that uses a gate, and the fields that the gate covers. Without these fields the slice is still valid.
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
    "DRANodeAllocatableResources": (
        {"devices": [{"name": "d", "nodeAllocatableResources": {"cpu": {"overhead": {"perPod": "1"}}}}]},
        ("nodeAllocatableResources",),
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
REQUIRED_GATES = {
    "DRADeviceCompatibilityGroups": ("DRAPartitionableDevices",),
    "DRAPartitionableDevicesType": ("DRAPartitionableDevices", "DRAResourcePoolStatus"),
}


def slice_with(spec: JSON) -> JSON:
    return {**(s := slice_of("node-1", ["d"])), "spec": {**s["spec"], **copy.deepcopy(spec)}}


def field_names(value: Any) -> set[str]:
    """Returns the names of all fields at any depth of an object."""
    if isinstance(value, dict):
        return set(value) | {n for v in value.values() for n in field_names(v)}
    return {n for v in value for n in field_names(v)} if isinstance(value, list) else set()


@contextlib.asynccontextmanager
async def server(features: Features, storage: Any = None) -> AsyncIterator[tuple[ApiServer, KubeClient]]:
    api = ApiServer(storage=storage, features=features)
    await api.start()
    try:
        async with KubeClient(api.config) as client:
            yield api, client
    finally:
        await api.close()


# --- served versions --------------------------------------------------------------------------------


@EACH
async def test_a_release_reports_its_version_and_serves_only_the_stable_version(release: str) -> None:
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
async def test_taint_rules_are_served_in_the_versions_of_the_release(release: str, versions: set[str]) -> None:
    async with server(Features.of(release, runtime_config={"api/all": True})) as (_, client):
        for version in ("v1", "v1beta2", "v1beta1", "v1alpha3"):
            listed = await client.call("GET", f"/apis/resource.k8s.io/{version}", None)
            assert ("devicetaintrules" in {r["name"] for r in listed["resources"]}) == (version in versions)


@EACH
async def test_slices_can_be_selected_by_their_pool_since_1_37(release: str) -> None:
    async with server(Features.of(release)) as (_, client):
        await client.create(SLICES, slice_of("node-1", ["d"]))
        await client.create(SLICES, slice_of("node-2", ["d"]))
        if Features.of(release).is_at_least("1.37"):
            listed = await client.list(SLICES, fields="spec.pool.name=node-2")
            assert [s["metadata"]["name"] for s in listed["items"]] == ["s-node-2"]
        else:
            with pytest.raises(ApiError, match="field label not supported: spec"):
                await client.list(SLICES, fields="spec.pool.name=node-2")


# --- dropped fields ---------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("gate", SLICES_WITH)
async def test_a_field_of_a_slice_is_kept_only_when_its_gate_is_on(release: str, gate: str) -> None:
    spec, fields = SLICES_WITH[gate]
    async with server(features := Features.of(release)) as (_, client):
        created = await client.create(SLICES, slice_with(spec))
        kept_fields = field_names(created["spec"]).intersection(fields)
        assert kept_fields == (set(fields) if features.has(gate) else set())


@pytest.mark.parametrize("gate", SLICES_WITH)
async def test_objects_that_use_fields_of_a_gate_keep_them_after_the_gate_is_off(
    gate: str,
) -> None:
    spec, fields = SLICES_WITH[gate]
    release = next(
        r for r in reversed(RELEASES) if stage(gate, r) is not Stage.ABSENT and stage(gate, r) is not Stage.STABLE
    )
    if stage(gate, "1.37") is Stage.STABLE:
        release = "1.36"
    is_on = Features.of(release, dict.fromkeys((gate, *REQUIRED_GATES.get(gate, ())), True))
    async with server(is_on) as (api, client):
        used = await client.create(SLICES, slice_with(spec))
        assert field_names(used["spec"]).issuperset(fields)
        bare = await client.create(SLICES, slice_of("node-2", ["d"]))
        async with server(Features.of(release, {gate: False}), api.storage) as (_, later_client):
            changed = {**used, "spec": {**used["spec"], "pool": {**used["spec"]["pool"], "generation": 2}}}
            assert field_names((await later_client.update(SLICES, changed))["spec"]).issuperset(fields), "in use"
            changed = {**bare, "spec": {**bare["spec"], **copy.deepcopy(spec)}}
            assert field_names((await later_client.update(SLICES, changed))["spec"]).isdisjoint(fields), (
                "not used before"
            )


@EACH
async def test_an_unknown_field_of_a_later_release_is_an_error_only_in_strict_validation(release: str) -> None:
    spec = {"skipNodeOperations": ["*"]}
    async with server(Features.of(release)) as (_, client):
        path = f"{SLICES.path()}?fieldValidation=Strict"
        if Features.of(release).is_at_least("1.37"):
            assert "skipNodeOperations" not in (await client.call("POST", path, slice_with(spec)))["spec"]
            return
        with pytest.raises(ApiError, match=r'strict decoding error: unknown field "spec.skipNodeOperations"'):
            await client.call("POST", path, slice_with(spec))
        assert "skipNodeOperations" not in (await client.create(SLICES, slice_with(spec)))["spec"]


@EACH
async def test_an_attribute_without_its_gated_value_is_rejected(release: str) -> None:
    spec = {"devices": [{"name": "d", "attributes": {"n": {"ints": [1, 2]}}}]}
    gates = {"DRAListTypeAttributes": True} if release >= "1.36" else {}
    async with server(Features.of(release)) as (_, client):
        with pytest.raises(ApiError, match="exactly one value must be specified"):
            await client.create(SLICES, slice_with(spec))
    async with server(Features.of(release, gates)) as (_, client):
        if gates:
            assert "ints" in field_names(await client.create(SLICES, slice_with(spec)))


async def test_the_taint_effect_none_is_supported_since_1_35() -> None:
    spec = {"devices": [{"name": "d", "taints": [{"key": KEY, "effect": "None"}]}]}
    for release in ("1.34", "1.35"):
        async with server(Features.of(release, {"DRADeviceTaints": True})) as (_, client):
            if release == "1.35":
                assert (await client.create(SLICES, slice_with(spec)))["spec"]["devices"][0]["taints"]
            else:
                with pytest.raises(ApiError, match='Unsupported value: "None"'):
                    await client.create(SLICES, slice_with(spec))


@EACH
async def test_a_claim_keeps_the_request_fields_of_the_release(release: str) -> None:
    spec = claim_spec()
    exactly = spec["devices"]["requests"][0]["exactly"]
    exactly["tolerations"] = [{"key": KEY, "operator": "Exists"}]
    exactly["capacity"] = {"requests": {"m": "1"}}
    async with server(features := Features.of(release)) as (_, client):
        created = await client.create(CLAIMS, {**claim("c", spec), "metadata": {"name": "c", "namespace": "default"}})
        requested_fields = field_names(created["spec"])
        assert ("tolerations" in requested_fields) == features.has("DRADeviceTaints")
        assert ("capacity" in requested_fields) == features.has("DRAConsumableCapacity")
        result = {"request": "device", "driver": DRIVER, "pool": "p", "device": "d", "skipNodeOperations": ["*"]}
        result |= {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]}
        status = {"allocation": {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}}
        kept_fields = field_names((await client.update(CLAIMS, {**created, "status": status}, "status"))["status"])
        assert (
            ("bindingConditions" in kept_fields)
            == ("allocationTimestamp" in kept_fields)
            == features.has("DRADeviceBindingConditions")
        )
        assert "skipNodeOperations" not in kept_fields


# --- scheduling -------------------------------------------------------------------------------------


@EACH
async def test_an_extended_resource_is_allocated_as_a_device_when_the_gate_is_on(release: str) -> None:
    name = f"{DRIVER}/gpu"
    async with LocalCluster(features=Features.of(release), timers=TIMERS) as cluster:
        class_body = device_class()
        await cluster.apply(
            {**class_body, "spec": {**class_body["spec"], "extendedResourceName": name}}, slice_of("node-1", ["d"])
        )
        stored = await cluster.client.get(CLASSES, "devices")
        is_on = cluster.features.has("DRAExtendedResource")
        assert ("extendedResourceName" in stored["spec"]) == is_on
        for resource, pod_name in ((name, "explicit"), ("deviceclass.resource.kubernetes.io/devices", "implicit")):
            body = pod(pod_name)
            body["spec"]["containers"][0]["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
            await cluster.apply(body)

        async def is_decided() -> bool:
            if is_on:  # there is one device
                pods = [await cluster.pod(n) or {} for n in ("explicit", "implicit")]
                return any(p.get("spec", {}).get("nodeName") for p in pods)
            return all(any("Insufficient" in e for e in cluster.events(n)) for n in ("explicit", "implicit"))

        await cluster.wait("the scheduler's decision", is_decided)
        assert bool(cluster.claims()) == is_on


def device_with_counters(name: str, *groups: str) -> JSON:
    consumption = {"counterSet": "card", "counters": {"slots": {"value": "1"}}}
    return {"name": name, "consumesCounters": [consumption | ({"compatibilityGroups": list(groups)} if groups else {})]}


async def wait_for_allocations(cluster: LocalCluster, *pods: JSON, bound: int) -> dict[str, JSON]:
    """Waits until ``bound`` pods have a node and the scheduler has rejected all others. Returns the allocation of each claim."""
    pod_names = {p["metadata"]["name"] for p in pods}
    await cluster.apply(*pods)

    async def is_decided() -> bool:
        bound_names = {
            p["metadata"]["name"] for p in (await cluster.client.list(PODS))["items"] if p["spec"].get("nodeName")
        }
        rejected = [n for n in pod_names - bound_names if any("FailedScheduling" in e for e in cluster.events(n))]
        return len(pod_names & bound_names) >= bound and len(rejected) == len(pod_names - bound_names)

    await cluster.wait(f"the scheduler's decisions on {sorted(pod_names)}", is_decided)
    return {c["metadata"]["name"]: c["status"]["allocation"] for c in cluster.claims() if c["status"].get("allocation")}


@pytest.mark.parametrize("is_on", [True, False])
async def test_devices_of_one_card_are_allocated_together_only_with_a_common_group(is_on: bool) -> None:
    gates = {"DRADeviceCompatibilityGroups": is_on}
    async with LocalCluster(features=Features.of("1.37", gates), timers=TIMERS) as cluster:
        devices = [
            device_with_counters("a", "mig", "x"),
            device_with_counters("b", "vgpu"),
            device_with_counters("c", "x", "vgpu"),
            device_with_counters("d"),
        ]
        sets = slice_of("node-1", [], name="s-0")
        sets["spec"] |= {"sharedCounters": [{"name": "card", "counters": {"slots": {"value": "9"}}}]}
        del sets["spec"]["devices"]
        parts = slice_of("node-1", devices, name="s-1")
        for resource_slice in (sets, parts):
            resource_slice["spec"]["pool"]["resourceSliceCount"] = 2
        await cluster.apply(device_class(), sets, parts, *(claim(f"c{i}") for i in range(4)))
        pods = [pod(f"p{i}", claims=[f"c{i}"]) for i in range(4)]
        allocations = await wait_for_allocations(cluster, *pods, bound=2 if is_on else 4)
        device_names = sorted(r["device"] for a in allocations.values() for r in a["devices"]["results"])
        assert device_names == (["a", "c"] if is_on else ["a", "b", "c", "d"])


@pytest.mark.parametrize(("release", "bound"), [("1.36", 1), ("1.37", 0)])
async def test_three_devices_may_repeat_a_distinct_value_only_before_1_37(release: str, bound: int) -> None:
    """kubernetes/kubernetes#140600."""
    devices = [{"name": n, "attributes": {"rail": {"int": v}}} for n, v in (("a", 1), ("b", 2), ("c", 1))]
    spec = claim_spec(count=3)
    spec["devices"]["constraints"] = [{"distinctAttribute": f"{DRIVER}/rail"}]
    async with LocalCluster(features=Features.of(release), timers=TIMERS) as cluster:
        await cluster.apply(device_class(), slice_of("node-1", devices), claim("c", spec))
        assert len(await wait_for_allocations(cluster, pod("p", claims=["c"]), bound=bound)) == bound


@pytest.mark.parametrize(("release", "consumed"), [("1.36", "1"), ("1.37", "400m")])
async def test_capacity_is_rounded_to_steps_in_thousandths_since_1_37(release: str, consumed: str) -> None:
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
        allocations = await wait_for_allocations(cluster, pod("p", claims=["c"]), bound=1)
        [result] = allocations["c"]["devices"]["results"]
        assert result["consumedCapacity"] == {"cores": consumed}


@pytest.mark.parametrize("is_on", [True, False])
async def test_devices_of_two_drivers_are_aligned_by_derived_attributes_if_the_gate_is_on(is_on: bool) -> None:
    """KEP-6080, "GPU & NIC NUMA alignment"."""
    other = "nic.example.com"
    gpus = [{"name": f"g{n}", "attributes": {"numa": {"int": n}}} for n in range(2)]
    nics = [{"name": "e1", "attributes": {"numaNode": {"int": 1}}}]
    spec = claim_spec(name="gpu")
    [request] = spec["devices"]["requests"]
    request["exactly"]["derivedAttributes"] = [
        {"name": "derived/numa", "expression": f"device.attributes['{DRIVER}'].numa"}
    ]
    derived = [{"name": "derived/numa", "expression": f"device.attributes['{other}'].numaNode"}]
    nic = {"deviceClassName": "nics", "count": 1, "derivedAttributes": derived}
    spec["devices"]["requests"].append({"name": "nic", "exactly": nic})
    spec["devices"]["constraints"] = [{"requests": ["gpu", "nic"], "matchAttribute": "derived/numa"}]
    features = Features.of("1.37", {"DRADerivedAttributes": is_on})
    async with LocalCluster(features=features, timers=TIMERS) as cluster:
        slices = slice_of("node-1", gpus), slice_of("node-1", nics, driver=other, name="nics")
        await cluster.apply(device_class(), device_class("nics", other), *slices, claim("c", spec))
        bound = 1 if is_on else 0  # without the gate, no device has the attribute
        allocations = await wait_for_allocations(cluster, pod("p", claims=["c"]), bound=bound)
        found = [r["device"] for a in allocations.values() for r in a["devices"]["results"]]
        assert found == (["g1", "e1"] if is_on else [])


async def test_a_default_that_is_not_a_multiple_of_the_step_is_rejected_since_1_37() -> None:
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


async def test_list_attributes_match_when_they_share_a_value() -> None:
    gates = {"DRAListTypeAttributes": True}
    async with LocalCluster(features=Features.of("1.36", gates), timers=TIMERS) as cluster:
        numa = ([0, 1], [2], [1, 2])
        devices = [{"name": f"d{i}", "attributes": {"numa": {"ints": n}}} for i, n in enumerate(numa)]
        spec = claim_spec(count=2)
        spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/numa"}]
        await cluster.apply(device_class(), slice_of("node-1", devices), claim("c", spec))
        allocations = await wait_for_allocations(cluster, pod("p", claims=["c"]), bound=1)
        assert [r["device"] for r in allocations["c"]["devices"]["results"]] == ["d0", "d2"]


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_pod_with_devices_that_skip_node_operations_starts_without_a_plugin(is_on: bool) -> None:
    gates = {"DRAOptionalNodeOperations": is_on}
    async with LocalCluster(features=Features.of("1.37", gates), timers=TIMERS) as cluster:
        resource_slice = slice_of("node-1", ["d"])
        resource_slice["spec"]["skipNodeOperations"] = ["*"]
        await cluster.apply(device_class(), resource_slice, claim("c"), pod("p", claims=["c"]))
        if is_on:
            await cluster.wait_running("p")
            await cluster.delete_pod("p")
        else:
            harness = KubeletHarness(cluster)
            await harness.wait_for_event("p", f"DRA driver {DRIVER} is not registered")


# --- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "gates", "message"),
    [
        ("1.33", {}, "Kubernetes '1.33' is not supported: use one of 1.34, 1.35, 1.36, 1.37"),
        ("1.36", {"DRADeviceTaint": True}, "did you mean DRADeviceTaints?"),
        ("1.36", {"DRAAdminAccess": False}, "cannot be switched off in Kubernetes 1.36: it is stable there"),
        ("1.37", {"DRAPrioritizedList": False}, "cannot be switched off in Kubernetes 1.37: it is stable there"),
        (
            "1.36",
            {"DRAOptionalNodeOperations": True},
            "has no feature gate DRAOptionalNodeOperations: it was added in 1.37",
        ),
        (
            "1.34",
            {"DRADeviceBindingConditions": True, "DRAResourceClaimDeviceStatus": False},
            "needs DRAResourceClaimDeviceStatus, which is off",
        ),
    ],
)
def test_unsupported_settings_are_reported(release: str, gates: dict[str, bool], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("?", r"\?")):
        Features.of(release, gates)


@pytest.mark.parametrize(("release", "gate"), [("1.36", "DRAPrioritizedList"), ("1.37", "DRADeviceTaints")])
def test_a_stable_gate_that_kubernetes_does_not_lock_can_be_switched_off(release: str, gate: str) -> None:
    assert Features.of(release).has(gate)
    off = Features.of(release, {gate: False})
    assert not off.has(gate)
    assert f'kubernetes_feature_enabled{{name="{gate}",stage=""}} 0' in off.metrics()


def test_the_environment_variable_sets_the_default_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_KUBERNETES_VERSION", "1.35")
    assert Features.of().release == "1.35"
    assert Features.of("1.37").release == "1.37"


# --- taint rules ------------------------------------------------------------------------------------


def rule(version: str, effect: str, **selector: str) -> JSON:
    spec = {"deviceSelector": selector, "taint": {"key": KEY, "effect": effect}}
    api = f"resource.k8s.io/{version}"
    return {"apiVersion": api, "kind": "DeviceTaintRule", "metadata": {"name": effect.lower()}, "spec": spec}


@pytest.mark.parametrize(
    ("release", "gates", "version", "is_on"),
    [
        ("1.37", {}, "v1", True),
        ("1.36", {"DRADeviceTaintRules": True}, "v1beta2", True),
        ("1.36", {}, "v1beta2", False),
        ("1.34", {"DRADeviceTaints": True}, "v1alpha3", True),
        ("1.34", {}, "v1alpha3", False),
    ],
)
async def test_a_taint_rule_blocks_and_evicts_pods_only_when_its_gate_is_on(
    release: str, gates: dict[str, bool], version: str, is_on: bool
) -> None:
    config = {f"resource.k8s.io/{version}": True}
    async with LocalCluster(features=Features.of(release, gates, config), timers=TIMERS) as cluster:
        resource_slice = slice_of("node-1", ["a", "b"])
        resource_slice["spec"]["skipNodeOperations"] = ["*"]
        # The rule exists before the device.
        await cluster.apply(rule(version, "NoSchedule", driver=DRIVER, device="a"))
        await cluster.apply(device_class(), resource_slice, claim("c0"), claim("c1"))
        rules = Resource("resource.k8s.io", version, "devicetaintrules")
        async with KubeletHarness(cluster).plugin() as _:
            allocations = await wait_for_allocations(cluster, pod("p0", claims=["c0"]), bound=1)
            assert [r["device"] for r in allocations["c0"]["devices"]["results"]] == ["b" if is_on else "a"]
            if not is_on:
                return
            await cluster.client.delete(rules, "noschedule")
            await cluster.wait_running("p0")
            await cluster.apply(rule(version, "NoExecute", pool="node-1", device="b"))

            async def evicted() -> bool:
                return await cluster.pod("p0") is None

            async def has_event() -> bool:
                return "DeviceTaintManagerEviction: Marking for deletion" in cluster.events("p0")

            await cluster.wait("the eviction", evicted)
            await cluster.wait("the event", has_event)
            allocations = await wait_for_allocations(cluster, pod("p1", claims=["c1"]), bound=1)
            assert [r["device"] for r in allocations["c1"]["devices"]["results"]] == ["a"]


@pytest.mark.parametrize(("release", "version"), [("1.36", "v1alpha2"), ("1.37", "v1beta1")])
def test_the_runtime_config_that_pod_groups_need_on_a_real_server_is_accepted(release: str, version: str) -> None:
    config = parse_runtime_config(f"scheduling.k8s.io/{version}=true")
    assert Features.of(release, {"GenericWorkload": True}, config).pod_groups == version
