"""Tests of the NVML module on the recording, and against NVIDIA's bindings where they are installed."""

from __future__ import annotations

import dataclasses
import inspect
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dra_kubeletplugin import Version
from dra_kubeletplugin.resourceapi.validation.slices import MAX_ATTRIBUTES_AND_CAPACITIES

from nvidia import devices, names, nvml, recorded
from nvidia.hardware_state import NO_INSTANCE, XID, HardwareState
from nvidia.nvml import Nvml
from nvidia.recorded import NotRecordedError, RecordedBindings
from nvidia.sdk import (
    GpuLostError,
    Instance,
    InUseError,
    LibraryError,
    LibraryReplacedError,
    NoLibraryError,
    OccupiedError,
    Profile,
    Recovery,
)

ADDRESS = "0000:00:06.0"
UUID = "GPU-4f0c2a6e-7b1d-4e93-a5c8-0d9e6b3f2a17"


class Machine:
    """The recorded machine with its one GPU."""

    def __init__(self, folder: Path, *addresses: str) -> None:
        self.hardware = HardwareState(folder / "state.json", "boot")
        for i, address in enumerate(addresses or (ADDRESS,)):
            self.plug(folder, address, i)
        self.bindings = RecordedBindings(lambda: sorted(addresses or (ADDRESS,)), self.hardware, folder / "proc")
        self.nvml = Nvml(self.bindings)

    @staticmethod
    def plug(folder: Path, address: str, minor: int) -> None:
        file = folder / f"proc/driver/nvidia/gpus/{address}/information"
        file.parent.mkdir(parents=True)
        file.write_text(f"GPU UUID: \t {UUID if not minor else f'GPU-{minor}'}\nDevice Minor: \t {minor}\n")

    def profile(self, name: str) -> Profile:
        return next(p for p in self.nvml.profiles(UUID) if p.name == name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_instance_is_listed_created_and_destroyed_without_reading_the_places_of_profiles(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of all profiles are two further calls of NVML for each profile, for each list of instances."""
    profile = machine.profile("1g.10gb")
    machine.nvml.set_mig(UUID, on=True)

    def fails(*_: Any) -> int:
        raise AssertionError("the places of a profile were read")

    monkeypatch.setattr(machine.bindings, "nvmlDeviceGetGpuInstancePossiblePlacements", fails)
    machine.nvml.create(UUID, profile, 0)
    assert len(machine.nvml.instances(UUID)) == 1
    assert machine.nvml.destroy(UUID, profile.id, 0)


def test_the_recorded_gpu(machine: Machine) -> None:
    (gpu,) = machine.nvml.gpus()
    assert (gpu.uuid, gpu.address, gpu.minor, gpu.memory) == (UUID, ADDRESS, 0, 81559 << 20)
    assert (gpu.driver_version, gpu.cuda_version, gpu.compute_capability) == ("580.159.04", "13.0", "9.0")
    assert (gpu.mig, gpu.switches_mig, gpu.reads_profiles, gpu.is_vgpu) == (False, True, True, False)
    assert (gpu.addressing_mode, gpu.fabric_clique, gpu.ecc, gpu.pcie_generation) == (None, None, True, 5)
    assert machine.nvml.users(UUID) == []
    assert machine.nvml.recovery(UUID) == Recovery()


def test_the_profiles_of_the_recorded_gpu(machine: Machine) -> None:
    found = {p.name: p for p in machine.nvml.profiles(UUID)}
    assert {name: (p.id, p.instances, p.starts, p.size, p.multiprocessors) for name, p in found.items()} == {
        "1g.10gb": (19, 7, tuple(range(7)), 1, 16),
        "2g.20gb": (14, 3, (0, 2, 4), 2, 32),
        "3g.40gb": (9, 2, (0, 4), 4, 60),
        "4g.40gb": (5, 1, (0,), 4, 64),
        "7g.80gb": (0, 1, (0,), 8, 132),
        "1g.10gb+me": (20, 1, tuple(range(7)), 1, 16),
        "1g.20gb": (15, 4, (0, 2, 4, 6), 2, 26),
    }
    assert found["1g.10gb+me"].ofa_engines == 1


def test_devices_with_all_attributes_are_within_the_limit_of_the_api_server(machine: Machine) -> None:
    (recorded_gpu,) = machine.nvml.gpus()
    gpu = dataclasses.replace(recorded_gpu, addressing_mode="HMM", fabric_clique="1.2")
    standard = {f"resource.kubernetes.io/{name}": 0 for name in ("pciBusID", "pcieRoot", "numaNode")}
    fn: Any = SimpleNamespace(attributes=lambda: {**standard, "linkSpeed": 32000, "linkWidth": 16, "vendor": "10de"})
    profiles = machine.nvml.profiles(UUID)
    largest = max(profiles, key=lambda p: p.size)
    made = [
        devices.whole(gpu, fn),
        *devices.partitioned(gpu, fn, profiles, with_whole=True).devices,
        devices.existing(gpu, fn, largest, Instance(largest.id, 0, 1, (0,), "MIG-1")),
    ]
    assert max(len(d.attributes) + len(d.capacity) for d in made) == MAX_ATTRIBUTES_AND_CAPACITIES


def test_a_gpu_without_memory_of_its_own_is_published(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GB10 uses the memory of the host. A brand or an architecture may be newer than the bindings."""

    def not_supported(handle: Any) -> Any:
        raise recorded.NVMLError(nvml.NOT_SUPPORTED)

    for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture"):
        monkeypatch.setattr(machine.bindings, name, not_supported, raising=False)
    (gpu,) = machine.nvml.gpus()
    assert (gpu.memory, gpu.brand, gpu.architecture) == (None, "Unknown", "Unknown")
    fn: Any = SimpleNamespace(attributes=dict)
    assert devices.whole(gpu, fn).capacity == {}


def test_a_version_with_letters_is_published(machine: Machine) -> None:
    (gpu,) = machine.nvml.gpus()
    fn: Any = SimpleNamespace(attributes=dict)
    whole = devices.whole(dataclasses.replace(gpu, driver_version="580.159.04-rc2"), fn)
    assert (whole.attributes["driverVersion"], whole.faults()) == (Version("580.159.4-rc2"), [])


def test_an_instance_is_created_listed_and_destroyed(machine: Machine) -> None:
    machine.nvml.set_mig(UUID, on=True)
    made = machine.nvml.create(UUID, machine.profile("2g.20gb"), 2)
    assert (made.profile, made.start, made.compute_instances, made.uuid[:4]) == (14, 2, (0,), "MIG-")
    assert machine.nvml.instances(UUID) == [made]
    assert machine.nvml.destroy(UUID, 14, 2) is True
    assert machine.nvml.destroy(UUID, 14, 2) is False
    assert machine.nvml.instances(UUID) == []
    machine.nvml.set_mig(UUID, on=False)
    assert machine.nvml.gpus()[0].mig is False


def test_half_an_instance_is_listed_and_destroyed(machine: Machine) -> None:
    half = {"address": ADDRESS, "profile": 9, "start": 4, "size": 4, "gi": 1, "uuid": ""}
    machine.hardware.set(mig=[ADDRESS], instances=[half])
    (found,) = machine.nvml.instances(UUID)
    assert (found.compute_instances, found.uuid) == ((), "")
    assert machine.nvml.destroy(UUID, 9, 4)


@pytest.mark.parametrize(
    ("first", "second"), [(("4g.40gb", 0), ("1g.10gb", 3)), (("1g.10gb+me", 0), ("1g.10gb+me", 5))]
)
def test_an_occupied_place_or_engine_is_an_error_of_its_own(
    machine: Machine, first: tuple[str, int], second: tuple[str, int]
) -> None:
    machine.nvml.set_mig(UUID, on=True)
    machine.nvml.create(UUID, machine.profile(first[0]), first[1])
    with pytest.raises(OccupiedError, match=r"Insufficient Resources \(23\)"):
        machine.nvml.create(UUID, machine.profile(second[0]), second[1])


def test_mig_mode_that_is_only_requested_is_an_error(machine: Machine) -> None:
    machine.hardware.set(in_use=[ADDRESS])
    with pytest.raises(InUseError, match="activation of MIG mode"):
        machine.nvml.set_mig(UUID, on=True)
    pending: Any = lambda device, mode: 0  # noqa: E731 - as on GPUs that need a reset: no error, and the mode stays off
    machine.bindings.nvmlDeviceSetMigMode = pending  # type: ignore[method-assign]
    with pytest.raises(LibraryError, match=f"MIG mode of {UUID} is on only after a reset"):
        machine.nvml.set_mig(UUID, on=True)


def test_a_lost_gpu_is_left_out_and_named_by_its_calls(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ADDRESS, "0000:98:00.0")
    assert len(machine.nvml.gpus()) == 2
    machine.hardware.set(lost=[ADDRESS])
    assert [g.address for g in machine.nvml.gpus()] == ["0000:98:00.0"]
    with pytest.raises(GpuLostError):
        machine.nvml.recovery(UUID)


def test_a_gpu_that_fails_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, ADDRESS, "0000:98:00.0")
    original = machine.bindings.nvmlDeviceGetHandleByIndex
    failing = {0}

    def handle(index: int) -> Any:
        if index in failing:
            raise recorded.NVMLError(999)
        return original(index)

    monkeypatch.setattr(machine.bindings, "nvmlDeviceGetHandleByIndex", handle)
    assert [g.address for g in machine.nvml.gpus()] == ["0000:98:00.0"]
    failing.add(1)
    with pytest.raises(LibraryError, match=r"nvmlDeviceGetHandleByIndex: .*999"):
        machine.nvml.gpus()


def test_the_last_event_of_a_lost_gpu_names_the_gpu(machine: Machine) -> None:
    machine.nvml.wait(0.02)
    machine.hardware.send_xid(ADDRESS, 79)
    machine.hardware.set(lost=[ADDRESS])
    event = machine.nvml.wait(5)
    assert event and (event.gpu, event.xid) == (UUID, 79)


def test_events_name_the_gpu_and_the_instance(machine: Machine) -> None:
    machine.nvml.gpus()
    machine.hardware.send_xid(ADDRESS, 31)
    machine.hardware.send_xid(ADDRESS, 43, gpu_instance=3)
    first, second = machine.nvml.wait(5), machine.nvml.wait(5)
    assert first and (first.gpu, first.kind, first.xid, first.gpu_instance) == (UUID, "XID", 31, None)
    assert second and (second.xid, second.gpu_instance) == (43, 3)
    assert machine.nvml.wait(0.02) is None


def test_a_gpu_without_events_does_not_hide_the_events_of_the_others(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ADDRESS, "0000:98:00.0")
    machine.nvml.gpus()
    machine.hardware.set(unmonitored=[ADDRESS])
    machine.hardware.send_xid("0000:98:00.0", 79)
    event = machine.nvml.wait(5)
    assert event and (event.gpu, event.xid) == ("GPU-1", 79)
    assert list(machine.nvml.unmonitored()) == [UUID]


def test_a_library_that_could_not_be_opened_again_is_opened_by_a_later_call(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failures = machine.bindings.nvmlInitWithFlags, [999]

    def init(flags: int) -> None:
        if failures:
            raise recorded.NVMLError(failures.pop())
        original(flags)

    monkeypatch.setattr(machine.bindings, "nvmlInitWithFlags", init)
    with pytest.raises(LibraryError, match="nvmlInitWithFlags"), machine.nvml.closed():
        pass
    assert len(machine.nvml.gpus()) == 1


def test_a_wait_without_an_answer_of_a_gpu_raises(machine: Machine) -> None:
    machine.nvml.wait(0.02)
    machine.hardware.set(lost=[ADDRESS])
    with pytest.raises(GpuLostError):
        machine.nvml.wait(1)


def test_events_are_registered_again_when_there_are_other_gpus(tmp_path: Path) -> None:
    addresses = [ADDRESS]
    machine = Machine(tmp_path)
    machine.bindings._addresses = lambda: addresses
    machine.nvml.wait(0.02)
    addresses.append("0000:98:00.0")
    machine.plug(tmp_path, addresses[-1], 1)
    assert len(machine.nvml.gpus()) == 1
    with machine.nvml.closed():
        pass
    assert len(machine.nvml.gpus()) == 2
    machine.hardware.send_xid("0000:98:00.0", 79)
    event = machine.nvml.wait(5)
    assert event and event.xid == 79


def test_an_updated_driver_is_an_error_of_its_own(machine: Machine) -> None:
    machine.hardware.set(replaced=True)
    with pytest.raises(LibraryReplacedError):
        machine.nvml.gpus()


def test_the_library_is_closed_within_a_block_and_opened_again(machine: Machine) -> None:
    with machine.nvml.closed():
        assert machine.bindings._opened == 0
    assert len(machine.nvml.gpus()) == 1
    machine.nvml.close()
    with pytest.raises(LibraryError, match=r"Uninitialized \(1\)"):
        machine.nvml.gpus()


def test_a_library_is_closed_soon_although_a_thread_waits_for_events_again_and_again(machine: Machine) -> None:
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            machine.nvml.wait(1)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for _ in range(3):
            begun = time.monotonic()
            with machine.nvml.closed():
                assert machine.bindings._opened == 0
            assert time.monotonic() - begun < 5
    finally:
        ended.set()
        thread.join()


def test_a_function_that_the_bindings_lack_is_left_out(machine: Machine) -> None:
    class Others:
        def __getattr__(self, name: str) -> Any:
            if name in {"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetAddressingMode"}:
                raise AttributeError(name)
            return getattr(machine.bindings, name)

    (gpu,) = Nvml(Others()).gpus()
    assert (gpu.uuid, gpu.fabric_clique) == (UUID, None)


def test_a_call_that_was_not_recorded_raises(machine: Machine) -> None:
    with pytest.raises(NotRecordedError, match="nvmlDeviceGetTemperatureThreshold"):
        machine.bindings.nvmlDeviceGetTemperatureThreshold("device:0", 77)


def test_a_library_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / nvml.LIBRARY).write_text("no library")
    with pytest.raises(NoLibraryError, match=f"{tmp_path}/{nvml.LIBRARY} cannot be loaded"):
        nvml.load(tmp_path / nvml.LIBRARY)


# --- NVIDIA's bindings --------------------------------------------------------------------------

SOURCE = Path(nvml.__file__).read_text()
CALLED = sorted(set(re.findall(r'"(nvml\w+)"', SOURCE)))


@pytest.mark.parametrize("name", CALLED)
def test_the_bindings_have_each_function_with_the_parameters_of_its_imitation(name: str) -> None:
    bindings = pytest.importorskip("pynvml")
    real = list(inspect.signature(getattr(bindings, name)).parameters.values())
    imitation = getattr(RecordedBindings, name, None)
    if imitation is not None:
        needed = [p for p in real if p.default is p.empty]
        assert len(needed) <= len(inspect.signature(imitation).parameters) - 1 <= len(real)


def test_the_numbers_are_those_of_the_bindings() -> None:
    bindings = pytest.importorskip("pynvml")
    prefix = "NVML_ERROR_"
    named = {name: getattr(bindings, prefix + name) for name in vars(nvml) if hasattr(bindings, prefix + name)}
    assert len(named) == 12
    assert {name: getattr(nvml, name) for name in named} == named
    events = {v for name, v in vars(bindings).items() if name.startswith("nvmlEvent") and isinstance(v, int)}
    assert set(names.EVENTS) <= events
    assert nvml.XID == XID == bindings.nvmlEventTypeXidCriticalError
    assert nvml.FIELD_SWITCHES_MIG == bindings.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
    assert nvml.FIELD_READS_PROFILES == bindings.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE
    assert nvml.FIELD_RECOVERY_ACTION == bindings.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    assert nvml.VIRTUAL_GPU == bindings.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    assert nvml.FABRIC_COMPLETED == bindings.NVML_GPU_FABRIC_STATE_COMPLETED
    assert nvml.INIT_WITHOUT_GPUS == bindings.NVML_INIT_FLAG_NO_GPUS
    assert nvml.UNSIGNED_INT == bindings.NVML_VALUE_TYPE_UNSIGNED_INT
    assert nvml.NO_INSTANCE == NO_INSTANCE
    for slices, number in nvml.COMPUTE_PROFILE_OF_SLICES.items():
        assert getattr(bindings, f"NVML_COMPUTE_INSTANCE_PROFILE_{slices}_SLICE") == number
    for number, name in names.ARCHITECTURES.items():
        assert getattr(bindings, f"NVML_DEVICE_ARCH_{name.upper()}") == number
    assert len(recorded.NVMLError(23).args[0]) > 0
