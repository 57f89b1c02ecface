"""Tests of the MIG example on a described host."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dra_devkit.testing import ClaimSpec, DriverNode, OpaqueConfig, Request, node_with
from dra_kubeletplugin import Capacity, Quantity

from mig_example.driver import GpuConfig, Mig, MigConfig

PACKAGE = Path(__file__).parents[1]
Server = DriverNode[Mig]
ATTRIBUTES = 'device.attributes["mig.example.com"]'
WHOLE = f'!("profile" in {ATTRIBUTES})'


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """A node with two GPUs, and the DeviceClasses of ``deploy``."""
    async with node_with(Mig, host=PACKAGE / "hosts/two-a100.yaml") as node:
        await node.api.apply_file(PACKAGE / "deploy/deviceclass.yaml")
        yield node


def with_profile(profile: str) -> str:
    return f'"profile" in {ATTRIBUTES} && {ATTRIBUTES}.profile == "{profile}"'


def instances(node: Server) -> list[str]:
    folder = node.plugin.settings.plugin_dir / "instances"
    return sorted(json.loads(p.read_text())["device"] for p in folder.glob("*.json"))


async def test_each_gpu_is_published_as_25_partitions_and_as_a_whole() -> None:
    async with server() as node:
        published = await node.published()
    (pool,) = published.pools.values()
    counters = {c.name: c.counters for c in pool.counter_sets}
    assert len(published) == 2 * 26
    assert sorted(counters) == ["gpu-0000-17-00-0", "gpu-0000-98-00-0"]
    assert counters["gpu-0000-17-00-0"]["memory"] == "40Gi"
    small = published["gpu-0000-17-00-0-mig-2g-10gb-2-3"]
    assert small.capacity["memory"] == Capacity("9856Mi")
    assert small.capacity["memorySlice3"] == Capacity(1)
    assert small.consumes_counters["gpu-0000-17-00-0"]["memory-slice-3"] == "1"
    assert small.attributes["resource.kubernetes.io/pciBusID"] == "0000:17:00.0"
    whole = published["gpu-0000-17-00-0"]
    assert (small.attributes["type"], whole.attributes["type"]) == ("mig", "gpu")
    assert small.attributes["parentUUID"] == whole.attributes["uuid"]
    assert not {"uuid"} & small.attributes.keys()
    assert not {"parentUUID", "profile"} & whole.attributes.keys()


async def test_partitions_of_eight_gpus_are_published_in_several_slices() -> None:
    a100 = {"vendor": 0x10DE, "device": 0x20B0, "class": 0x030200, "driver": "nvidia", "numa": 0}
    functions = [a100 | {"address": f"0000:{bus:02x}:00.0", "iommu_group": bus} for bus in range(0x10, 0x18)]
    async with node_with(Mig, host={"functions": functions}) as node:
        specs = [s["spec"] for s in await node.api.slices(Mig.name)]
        await node.run_pod(selector=with_profile("7g.40gb"), count=8)
    sizes = [len(spec.get("devices") or []) for spec in specs]
    assert (sum(sizes), max(sizes) <= 64) == (8 * 26, True)
    assert sum(len(spec.get("sharedCounters") or []) for spec in specs) == 8


async def test_the_claim_of_the_kep_gets_four_partitions_which_are_created_and_destroyed() -> None:
    async with server() as node:
        await node.api.apply_file(PACKAGE / "examples/pod.yaml")
        pod = await node.api.wait_running("mig-demo")
        names = await node.allocated("mig-demo")
        gpu = names[0].partition("-mig-")[0]
        assert all(n.startswith(f"{gpu}-mig-") for n in names)
        assert [n.partition("-mig-")[2][:2] for n in names] == ["1g", "1g", "2g", "3g"]
        assert instances(node) == sorted(names)
        env = node.env(pod)
        assert [v for k, v in env.items() if k.endswith("_MEMORY_LIMIT")] == ["16Gi"]
        profiles = sorted(v for k, v in env.items() if k.endswith("_PROFILE"))
        assert profiles == ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]
        mounted = {m["destination"] for m in node.oci(pod)["mounts"]}
        assert {f"/run/mig/{n}.json" for n in names} <= mounted
        await node.api.delete_pod("mig-demo")
        assert instances(node) == []
        assert not any((await node.leftovers()).values())


async def test_a_gpu_is_in_mig_mode_from_its_first_partition_to_its_last() -> None:
    async with server() as node:
        modes = node.plugin.settings.plugin_dir / "instances"
        first = "0000:17:00.0"
        of_first = f'{with_profile("1g.5gb")} && device.attributes["resource.kubernetes.io"].pciBusID == "{first}"'
        for pod in ("one", "two"):
            await node.run_pod(pod, selector=of_first)
        assert [p.name for p in modes.glob("*.mig")] == ["gpu-0000-17-00-0.mig"]
        await node.delete_pod("one")
        await node.restart()
        assert [p.name for p in modes.glob("*.mig")] == ["gpu-0000-17-00-0.mig"]
        await node.delete_pod("two")
        assert list(modes.iterdir()) == []


async def test_a_whole_gpu_is_not_allocated_while_one_of_its_partitions_is_in_use() -> None:
    async with server() as node:
        await node.run_pod("part", selector=with_profile("1g.5gb"))
        await node.run_pod("whole", selector=WHOLE)
        (part,), (whole,) = await node.allocated("part"), await node.allocated("whole")
        assert not part.startswith(whole)
        await node.apply_pod("second", selector=WHOLE)
        await node.api.wait_event("second", "cannot allocate")
        await node.delete_pod("part")
        await node.api.wait_running("second")
        assert await node.allocated("second") == [part.partition("-mig-")[0]]


async def test_without_counters_in_the_api_server_whole_gpus_are_published() -> None:
    async with server() as node:
        node.api.drop("sharedCounters", "consumesCounters")
        await node.restart()
        await node.wait_published(["gpu-0000-17-00-0", "gpu-0000-98-00-0"])
        await node.run_pod(count=2)


async def test_no_more_partitions_are_allocated_than_multiprocessors_allow() -> None:
    async with server() as node:
        await node.run_pod("all", selector=with_profile("1g.5gb"), count=14)
        assert len(instances(node)) == 14
        await node.apply_pod("one-more", selector=with_profile("1g.5gb"))
        await node.api.wait_event("one-more", "cannot allocate")


async def test_a_limit_above_the_memory_of_the_partition_is_refused() -> None:
    async with server() as node:
        await node.apply_pod(selector=with_profile("1g.5gb"), parameters=MigConfig(memory_limit=Quantity("8Gi")).json())
        await node.api.wait_event("pod", "memoryLimit 8Gi is more than the memory of")
        assert instances(node) == []


async def test_the_parameters_of_a_claim_reach_the_devices_that_they_are_for() -> None:
    parameters = [MigConfig(memory_limit=Quantity("4Gi")), GpuConfig(time_slice="Long")]
    claim = ClaimSpec(
        Request("part", selectors=[with_profile("1g.5gb")]),
        Request("whole", selectors=[WHOLE]),
        config=[OpaqueConfig(Mig.name, p.json()) for p in parameters],
    )
    async with server() as node:
        env = node.env(await node.run_pod(claim=claim))
    settings = {k.rpartition("MIG_DEVICE_GPU_")[2]: v for k, v in env.items() if k.endswith(("_LIMIT", "_SLICE"))}
    assert sorted(settings.values()) == ["4Gi", "Long"]
    assert {v for k, v in settings.items() if "_MIG_" in k} == {"4Gi"}


async def test_partitions_of_a_recovered_claim_are_destroyed_at_its_end() -> None:
    async with server() as node:
        await node.run_pod(selector=with_profile("1g.5gb"), count=2)
        names = await node.allocated("pod")
        await node.stop()
        shutil.rmtree(node.settings.records_path)
        shutil.rmtree(node.settings.cdi_root)
        await node.start()
        held = [device.rpartition("/")[2] for device in (await node.leftovers())["held"]]
        assert sorted(held) == sorted(names)
        await node.delete_pod()
        assert instances(node) == []


async def test_recover_returns_the_claims_of_the_partitions_that_exist() -> None:
    async with server() as node:
        await node.run_pod("first", selector=with_profile("4g.20gb"))
        uid: Any = (await node.claim_of("first"))["metadata"]["uid"]
        recovered = list(node.driver.recover())
        assert [(c.uid, [d.name for d in c.devices]) for c in recovered] == [(uid, await node.allocated("first"))]
        await node.restart()
        assert instances(node) == await node.allocated("first")
        await node.delete_pod("first")
        assert instances(node) == []
