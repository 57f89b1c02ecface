"""Runs NVIDIA's real bindings and the NVML module on a library whose functions are written in Python.

It shows that arguments reach the library as C would get them: pointers, arrays and handles. It does not show that NVML
itself accepts them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from nvidia.nvml import Nvml
from nvidia.sdk import Event, OccupiedError, Profile

pynvml: Any = pytest.importorskip("pynvml")
UUID = "GPU-1"
SMALL = Profile(19, "1g.10gb", 1, 7, (0, 2), 1, 9984, 16, 1, 1, 0, 1, 0)


class Library:
    """Functions of NVML by name; each gets what the bindings pass and returns a code."""

    def __init__(self) -> None:
        self.gpu = ctypes.pointer(pynvml.struct_c_nvmlDevice_t())
        self.instances: list[tuple[int, int]] = []
        self.calls: list[str] = []
        self.nvmlErrorString = lambda code: b"error %d" % code  # the bindings set an attribute of the function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            return self._succeed
        raise AttributeError(name)

    def _succeed(self, *arguments: Any) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> int:
        value = uuid.value if isinstance(uuid, ctypes.c_char_p) else uuid
        assert value in (UUID.encode(), UUID)
        out._obj.contents = self.gpu.contents
        return 0

    def nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, number: int, out: Any) -> int:
        if number != 0:
            return 3  # not supported
        info = out._obj
        info.id, info.sliceCount, info.instanceCount, info.memorySizeMB, info.multiprocessorCount = 19, 1, 7, 9984, 16
        info.copyEngineCount = info.decoderCount = info.jpegCount = 1
        info.name = b"MIG 1g.10gb"
        return 0

    def nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, device: Any, profile: int, array: Any, count: Any) -> int:
        if array is not None:
            array[0].start, array[0].size, array[1].start, array[1].size = 0, 1, 2, 1
        count._obj.value = 2
        return 0

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, device: Any, profile: int, place: Any, out: Any) -> int:
        self.calls.append(f"gpu instance {profile} at {place._obj.start}+{place._obj.size}")
        if any(start == place._obj.start for _, start in self.instances):
            return 23
        self.instances.append((profile, place._obj.start))
        return 0

    def nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, instance: Any, number: int, engine: int, out: Any) -> int:
        if number != 0:
            return 3
        out._obj.id, out._obj.instanceCount = 5, 1
        return 0

    def nvmlGpuInstanceCreateComputeInstance(self, instance: Any, profile: int, out: Any) -> int:
        self.calls.append(f"compute instance {profile}")
        return 0

    def nvmlDeviceGetGpuInstances(self, device: Any, profile: int, array: Any, count: Any) -> int:
        for i in range(len(self.instances)):
            array[i] = ctypes.pointer(pynvml.struct_c_nvmlGpuInstance_t())
        count._obj.value = len(self.instances)
        return 0

    def nvmlGpuInstanceGetInfo(self, instance: Any, out: Any) -> int:
        out._obj.id, (out._obj.profileId, out._obj.placement.start) = 3, self.instances[-1]
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any, out: Any) -> int:
        out._obj.value = 1
        return 0

    def nvmlDeviceGetGpuInstanceId(self, device: Any, out: Any) -> int:
        out._obj.value = 3
        return 0

    def nvmlDeviceGetUUID(self, device: Any, out: Any, size: Any) -> int:
        out.value = b"MIG-1" if self.instances else UUID.encode()
        return 0

    def nvmlGpuInstanceGetComputeInstances(self, instance: Any, profile: int, array: Any, count: Any) -> int:
        array[0] = ctypes.pointer(pynvml.struct_c_nvmlComputeInstance_t())
        count._obj.value = 1
        return 0

    def nvmlComputeInstanceDestroy(self, instance: Any) -> int:
        self.calls.append("compute instance destroyed")
        return 0

    def nvmlGpuInstanceDestroy(self, instance: Any) -> int:
        self.calls.append("gpu instance destroyed")
        self.instances.pop()
        return 0

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        out._obj.value = 0
        return 0

    def nvmlEventSetWait_v2(self, event_set: Any, out: Any, milliseconds: Any) -> int:
        self.calls.append(f"wait {milliseconds.value}")
        out._obj.eventType, out._obj.eventData, out._obj.gpuInstanceId = 8, 31, 0xFFFFFFFF
        return 0

    def nvmlDeviceGetFieldValues(self, device: Any, count: Any, values: Any) -> int:
        field = values._obj[0]
        field.valueType, field.value.uiVal, field.nvmlReturn = 1, 1 if field.fieldId == 230 else 0, 0
        return 0

    def nvmlDeviceGetRemappedRows(
        self, device: Any, corrected: Any, uncorrected: Any, pending: Any, failed: Any
    ) -> int:
        failed._obj.value = 1
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return made


@pytest.mark.usefixtures("library")
def test_profiles_and_places_are_read() -> None:
    assert Nvml(pynvml).profiles(UUID) == [SMALL]


def test_an_instance_is_created_and_destroyed(library: Library) -> None:
    nvml = Nvml(pynvml)
    made = nvml.create(UUID, SMALL, 2)
    assert (made.profile, made.start, made.gpu_instance, made.uuid) == (19, 2, 3, "MIG-1")
    with pytest.raises(OccupiedError):
        nvml.create(UUID, SMALL, 2)
    assert nvml.destroy(UUID, 19, 2)
    assert library.calls == [
        "gpu instance 19 at 2+1",
        "compute instance 5",
        "gpu instance 19 at 2+1",
        "compute instance destroyed",
        "gpu instance destroyed",
    ]


def test_events_and_recovery_are_read(library: Library) -> None:
    nvml = Nvml(pynvml)
    assert nvml.wait(1.5) == Event(UUID, "XID", 31, None)
    assert library.calls == ["wait 1500"]
    recovery = nvml.recovery(UUID)
    assert (recovery.action, recovery.rows_failed) == ("reset the GPU", True)
