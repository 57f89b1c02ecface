"""Tests of MIG instances: published, created, destroyed, after kills, and beside an operator's own instances."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.testing import ClaimSpec, DriverNode, MatchAttribute, Request, node_with
from dra_kubeletplugin import Capacity

from nvidia import machine
from nvidia.driver import Nvidia
from nvidia.hardware_state import HardwareState
from nvidia.sdk import InUseError, LibraryError, NoLibraryError

H100 = Path(__file__).parents[1] / "hosts/two-h100.yaml"
ADDRESS = "0000:17:00.0"
FIRST, SECOND = "gpu-0000-17-00-0", "gpu-0000-98-00-0"
UUID = "GPU-4f0c2a6e-7b1d-4e93-a5c8-0d9e6b3f2a17"
COUNTERS = f"{FIRST}-counter-set"
ATTRIBUTES = f'device.attributes["{Nvidia.name}"]'
WHOLE = f'{ATTRIBUTES}.type == "gpu"'
ON_FIRST = f'device.attributes["resource.kubernetes.io"].pciBusID == "{ADDRESS}"'
Server = DriverNode[Nvidia]


@contextlib.asynccontextmanager
async def server(*, mig: str = "dynamic", **arguments: Any) -> AsyncIterator[Server]:
    async with node_with(Nvidia, host=H100, options={"nvidia_mig": mig}, **arguments) as node:
        yield node


def hardware(node: Server) -> HardwareState:
    boot = (node.settings.sysfs_root / ".boot-id").read_text().strip()
    return HardwareState(node.settings.sysfs_root / ".gpus.json", boot)


def places(node: Server) -> list[tuple[str, int, int]]:
    """The instances that exist: address, profile and start."""
    return sorted((i["address"], i["profile"], i["start"]) for i in hardware(node).read()["instances"])


def profile(name: str) -> str:
    return f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.profile == "{name}"'


async def test_every_placement_of_the_recorded_gpu_is_published_with_its_counters() -> None:
    async with server() as node:
        published = await node.published()
    (pool,) = published.pools.values()
    assert len(published) == 2 * 26
    counters = {c.name: c.counters for c in pool.counter_sets}
    assert counters[COUNTERS]["memory"] == "81559Mi"
    assert counters[COUNTERS]["ofa-engines"] == "1"
    assert sum(name.startswith("memory-slice-") for name in counters[COUNTERS]) == 8
    part = published[f"{FIRST}-mig-1g20gb-15-2"]
    own = {k: v for k, v in part.attributes.items() if k in {"type", "uuid", "parentUUID", "profile"}}
    assert own == {"type": "mig", "parentUUID": UUID, "profile": "1g.20gb"}
    assert part.capacity == {
        "memory": Capacity("20096Mi"),
        "multiprocessors": Capacity(26),
        "copyEngines": Capacity(1),
        "decoders": Capacity(1),
        "encoders": Capacity(0),
        "jpegEngines": Capacity(1),
        "ofaEngines": Capacity(0),
    }
    consumed = part.consumes_counters[COUNTERS]
    assert [name for name in consumed if name.startswith("memory-slice")] == ["memory-slice-2", "memory-slice-3"]
    assert published[FIRST].consumes_counters[COUNTERS].keys() == counters[COUNTERS].keys()
    assert published[FIRST].attributes["uuid"] == UUID
    assert f"{FIRST}-mig-1g10gb-me-20-6" in published


async def test_a_claim_gets_an_instance_with_its_capability_nodes_and_unprepare_destroys_it() -> None:
    async with server() as node:
        pod = await node.run_pod(selector=f"{profile('3g.40gb')} && {ON_FIRST}")
        assert places(node) == [(ADDRESS, 9, 0)]
        nodes = {d["path"]: d for d in node.oci(pod)["linux"]["devices"]}
        assert [p for p in nodes if "nvidia-caps" in p] == [
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/nvidia-caps/nvidia-cap13",
        ]
        assert nodes["/dev/nvidia-caps/nvidia-cap12"]["major"] == 241
        (status,) = (await node.claim_of("pod"))["status"]["devices"]
        assert status["data"]["uuid"].startswith("MIG-")
        assert hardware(node).read()["mig"] == [ADDRESS]
        await node.delete_pod()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])
        assert not any((await node.leftovers()).values())
        assert not list((node.settings.plugin_dir / "mig").iterdir())


async def test_a_claim_with_four_instances_of_one_gpu() -> None:
    requests = [
        Request(f"r{i}", selectors=[profile(p)]) for i, p in enumerate(["1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb"])
    ]
    spec = ClaimSpec(*requests, constraints=[MatchAttribute(f"{Nvidia.name}/parentUUID")])
    async with server() as node:
        await node.run_pod(claim=spec)
        assert sorted(p for _, p, _ in places(node)) == [9, 14, 19, 20]
        assert len({a for a, _, _ in places(node)}) == 1
        await node.delete_pod()
        assert places(node) == []


async def test_the_whole_gpu_and_its_partitions_exclude_each_other() -> None:
    async with server() as node:
        await node.run_pod("part", selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.apply_pod("whole", selector=f"{WHOLE} && {ON_FIRST}")
        await node.api.wait_event("whole", "cannot allocate")
        await node.delete_pod("part")
        await node.api.wait_running("whole")
        assert await node.allocated("whole") == [FIRST]


async def test_no_more_instances_with_the_media_engine_than_the_gpu_has_engines() -> None:
    async with server() as node:
        await node.run_pod("one", selector=profile("1g.10gb+me"), count=2)
        assert {a for a, _, _ in places(node)} == {ADDRESS, "0000:98:00.0"}
        await node.apply_pod("two", selector=profile("1g.10gb+me"))
        await node.api.wait_event("two", "cannot allocate")


async def test_an_instance_that_a_process_uses_is_destroyed_when_the_process_ends() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('7g.80gb')} && {ON_FIRST}")
        hardware(node).set(in_use=[ADDRESS])
        await node.api.delete("Pod", "pod")
        await node.api.wait_event("pod", f"a process still uses the MIG instance at 0 of {ADDRESS}")
        hardware(node).set(in_use=[])
        await node.delete_pod()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])


async def test_mig_mode_that_cannot_be_turned_on_leaves_nothing_behind() -> None:
    async with server() as node:
        hardware(node).set(in_use=[ADDRESS])
        await node.apply_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.api.wait_event("pod", f"MIG mode of {ADDRESS} cannot be turned on: a process uses the GPU")
        assert (places(node), hardware(node).read()["mig"]) == ([], [])
        hardware(node).set(in_use=[])
        await node.api.wait_running("pod")


async def test_a_place_that_an_operators_instance_occupies_is_named() -> None:
    async with server() as node:
        await node.run_pod("first", selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        with hardware(node).change() as state:
            other = state["instances"][0] | {"start": 4, "size": 4, "profile": 9, "gi": 9}
            state["instances"].append(other)
        await node.apply_pod("second", selector=f"{profile('3g.40gb')} && {ON_FIRST}")
        await node.api.wait_event("second", f"another MIG instance on {ADDRESS} occupies its place")
        assert (ADDRESS, 9, 4) in places(node)


async def test_a_start_destroys_instances_without_a_claim_and_keeps_those_of_claims() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.stop()
        with hardware(node).change() as state:
            state["instances"].append(state["instances"][0] | {"start": 4, "gi": 9})
        await node.start()
        assert places(node) == [(ADDRESS, 19, 0)]
        await node.delete_pod()
        assert places(node) == []


async def test_mig_mode_of_a_gpu_that_was_lost_when_its_last_claim_ended_is_turned_off_later() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('7g.80gb')} && {ON_FIRST}")
        hardware(node).set(lost=[ADDRESS])
        await node.delete_pod()
        await node.restart()
        hardware(node).set(lost=[])
        await node.rescan()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])
        await node.run_pod(selector=f"{WHOLE} && {ON_FIRST}")


async def test_mig_mode_that_stayed_on_belongs_to_the_next_claim() -> None:
    async with server() as node:
        await node.run_pod("first", selector=f"{profile('7g.80gb')} && {ON_FIRST}")
        hardware(node).set(lost=[ADDRESS])
        await node.delete_pod("first")
        hardware(node).set(lost=[], instances=[])
        await node.run_pod("second", selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.rescan()
        assert (places(node), hardware(node).read()["mig"]) == ([(ADDRESS, 19, 0)], [ADDRESS])
        await node.delete_pod("second")
        assert (places(node), hardware(node).read()["mig"]) == ([], [])


async def test_a_claim_ends_although_a_monitor_uses_the_gpu_and_mig_mode_is_turned_off_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        gpus = node.driver._open().gpus

        def fails(uuid: str, *, on: bool) -> None:
            raise InUseError("nvmlDeviceSetMigMode: In use by another client (19)")

        with monkeypatch.context() as patch:
            patch.setattr(gpus, "set_mig", fails)
            await node.delete_pod()
            assert (
                f"the MIG mode of {ADDRESS} stays on after its last claim: nvmlDeviceSetMigMode: In use" in caplog.text
            )
            assert not any((await node.leftovers()).values())
            await node.rescan()
            assert FIRST not in await node.published()
        await node.rescan()
        assert FIRST in await node.published()
        assert hardware(node).read()["mig"] == []


async def test_a_gpu_is_whole_again_when_an_operator_has_destroyed_the_last_instance() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        with hardware(node).change() as state:
            state["instances"].append(state["instances"][0] | {"start": 4, "size": 4, "profile": 9, "gi": 9})
        await node.delete_pod()
        assert places(node) == [(ADDRESS, 9, 4)]
        await node.rescan()
        assert FIRST not in await node.published()  # MIG mode is on, so the whole GPU cannot be prepared
        hardware(node).set(instances=[])
        await node.rescan()
        assert FIRST in await node.published()
        assert hardware(node).read()["mig"] == []


async def test_lost_records_are_recovered_although_the_library_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, failures = machine.open_library, [LibraryError("nvmlInitWithFlags: Unknown Error (999)")]

    def opened(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args)

    async with server() as node:
        await node.run_pod(selector=f"{profile('2g.20gb')} && {ON_FIRST}")
        names = await node.allocated("pod")
        await node.stop()
        shutil.rmtree(node.settings.records_path)
        shutil.rmtree(node.settings.cdi_root)
        monkeypatch.setattr(machine, "open_library", opened)
        await node.start()
        assert [held.rpartition("/")[2] for held in (await node.leftovers())["held"]] == names
        await node.delete_pod()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])


async def test_instances_of_one_gpu_that_cannot_be_read_stay_published_and_do_not_hide_changes_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = {"address": ADDRESS, "profile": 9, "start": 4, "size": 4, "gi": 1, "uuid": "MIG-1"}
    async with server(mig="static") as node:
        hardware(node).set(mig=[ADDRESS], instances=[instance])
        await node.rescan()
        await node.wait_published([f"{FIRST}-mig-3g40gb-9-4", SECOND])

        def fails(uuid: str) -> Any:
            raise LibraryError("Unknown Error (999)")

        monkeypatch.setattr(node.driver._open().gpus, "instances", fails)
        await node.unplug("0000:98:00.0")
        await node.wait_published([f"{FIRST}-mig-3g40gb-9-4"])


async def test_an_operators_instance_that_a_claim_has_survives_the_change_to_dynamic_mig() -> None:
    instance = {"address": ADDRESS, "profile": 9, "start": 4, "size": 4, "gi": 1, "uuid": "MIG-1"}
    async with server(mig="static") as node:
        hardware(node).set(mig=[ADDRESS], instances=[instance])
        _write_access(node, "gi1", "gi1/ci0")
        await node.rescan()
        await node.run_pod(selector=f'{ATTRIBUTES}.type == "mig"')
        await node.stop()
        await node.start(options={"nvidia_mig": "dynamic"})
        assert places(node) == [(ADDRESS, 9, 4)]
        await node.delete_pod()
        assert places(node) == [(ADDRESS, 9, 4)]  # the claim's end destroys only what the driver created for it
        assert not list((node.settings.plugin_dir / "mig").iterdir())
        await node.restart()
        assert places(node) == []


async def test_after_a_reboot_a_claim_ends_although_the_library_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.reboot()

        def fails() -> Any:
            raise NoLibraryError("NVIDIA's driver is not loaded")

        monkeypatch.setattr(node.driver, "_open", fails)
        await node.delete_pod()
        assert not any((await node.leftovers()).values())


async def test_lost_records_are_recovered_from_the_notes() -> None:
    async with server() as node:
        await node.run_pod("pod", selector=f"{profile('2g.20gb')} && {ON_FIRST}")
        uid = (await node.claim_of("pod"))["metadata"]["uid"]
        names = await node.allocated("pod")
        (found,) = node.driver.recover()
        assert (found.uid, [d.name for d in found.devices]) == (uid, names)
        assert [s.key for s in found.shared_steps or ()] == [ADDRESS]


async def test_both_instances_of_a_rolling_update_share_the_gpu() -> None:
    async with server() as node:
        await node.run_pod("before", selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.upgrade()
        await node.run_pod("after", selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        assert len(places(node)) == 2
        await node.delete_pod("before")
        assert hardware(node).read()["mig"] == [ADDRESS]
        await node.delete_pod("after")
        assert (places(node), hardware(node).read()["mig"]) == ([], [])


async def test_after_a_reboot_the_instances_are_created_again() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}", restart_policy="Always")
        await node.reboot()
        await node.api.wait_running("pod")
        assert places(node) == [(ADDRESS, 19, 0)]
        await node.delete_pod()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])


EACH_CHANGE = [pytest.param(n, marks=[] if n == 4 else pytest.mark.full) for n in range(1, 7)]


@pytest.mark.crash
@pytest.mark.parametrize("number", EACH_CHANGE)
async def test_a_kill_around_each_change_of_the_hardware_leaves_nothing_behind(number: int) -> None:
    """Creation changes MIG mode, GPU instances and compute instances. Odd numbers are before a change."""
    async with server(process=True) as node:
        await node.wait_published(lambda p: len(p) == 52)
        hardware(node).set(kill_at=number, changes=0)
        await node.apply_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        await node.api.wait("the kill", lambda: _changed(node, number))
        await node.stop()
        hardware(node).set(kill_at=0)
        await node.start()
        await node.api.wait_running("pod")
        assert places(node) == [(ADDRESS, 19, 0)]
        await node.delete_pod()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])
        assert not any((await node.leftovers()).values())


@pytest.mark.crash
@pytest.mark.parametrize("number", EACH_CHANGE)
async def test_a_kill_around_each_change_at_the_end_of_a_claim_leaves_nothing_behind(number: int) -> None:
    """The end destroys compute instance and GPU instance, and turns MIG mode off."""
    async with server(process=True) as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        hardware(node).set(kill_at=number, changes=0)
        await node.api.delete("Pod", "pod")
        await node.api.wait("the kill", lambda: _changed(node, number))
        await node.stop()
        hardware(node).set(kill_at=0)
        await node.start()
        await node.delete_pod()
        assert (places(node), hardware(node).read()["mig"]) == ([], [])
        assert not any((await node.leftovers()).values())
        assert not list((node.settings.plugin_dir / "mig").iterdir())


async def _changed(node: Server, number: int) -> bool:
    return bool(hardware(node).read()["changes"] >= number)


async def test_an_instance_of_a_gpu_that_was_lost_when_its_claim_ended_is_destroyed_later() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('7g.80gb')} && {ON_FIRST}")
        hardware(node).set(lost=[ADDRESS])
        await node.delete_pod()
        hardware(node).set(lost=[])
        await node.rescan()
        assert places(node) == []


async def test_mig_profiles_that_cannot_be_read_do_not_hide_changes_of_other_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server() as node:
        gpus = node.driver._open().gpus
        original = gpus.profiles

        def profiles(uuid: str) -> Any:
            if uuid == UUID:
                raise LibraryError("Unknown Error (999)")
            return original(uuid)

        monkeypatch.setattr(gpus, "profiles", profiles)
        await node.unplug("0000:98:00.0")
        await node.wait_published(lambda p: len(p) == 26)


async def test_mig_mode_is_turned_off_although_its_note_is_damaged() -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        (note,) = (node.settings.plugin_dir / "mig").glob("*.mode.json")
        note.write_text("")
        await node.restart()
        assert FIRST in await node.published()
        await node.delete_pod()
        assert hardware(node).read()["mig"] == []


async def test_static_mig_publishes_the_instances_that_exist() -> None:
    instances = [
        {"address": ADDRESS, "profile": 9, "start": 4, "size": 4, "gi": 1, "uuid": "MIG-1"},
        {"address": ADDRESS, "profile": 19, "start": 0, "size": 1, "gi": 2, "uuid": ""},  # without a compute instance
    ]
    async with server(mig="static") as node:
        hardware(node).set(mig=[ADDRESS], instances=instances)
        _write_access(node, "gi1", "gi1/ci0")
        await node.restart()
        published = await node.published()
        assert list(published) == [f"{FIRST}-mig-3g40gb-9-4", SECOND]
        part = published[f"{FIRST}-mig-3g40gb-9-4"]
        assert (part.attributes["uuid"], part.attributes["profile"]) == ("MIG-1", "3g.40gb")
        assert [c for c in part.capacity if c.startswith("memorySlice")] == [f"memorySlice{i}" for i in range(4, 8)]
        await node.run_pod(selector=f'{ATTRIBUTES}.type == "mig"')
        await node.delete_pod()
        assert len(hardware(node).read()["instances"]) == 2


def _write_access(node: Server, *folders: str) -> None:
    for i, folder in enumerate(folders):
        file = node.settings.sysfs_root / f"proc/driver/nvidia/capabilities/gpu0/mig/{folder}/access"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {i + 3}\nDeviceFileMode: 292\n")


@pytest.mark.parametrize(("mode", "wanted"), [("off", [SECOND]), ("dynamic", 25 + 26)])
async def test_a_gpu_in_an_operators_mig_mode_is_not_published_as_a_whole(mode: str, wanted: Any) -> None:
    async with server(mig=mode) as node:
        hardware(node).set(mig=[ADDRESS])
        await node.restart()
        published = await node.published()
        assert (list(published) if mode == "off" else len(published)) == wanted
        assert FIRST not in published


async def test_without_counters_in_the_api_server_only_whole_gpus_are_published() -> None:
    async with server() as node:
        node.api.drop("sharedCounters", "consumesCounters")
        await node.restart()
        await node.wait_published([FIRST, SECOND])


@pytest.mark.parametrize(
    "damage", [lambda text: text[:20], lambda text: "[]", lambda text: text.replace('"uid"', '"u"')]
)
async def test_an_instance_whose_note_is_damaged_is_destroyed_by_the_next_process(damage: Callable[[str], str]) -> None:
    async with server() as node:
        await node.run_pod(selector=f"{profile('1g.10gb')} && {ON_FIRST}")
        (note,) = (node.settings.plugin_dir / "mig").glob("*.instance.json")
        note.write_text(damage(note.read_text()))
        assert list(node.driver.recover()) == []
        await node.delete_pod()
        await node.restart()
        assert places(node) == []
