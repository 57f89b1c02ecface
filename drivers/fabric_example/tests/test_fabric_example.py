"""Tests of the fabric driver, with controller and plugins, on a local cluster with several nodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import AsyncApi, ClaimSpec, Request, Timers, controller_on, env_of, plugin_on, pod
from dra_devkit.testing import claim as claim_for
from dra_kubeletplugin import Role
from dra_kubeletplugin.driver import make
from dra_kubeletplugin.errors import SettingsError
from dra_tools import from_files

from fabric_example.driver import NAME, Fabric
from fabric_example.sdk import FabricManager
from fabric_example.tpu import tpu_slices

PACKAGE = Path(__file__).parents[1]
NODES = ("node-1", "node-2", "node-3", "node-4")


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FabricManager:
    """The fabric that both roles use; it has two devices."""
    monkeypatch.setenv("FABRIC_STATE", str(tmp_path / "fabric.db"))
    manager = FabricManager(tmp_path / "fabric.db")
    manager.add("gpu-0", "a100")
    manager.add("gpu-1", "a100")
    return manager


@contextlib.asynccontextmanager
async def running(nodes: int = 1, binding_timeout: float = 600.0) -> AsyncIterator[AsyncApi]:
    """Starts a cluster with the driver's plugin on each node, and without its controller."""
    async with (
        LocalCluster(nodes=NODES[:nodes], timers=Timers(binding_timeout=binding_timeout)) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        for name in NODES[:nodes]:
            await stack.enter_async_context(plugin_on(cluster, Fabric, name))
        api = AsyncApi(cluster)
        await api.apply_file(PACKAGE / "deploy/deviceclass.yaml")
        yield api


def claim(name: str, selector: str = "", of: str = NAME) -> dict[str, Any]:
    return claim_for(name, ClaimSpec(Request(device_class=of, selectors=[selector] if selector else ())))


async def gone(api: AsyncApi, fabric: FabricManager, device: str) -> None:
    async def check() -> bool:
        return fabric.attached(device) is None

    await api.wait(f"{device} to be detached", check)


async def test_a_device_is_attached_before_its_pod_is_bound_and_detached_after_the_pod(
    fabric: FabricManager,
) -> None:
    async with running(2) as api, controller_on(api.cluster, Fabric):
        await api.apply(claim("c", f'device.attributes["{NAME}"].model == "a100"'), pod("p", claims=["c"]))
        found = await api.wait_running("p")
        attached = fabric.attached("gpu-0")
        assert attached
        assert attached.node == found["spec"]["nodeName"]
        assert env_of(api.cluster, found)["FABRIC_GPU_0"] == f"slot-{attached.slot}"
        await api.wait_event("p", "Scheduled")
        reasons = [e.reason for e in await api.events("p") if e.source == "default-scheduler"]
        assert reasons == ["BindingConditionsPending", "Scheduled"]
        await api.delete_pod("p")
        await gone(api, fabric, "gpu-0")


async def test_the_pod_waits_until_a_controller_attaches_its_device(fabric: FabricManager) -> None:
    async with running() as api:
        async with controller_on(api.cluster, Fabric):
            pass  # the controller publishes the pools and stops
        await api.apply(claim("c"), pod("p", claims=["c"]))
        await api.wait_event("p", "BindingConditionsPending")
        assert fabric.attached("gpu-0") is None
        async with controller_on(api.cluster, Fabric):
            await api.wait_running("p")


async def test_an_event_names_a_broken_port_and_the_pod_runs_after_its_repair(fabric: FabricManager) -> None:
    fabric.add("gpu-0", "a100", broken="port 7 has no link")
    fabric.add("gpu-1", "a100", broken="port 8 has no link")
    async with running() as api, controller_on(api.cluster, Fabric):
        await api.apply(claim("c"), pod("p", claims=["c"]))
        assert (await api.wait_event("p", "port 7 has no link")).reason == "FailedScheduling"
        fabric.add("gpu-0", "a100")
        await api.wait_running("p")


@pytest.mark.full
async def test_an_attachment_that_takes_longer_than_the_scheduler_waits_is_undone(fabric: FabricManager) -> None:
    fabric.add("gpu-0", "a100", seconds=6.0)
    async with running(binding_timeout=3.0) as api, controller_on(api.cluster, Fabric):
        await api.apply(claim("c"), pod("p", claims=["c"]))
        assert (await api.wait_event("p", "device binding timeout")).reason == "FailedScheduling"
        fabric.add("gpu-0", "a100")
        await api.wait_running("p")
        attached = fabric.attached("gpu-0")
        assert attached
        assert attached.owner == (await api.get("ResourceClaim", "c") or {})["metadata"]["uid"]


@pytest.mark.usefixtures("fabric")
async def test_pods_share_a_tpu_slice_only_on_its_hosts() -> None:
    half, whole = (f'device.capacity["{NAME}"].tpus.compareTo(quantity("{n}")) == 0' for n in (8, 16))
    tpu = f"tpu.{NAME}"
    async with running(4) as api, controller_on(api.cluster, Fabric, options={"fabric_tpu_hosts": tuple(NODES)}):
        await api.apply(claim("half", half, tpu), claim("rest", half, tpu), claim("whole", whole, tpu))
        for name, of in (("a", "half"), ("b", "rest")):
            await api.apply(pod(name, claims=[of]))
        first, second = await api.wait_running("a"), await api.wait_running("b")
        assert env_of(api.cluster, first)["TPU_WORKER_HOSTNAMES"] == "node-1,node-2"
        assert env_of(api.cluster, second)["TPU_WORKER_HOSTNAMES"] == "node-3,node-4"
        assert first["spec"]["nodeName"] in NODES[:2] and second["spec"]["nodeName"] in NODES[2:]
        await api.apply(pod("more", claims=["half"]))
        assert (await api.wait_running("more"))["spec"]["nodeName"] in NODES[:2]
        await api.apply(pod("all", claims=["whole"]))
        await api.wait_event("all", "FailedScheduling")
        for name in ("a", "b", "more"):
            await api.delete_pod(name)
        assert env_of(api.cluster, await api.wait_running("all"))["TPU_TOPOLOGY"] == "4x4"


@pytest.mark.usefixtures("fabric")
async def test_the_options_add_devices_and_do_not_change_existing_ones() -> None:
    plugged = {"fabric_devices": ("gpu-1=h100", "gpu-2=h100")}
    async with running() as api, controller_on(api.cluster, Fabric, options=plugged):
        published = await api.wait_published(NAME, ["gpu-0", "gpu-1", "gpu-2"])
        assert [d.attributes["model"] for d in published.values()] == ["a100", "a100", "h100"]


def test_the_error_for_an_invalid_list_of_devices_shows_the_format() -> None:
    with pytest.raises(SettingsError, match="fabric_devices has 'gpu-0': write it like gpu-0=a100"):
        make(Fabric, Role.CONTROLLER, {"fabric_devices": "gpu-0"})


def test_the_slices_are_those_of_the_kep() -> None:
    found = {d.name: sorted(c.removeprefix("tpus-") for c in d.consumes_counters["tpus"]) for d in tpu_slices(NODES)}
    assert found == {
        "tpu-4x4-1": ["node-1", "node-2", "node-3", "node-4"],
        "tpu-2x4-1": ["node-1", "node-2"],
        "tpu-2x4-2": ["node-3", "node-4"],
        "tpu-2x2-1": ["node-1"],
        "tpu-2x2-2": ["node-2"],
        "tpu-2x2-3": ["node-3"],
        "tpu-2x2-4": ["node-4"],
    }


@pytest.mark.parametrize("file", ["examples/claim.yaml", "examples/tpu.yaml"])
@pytest.mark.usefixtures("fabric")
async def test_the_manifests_of_this_folder_run(file: str) -> None:
    hosts = {"fabric_tpu_hosts": tuple(NODES[:2])}
    async with running(2) as api, controller_on(api.cluster, Fabric, options=hosts):
        await api.apply_file(PACKAGE / file)
        for doc in from_files([PACKAGE / file]):
            if doc["kind"] == "Pod":
                await api.wait_running(doc["metadata"]["name"])
