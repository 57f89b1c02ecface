"""The simulated GPUs and their manifests, through real sockets. A vendor copies this file with the driver."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import PermanentError
from dra_kubeletplugin.controller import Controller
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.settings import ControllerSettings
from dra_kubeletplugin.testing import DriverNode, node_with

JSON = dict[str, Any]
HERE = Path(__file__).parent
Gpu = load_driver(str(HERE / "driver.py"))
module = __import__("sys").modules[Gpu.__module__]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "NUM_DEVICES",
        "GPU_PARTITIONS",
        "GPU_ALLOW_MULTIPLE_ALLOCATIONS",
        "GPU_DEVICE_STATUS",
        "BINDING_CONDITIONS",
    ):
        monkeypatch.delenv(name, raising=False)


@contextlib.asynccontextmanager
async def gpus(**settings: Any) -> AsyncIterator[DriverNode]:
    async with node_with(Gpu, host="virtual-machine", **settings) as node:
        await node.api.apply_file(HERE / "deploy/deviceclass.yaml")
        yield node


async def started(node: DriverNode, example: str, *pods: str, namespace: str = "default") -> list[dict[str, str]]:
    """Applies a manifest and waits for its pods; answers the environment of each one's first container."""
    await node.api.apply_file(next((HERE / "examples").glob(f"{example}-*.yaml")))
    out = []
    for name in pods:
        out.append(node.env(await node.api.wait_running(name, namespace)))
    return out


def devices(env: dict[str, str]) -> list[str]:
    """What a container was given."""
    return sorted(v for k, v in env.items() if k.startswith("GPU_DEVICE_") and v.startswith("gpu-"))


# --- what is published --------------------------------------------------------------------------


async def test_eight_gpus_with_the_attributes_that_manifests_select_by() -> None:
    async with gpus() as node:
        (slice_,) = await node.api.slices()
        assert [d["name"] for d in slice_["spec"]["devices"]] == [f"gpu-{i}" for i in range(8)]
        attributes = slice_["spec"]["devices"][3]["attributes"]
        assert attributes["index"] == {"int": 3}
        assert attributes["model"] == {"string": "LATEST-GPU-MODEL"}
        assert attributes["driverVersion"] == {"version": "1.0.0"}
        assert attributes["uuid"]["string"].startswith("gpu-")
        assert len({d["attributes"]["uuid"]["string"] for d in slice_["spec"]["devices"]}) == 8
        assert slice_["spec"]["devices"][3]["capacity"] == {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}


async def test_the_pool_is_the_same_after_a_restart() -> None:
    async with gpus() as node:
        before = [(s["metadata"]["resourceVersion"], s["spec"]) for s in await node.api.slices()]
        await node.restart()
        assert [(s["metadata"]["resourceVersion"], s["spec"]) for s in await node.api.slices()] == before


async def test_partitions_come_before_the_whole_gpu_and_draw_from_its_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUM_DEVICES", "2")
    monkeypatch.setenv("GPU_PARTITIONS", "4")
    async with gpus() as node:
        specs = [s["spec"] for s in await node.api.slices()]
        published = [d for s in specs for d in s.get("devices") or []]
        assert [d["name"] for d in published[:5]] == [*(f"gpu-0-partition-{j}" for j in range(4)), "gpu-0-full"]
        assert published[1]["attributes"]["partition"] == {"int": 1}
        assert published[4]["attributes"]["full"] == {"bool": True}
        assert published[0]["capacity"] == {"memory": {"value": "20Gi"}, "compute": {"value": "25"}}
        assert published[0]["consumesCounters"] == [
            {"counterSet": "gpu-0-counters", "counters": {"memory": {"value": "20Gi"}, "compute": {"value": "25"}}}
        ]
        (sets,) = [s["sharedCounters"] for s in specs if s.get("sharedCounters")]
        assert [s["name"] for s in sets] == ["gpu-0-counters", "gpu-1-counters"]


async def test_a_server_without_counters_gets_whole_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_kubeletplugin import Gate

    monkeypatch.setenv("GPU_PARTITIONS", "4")
    async with gpus() as node:
        node.driver.gates_off = frozenset({Gate.PARTITIONS})
        (pool,) = node.driver.pools()
        assert [d.name for d in pool.devices] == [f"gpu-{i}" for i in range(8)]
        assert not pool.counter_sets


@pytest.mark.parametrize(
    ("name", "value"), [("NUM_DEVICES", "many"), ("GPU_PARTITIONS", "-1"), ("GPU_DEVICE_STATUS", "yes")]
)
def test_an_option_that_cannot_be_read_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(PermanentError, match=name):
        module.Options.of({name: value})


# --- manifests ----------------------------------------------------------------------------------


async def test_several_requests_are_several_gpus() -> None:
    async with gpus() as node:
        (env,) = await started(node, "01", "several-requests")
        assert devices(env) == ["gpu-0", "gpu-1"]
        assert env["KUBERNETES_NODE_NAME"] == node.settings.node_name
        assert env["DRA_RESOURCE_DRIVER_NAME"] == "gpu.example.com"
        assert env["GPU_DEVICE_0_SHARING_STRATEGY"] == "TimeSlicing"
        assert env["GPU_DEVICE_0_TIMESLICE_INTERVAL"] == "Default"
        assert env["GPU_DEVICE_GPU_0_RESOURCE_CLAIM"] == (await node.claim_of("several-requests"))["metadata"]["uid"]
        await node.delete_pod("several-requests")
        assert not any((await node.leftovers()).values())


async def test_containers_of_a_pod_share_a_gpu() -> None:
    async with gpus() as node:
        (env,) = await started(node, "02", "shared-by-containers")
        pod = await node.api.wait_running("shared-by-containers")
        assert devices(env) == devices(node.env(pod, "second")) == ["gpu-0"]


async def test_pods_share_a_gpu() -> None:
    async with gpus() as node:
        first, second = await started(node, "03", "sharer-a", "sharer-b")
        assert devices(first) == devices(second) == ["gpu-0"]


async def test_a_gpu_is_selected_and_configured() -> None:
    async with gpus() as node:
        (env,) = await started(node, "04", "configured")
        assert devices(env) == ["gpu-2"]
        assert (env["GPU_DEVICE_2_SHARING_STRATEGY"], env["GPU_DEVICE_2_PARTITION_COUNT"]) == (
            "SpacePartitioning",
            "10",
        )


async def test_alternatives_fall_back() -> None:
    async with gpus() as node:
        (env,) = await started(node, "06", "alternatives")
        assert devices(env) == ["gpu-0"]


async def test_partitions_and_a_whole_gpu_are_never_of_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PARTITIONS", "4")
    async with gpus() as node:
        parts, whole = await started(node, "07", "partitions", "whole")
        assert len(devices(parts)) == 2
        (full,) = devices(whole)
        assert full.endswith("-full")
        assert not {d.split("-")[1] for d in devices(parts)} & {full.split("-")[1]}


async def test_claims_share_a_gpu_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_ALLOW_MULTIPLE_ALLOCATIONS", "true")
    monkeypatch.setenv("NUM_DEVICES", "1")
    async with gpus() as node:
        first, second = await started(node, "08", "part-a", "part-b")
        assert devices(first) == devices(second) == ["gpu-0"]
        assert (first["GPU_DEVICE_0_MEMORY"], first["GPU_DEVICE_0_COMPUTE"]) == ("10Gi", "30")


async def test_the_status_tells_which_gpu_a_claim_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DEVICE_STATUS", "true")
    async with gpus() as node:
        await started(node, "01", "several-requests")

        async def told() -> list[JSON] | None:
            claim = await node.claim_of("several-requests")
            found: list[JSON] = claim["status"].get("devices") or []
            return found if len(found) == 2 else None

        told_devices = await node.api.wait("the status", told)
        assert told_devices[0]["data"]["model"] == "LATEST-GPU-MODEL"
        assert told_devices[0]["data"]["uuid"].startswith("gpu-")


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        ({"strategy": "Nothing"}, "strategy"),
        (
            {"strategy": "TimeSlicing", "spacePartitioningConfig": {}},
            "parameters.sharing: spacePartitioningConfig is of strategy",
        ),
        (
            {"strategy": "SpacePartitioning", "timeSlicingConfig": {}},
            "parameters.sharing: timeSlicingConfig is of strategy",
        ),
        (
            {"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": -1}},
            "spacePartitioningConfig: partitionCount is -1",
        ),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Never"}}, "interval"),
        ({"strategi": "TimeSlicing"}, "did you mean 'strategy'"),
    ],
)
async def test_wrong_parameters_are_told_in_an_event(sharing: JSON, why: str) -> None:
    async with gpus() as node:
        head = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig"}
        await node.apply_pod(parameters={**head, "sharing": sharing})
        await node.api.wait_event("pod", why)


# --- health, taints, binding --------------------------------------------------------------------


async def test_a_broken_gpu_is_given_to_who_tolerates_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUM_DEVICES", "1")
    monkeypatch.setenv("GPU_FAULTS", str(tmp_path))
    (tmp_path / "gpu-0").write_text("row remapping failed")
    async with gpus(health_interval=0.1, unhealthy_policy="allow") as node:

        async def tainted() -> bool:
            (slice_,) = await node.api.slices()
            return bool(slice_["spec"]["devices"][0].get("taints"))

        await node.api.wait("the taint", tainted)
        await started(node, "09", "repair")
        (tmp_path / "gpu-0").unlink()

        async def well() -> bool:
            return not await tainted()

        await node.api.wait("the taint to go", well)


def test_a_fault_of_a_gpu_is_one_of_its_partitions_and_may_evict(tmp_path: Path) -> None:
    driver = Gpu()
    driver.attach(None, _settings())
    driver.options = module.Options(gpus=2, partitions=2, faults=tmp_path)
    (tmp_path / "gpu-1").write_text("NoExecute: on fire")
    report = driver.health()
    assert sorted(report) == ["gpu-1-full", "gpu-1-partition-0", "gpu-1-partition-1"]
    assert {h.taint.effect for h in report.values()} == {"NoExecute"}


def _settings() -> Any:
    from dra_kubeletplugin.settings import Settings

    return Settings(node_name="node-1")


async def test_a_pod_waits_until_the_controller_has_readied_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BINDING_CONDITIONS", "true")
    async with gpus() as node:
        await node.api.apply_file(next((HERE / "examples").glob("01-*.yaml")))

        async def allocated() -> bool:
            return bool((await node.claim_of("several-requests")).get("status", {}).get("allocation"))

        await node.api.wait("the allocation", allocated)
        assert (await node.api.get("Pod", "several-requests") or {})["spec"].get("nodeName") is None
        times = {"lease_duration": 1.0, "renew_deadline": 0.6, "retry_period": 0.1, "stop_grace": 2.0}
        settings = ControllerSettings(driver_name=Gpu.name, namespace="default", **times)
        async with Controller(Gpu(), settings, node.cluster.config).running():
            await node.api.wait_running("several-requests")


async def test_pods_beyond_the_last_gpu_wait_and_run_when_one_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUM_DEVICES", "2")
    async with gpus() as node:
        await started(node, "01", "several-requests")
        await node.apply_pod("late")
        await node.api.wait_event("late", "cannot allocate")
        await node.delete_pod("several-requests")
        await node.api.wait_running("late")


async def test_a_monitor_sees_every_gpu_also_those_in_use() -> None:
    async with gpus() as node:
        await started(node, "01", "several-requests")
        (env,) = await started(node, "05", "monitor", namespace="monitoring")
        assert devices(env) == [f"gpu-{i}" for i in range(8)]
        assert env["DRA_ADMIN_ACCESS"] == "true"
