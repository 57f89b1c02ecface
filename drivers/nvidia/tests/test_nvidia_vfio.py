"""Tests of passthrough: a GPU is bound to vfio-pci for a claim, and back."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dra_devkit.testing import DriverNode, PodError, node_with
from dra_kubeletplugin import Host, RetryableError

from nvidia import vfio
from nvidia.config import Iommu
from nvidia.driver import Nvidia
from nvidia.hardware_state import HardwareState
from nvidia.sdk import LibraryError, User

H100 = Path(__file__).parents[1] / "hosts/two-h100.yaml"
ADDRESS, FIRST, SECOND = "0000:17:00.0", "gpu-0000-17-00-0", "gpu-0000-98-00-0"
ATTRIBUTES = f'device.attributes["{Nvidia.name}"]'
ON_FIRST = f'device.attributes["resource.kubernetes.io"].pciBusID == "{ADDRESS}"'
PASSED = f'{ATTRIBUTES}.type == "vfio" && {ON_FIRST}'
HEAD = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}
Server = DriverNode[Nvidia]


@contextlib.asynccontextmanager
async def server(**options: Any) -> AsyncIterator[Server]:
    async with node_with(Nvidia, host=H100, options={"nvidia_passthrough": True} | options) as node:
        yield node


def hardware(node: Server) -> HardwareState:
    return HardwareState(node.settings.sysfs_root / ".gpus.json", node.driver.host.boot_id())


def driver_of(node: Server, address: str = ADDRESS) -> str | None:
    fn = node.host.function(address)
    return fn.driver if fn else None


async def test_a_gpu_is_also_published_for_passthrough_and_each_form_excludes_the_other() -> None:
    async with server() as node:
        published = await node.published()
        assert list(published) == [FIRST, f"{FIRST}-vfio", SECOND, f"{SECOND}-vfio"]
        device = published[f"{FIRST}-vfio"]
        assert {k: device.attributes[k] for k in ("type", "deviceID", "vendorID", "numa", "iommuFDEnabled")} == {
            "type": "vfio",
            "deviceID": "0x2330",
            "vendorID": "0x10de",
            "numa": 0,
            "iommuFDEnabled": False,
        }
        assert str(device.capacity["addressableMemory"].value) == "256Gi"
        await node.run_pod("whole", selector=f'{ATTRIBUTES}.type == "gpu" && {ON_FIRST}')
        await node.apply_pod("passed", selector=PASSED)
        await node.api.wait_event("passed", "cannot allocate")


@pytest.mark.parametrize("mig", ["static", "dynamic"])
async def test_a_gpu_is_bound_to_vfio_for_its_claim_and_back_afterwards(mig: str) -> None:
    async with server(nvidia_mig=mig) as node:
        before = list(await node.published())
        pod = await node.run_pod(selector=PASSED)
        assert (driver_of(node), driver_of(node, "0000:98:00.0")) == ("vfio-pci", "nvidia")
        assert [d["path"] for d in node.oci(pod)["linux"]["devices"]] == ["/dev/vfio/20"]
        await node.rescan()
        assert list(await node.published()) == before  # the other forms stay, and the counters exclude them
        await node.run_pod("other", selector=f'{ATTRIBUTES}.type == "gpu"')
        await node.delete_pod()
        assert driver_of(node) == "nvidia"
        await node.run_pod("again", selector=f'{ATTRIBUTES}.type == "gpu" && {ON_FIRST}')


async def test_a_restart_while_a_gpu_is_passed_through_keeps_the_claim() -> None:
    async with server() as node:
        await node.run_pod(selector=PASSED)
        await node.restart()
        assert driver_of(node) == "vfio-pci"
        await node.delete_pod()
        assert driver_of(node) == "nvidia"
        assert not any((await node.leftovers()).values())
        await node.wait_published([FIRST, f"{FIRST}-vfio", SECOND, f"{SECOND}-vfio"])


async def test_a_gpu_without_a_driver_goes_back_to_nvidias_driver() -> None:
    async with server() as node:
        node.write_sysfs("bus/pci/drivers/nvidia/unbind", ADDRESS)
        assert driver_of(node) is None
        await node.run_pod(selector=PASSED)
        await node.delete_pod()
        assert driver_of(node) == "nvidia"


async def test_a_gpu_is_passed_through_on_a_node_without_nvidias_driver(tmp_path: Path) -> None:
    """A node for virtual machines only."""
    machine = tmp_path / "machine.yaml"
    machine.write_text(re.sub(r"^  (driver|nodes): .*\n", "", H100.read_text(), flags=re.MULTILINE))
    async with node_with(Nvidia, host=machine, options={"nvidia_passthrough": True}) as node:
        await node.run_pod(selector=PASSED)
        assert driver_of(node) == "vfio-pci"
        await node.delete_pod()
        assert driver_of(node) is None
        assert not any((await node.leftovers()).values())


async def test_admin_access_does_not_take_a_gpu_from_its_claim() -> None:
    async with server() as node:
        await node.run_pod("whole", selector=f'{ATTRIBUTES}.type == "gpu" && {ON_FIRST}')
        labels = {"resource.kubernetes.io/admin-access": "true"}
        metadata = {"name": "default", "labels": labels}
        await node.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        await node.apply_pod("admin", selector=PASSED, admin_access=True)
        await node.api.wait_event("admin", "a claim with admin access does not change it")
        assert driver_of(node) == "nvidia"


async def test_the_api_node_is_added_on_request() -> None:
    async with server() as node:
        pod = await node.run_pod(selector=PASSED, parameters={**HEAD, "iommu": {"enableAPIDevice": True}})
        assert {d["path"] for d in node.oci(pod)["linux"]["devices"]} == {"/dev/vfio/20", "/dev/vfio/vfio"}


async def test_a_gpu_on_which_a_process_computes_is_not_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    users = [User(4711, 1 << 20)]
    monkeypatch.setattr("nvidia.nvml.Nvml.users", lambda self, uuid: users)
    async with server() as node:
        await node.apply_pod(selector=PASSED)
        await node.api.wait_event("pod", "the processes 4711 of the host compute on it")
        assert driver_of(node) == "nvidia"
        users.clear()
        await node.api.wait_running("pod")


async def test_a_gpu_whose_group_another_driver_uses_is_refused() -> None:
    audio = {
        "address": "0000:17:00.1",
        "vendor": 0x10DE,
        "device": 0x22BA,
        "class": 0x040300,
        "driver": "snd_hda_intel",
    }
    async with server() as node:
        await node.plug({**audio, "iommu_group": 20, "root": "pci0000:16"})
        with pytest.raises(PodError, match="driver snd_hda_intel uses 0000:17:"):
            await node.run_pod(selector=PASSED)


MIG_STATE: dict[str, Any] = {
    "mig": [ADDRESS],
    "instances": [{"address": ADDRESS, "profile": 9, "start": 4, "size": 4, "gi": 1, "uuid": "MIG-1"}],
}


@pytest.mark.parametrize("mig", ["off", "static"])
async def test_a_gpu_in_an_operators_mig_mode_is_not_published_for_passthrough(mig: str) -> None:
    async with server(nvidia_mig=mig) as node:
        hardware(node).set(**MIG_STATE)
        await node.rescan()
        assert f"{FIRST}-vfio" not in await node.published()
        hardware(node).set(mig=[], instances=[])
        await node.rescan()
        assert f"{FIRST}-vfio" in await node.published()


@pytest.mark.parametrize("mig", ["off", "static", "dynamic"])
async def test_a_gpu_with_mig_instances_of_an_operator_is_not_unbound(mig: str) -> None:
    """The operator creates them after the last scan, so the scheduler does not know them."""
    async with server(nvidia_mig=mig) as node:
        hardware(node).set(**MIG_STATE)
        await node.apply_pod(selector=PASSED)
        await node.api.wait_event("pod", f"{ADDRESS} cannot be passed through: it has MIG instances")
        assert driver_of(node) == "nvidia"
        hardware(node).set(mig=[], instances=[])
        await node.api.wait_running("pod")


async def test_persistence_mode_is_on_again_after_passthrough() -> None:
    async with server() as node:
        await node.run_pod(selector=PASSED)
        assert hardware(node).read()["released"] == [ADDRESS]
        await node.delete_pod()
        assert hardware(node).read()["released"] == []


async def test_persistence_mode_stays_off_if_it_was_off() -> None:
    async with server() as node:
        hardware(node).set(released=[ADDRESS])
        await node.run_pod(selector=PASSED)
        await node.delete_pod()
        assert hardware(node).read()["released"] == [ADDRESS]


async def test_a_persistence_mode_that_cannot_be_turned_on_again_does_not_hold_the_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with server() as node:
        await node.run_pod(selector=PASSED)

        def fails(uuid: str, *, on: bool) -> None:
            raise LibraryError("nvmlDeviceSetPersistenceMode: Unknown Error (999)")

        monkeypatch.setattr(node.driver._open().gpus, "set_persistent", fails)
        await node.delete_pod()
        assert f"cannot turn persistence mode of {ADDRESS} on again: nvmlDeviceSetPersistenceMode" in caplog.text
        assert not any((await node.leftovers()).values())


async def test_an_unbind_that_ends_after_its_claim_failed_leaves_no_gpu_without_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the kernel waits for the end of a process, it has the lock of the function, which each write takes."""
    ended, function, original = threading.Event(), threading.Lock(), Host.write

    def write(host: Host, path: str, text: str) -> None:
        if ADDRESS not in path + text:
            return original(host, path, text)
        with function:
            if path == "bus/pci/drivers/nvidia/unbind":
                ended.wait(30)
            return original(host, path, text)

    monkeypatch.setattr(Host, "write", write)
    monkeypatch.setattr(vfio, "WRITE_TIMEOUT", 0.1)
    async with server() as node:
        try:
            await node.apply_pod(selector=PASSED)
            await node.api.wait_event("pod", f"the kernel does not release {ADDRESS}")
            await node.run_pod("other", selector=f'{ATTRIBUTES}.type == "gpu"')  # NVML can be used meanwhile
            assert await node.allocated("other") == [SECOND]
            held = [device.rpartition("/")[2] for device in (await node.leftovers())["held"]]
            assert sorted(held) == [f"{FIRST}-vfio", SECOND]
        finally:
            ended.set()
        await node.api.wait_running("pod")
        assert driver_of(node) == "vfio-pci"
        await node.delete_pod()
        assert driver_of(node) == "nvidia"


def test_no_write_begins_while_an_earlier_write_for_the_function_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, begun = threading.Event(), list[str]()
    monkeypatch.setattr(vfio, "WRITE_TIMEOUT", 0.05)

    def write(path: str, text: str) -> None:
        begun.append(path)
        ended.wait(10)

    host: Any = SimpleNamespace(write=write)
    functions = vfio.Functions(host)
    try:
        for _ in range(3):
            with pytest.raises(RetryableError, match=f"the kernel does not release {ADDRESS}"):
                functions.restore(ADDRESS, "nvidia")
        assert begun == [f"bus/pci/devices/{ADDRESS}/driver_override"]
    finally:
        ended.set()


def test_with_iommufd_the_container_gets_the_node_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "vfio-dev/vfio7").mkdir(parents=True)
    (tmp_path / "iommu").touch()
    fn: Any = SimpleNamespace(path=tmp_path, iommu_group=20)
    prefer = Iommu(backend_policy="PreferIommuFD", enable_api_device=True)
    assert vfio.nodes(Host(dev=tmp_path), fn, prefer) == ["/dev/vfio/devices/vfio7", "/dev/iommu"]
    (tmp_path / "iommu").unlink()
    assert vfio.nodes(Host(dev=tmp_path), fn, prefer) == ["/dev/vfio/20", "/dev/vfio/vfio"]
