"""Tests of the driver on a local cluster. The folder examples/ of dra-kubeletplugin tests each feature."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_devkit.testing import Api, Node
from dra_kubeletplugin import Capacity, Gate, Host, Version
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import attach, make
from dra_kubeletplugin.errors import SettingsError

from gpu_example.driver import Gpu
from gpu_example.options import GpuOptions

pytestmark = pytest.mark.dra(driver=Gpu)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes options that the environment of the test run sets."""
    for name in (
        "NUM_DEVICES",
        "GPU_PARTITIONS",
        "GPU_ALLOW_MULTIPLE_ALLOCATIONS",
        "GPU_DEVICE_STATUS",
        "BINDING_CONDITIONS",
    ):
        monkeypatch.delenv(name, raising=False)


# --- devices ------------------------------------------------------------------------------------


def test_eight_gpus_with_the_attributes_that_manifests_select_by(node: Node[Gpu]) -> None:
    published = node.published()
    assert list(published) == [f"gpu-{i}" for i in range(8)]
    attributes = published["gpu-3"].attributes
    assert attributes["index"] == 3
    assert attributes["model"] == "LATEST-GPU-MODEL"
    assert attributes["driverVersion"] == Version("1.0.0")
    assert str(attributes["uuid"]).startswith("gpu-")
    assert len({d.attributes["uuid"] for d in published.values()}) == 8
    assert published["gpu-3"].capacity == {"memory": Capacity("80Gi"), "compute": Capacity(100)}


def test_the_pool_is_the_same_after_a_restart(node: Node[Gpu], api: Api) -> None:
    before = [(s["metadata"]["resourceVersion"], s["spec"]) for s in api.slices()]
    node.restart()
    assert [(s["metadata"]["resourceVersion"], s["spec"]) for s in api.slices()] == before


@pytest.mark.dra(options=GpuOptions(num_devices=2, gpu_partitions=4))
def test_partitions_come_before_the_whole_gpu_and_consume_its_counters(node: Node[Gpu]) -> None:
    published = node.published()
    assert list(published)[:5] == [*(f"gpu-0-partition-{j}" for j in range(4)), "gpu-0-full"]
    assert published["gpu-0-partition-1"].attributes["partition"] == 1
    assert published["gpu-0-full"].attributes["full"] is True
    first = published["gpu-0-partition-0"]
    assert first.capacity == {"memory": Capacity("20Gi"), "compute": Capacity(25)}
    assert first.consumes_counters == {"gpu-0-counters": {"memory": "20Gi", "compute": "25"}}
    (pool,) = published.pools.values()
    assert [s.name for s in pool.counter_sets] == ["gpu-0-counters", "gpu-1-counters"]


@pytest.mark.dra(options={"gpu_partitions": 4})
def test_a_server_without_counters_gets_whole_gpus(node: Node[Gpu]) -> None:
    node.driver.gates_off = frozenset({Gate.PARTITIONS})
    (pool,) = node.driver.pools()
    assert [d.name for d in pool.devices] == [f"gpu-{i}" for i in range(8)]
    assert not pool.counter_sets


@pytest.mark.parametrize(
    ("name", "value"), [("NUM_DEVICES", "many"), ("GPU_PARTITIONS", "-1"), ("GPU_DEVICE_STATUS", "perhaps")]
)
def test_the_error_for_an_invalid_option_names_the_option(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"(?i){name}"):
        make(Gpu)


# --- claims -------------------------------------------------------------------------------------


def test_a_container_gets_variables_that_describe_its_gpus(node: Node[Gpu]) -> None:
    env = node.env(node.run_pod(count=2))
    assert (env["GPU_DEVICE_0"], env["GPU_DEVICE_1"]) == ("gpu-0", "gpu-1")
    assert env["KUBERNETES_NODE_NAME"] == node.name
    assert env["DRA_RESOURCE_DRIVER_NAME"] == "gpu.example.com"
    assert env["GPU_DEVICE_0_SHARING_STRATEGY"] == "TimeSlicing"
    assert env["GPU_DEVICE_0_TIMESLICE_INTERVAL"] == "Default"
    assert env["GPU_DEVICE_GPU_0_RESOURCE_CLAIM"] == node.claim_of("pod")["metadata"]["uid"]
    node.delete_pod()
    assert not any(node.leftovers().values())


@pytest.mark.dra(options={"gpu_device_status": True})
def test_the_claims_status_describes_its_gpus(node: Node[Gpu], api: Api) -> None:
    node.run_pod(count=2)

    def status() -> list[JSON] | None:
        found: list[JSON] = node.claim_of("pod")["status"].get("devices") or []
        return found if len(found) == 2 else None

    devices = api.wait("the status", status)
    assert devices[0]["data"]["model"] == "LATEST-GPU-MODEL"
    assert devices[0]["data"]["uuid"].startswith("gpu-")


@pytest.mark.parametrize(
    ("sharing", "message"),
    [
        ({"strategy": "Nothing"}, "strategy"),
        (
            {"strategy": "TimeSlicing", "spacePartitioningConfig": {}},
            "parameters.sharing: spacePartitioningConfig needs strategy",
        ),
        (
            {"strategy": "SpacePartitioning", "timeSlicingConfig": {}},
            "parameters.sharing: timeSlicingConfig needs strategy",
        ),
        (
            {"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": -1}},
            "spacePartitioningConfig.partitionCount: Expected `int` >= 0, got -1",
        ),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Never"}}, "interval"),
        ({"strategi": "TimeSlicing"}, "did you mean 'strategy'"),
    ],
)
def test_the_pods_event_names_a_wrong_parameter(node: Node[Gpu], api: Api, sharing: JSON, message: str) -> None:
    head = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig"}
    node.apply_pod(parameters={**head, "sharing": sharing})
    api.wait_event("pod", message)


@pytest.mark.dra(options={"num_devices": 2})
def test_a_pod_waits_for_a_gpu_and_runs_when_one_is_free(node: Node[Gpu], api: Api) -> None:
    node.run_pod("first", count=2)
    node.apply_pod("late")
    api.wait_event("late", "cannot allocate")
    node.delete_pod("first")
    api.wait_running("late")


# --- health -------------------------------------------------------------------------------------


def attached(options: GpuOptions) -> Gpu:
    driver = make(Gpu, options=options)
    assert isinstance(driver, Gpu)
    attach(driver, Host(), Settings(node_name="node-1"))
    return driver


def test_a_fault_of_a_gpu_affects_its_partitions_and_can_evict_pods(tmp_path: Path) -> None:
    driver = attached(GpuOptions(num_devices=2, gpu_partitions=2, gpu_faults=tmp_path))
    (tmp_path / "gpu-1").write_text("NoExecute: on fire")
    report = driver.health()
    assert sorted(report) == ["gpu-1-full", "gpu-1-partition-0", "gpu-1-partition-1"]
    assert [[t.effect for t in h.taints] for h in report.values()] == [["NoExecute"]] * 3


def test_a_fault_file_can_disappear_and_an_unreadable_one_is_a_fault(tmp_path: Path) -> None:
    driver = attached(GpuOptions(num_devices=2, gpu_faults=tmp_path))
    (tmp_path / "gpu-0").symlink_to(tmp_path / "gone")
    (tmp_path / "gpu-1").mkdir()
    assert {n: h.message for n, h in driver.health().items()} == {
        "gpu-1": f"{tmp_path / 'gpu-1'} cannot be read: Is a directory"
    }


@pytest.mark.dra(options={"num_devices": 1}, health_interval=0.1)
def test_a_repaired_gpu_loses_its_taint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("GPU_FAULTS", str(tmp_path))
    (tmp_path / "gpu-0").write_text("row remapping failed")
    node: Node[Gpu] = request.getfixturevalue("node")
    published = node.wait_published(lambda devices: devices["gpu-0"].taints)
    assert [t.effect for t in published["gpu-0"].taints] == ["NoSchedule"]
    (tmp_path / "gpu-0").unlink()
    node.wait_published(lambda devices: not devices["gpu-0"].taints)
