"""Imitates the bindings of NVML on a described host, from the recording of a real GPU. A real machine never uses it.

Reading calls return what an H100 returned (``recordings/h100.json``), and a call that was not recorded raises. Calls
that change a GPU, and events, work on a file with the state of the hardware: it outlives the plugin, and a test can
change it. The file belongs to one boot.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import nvml
from .hardware_state import HardwareState, State

RECORDING = Path(__file__).parents[2] / "recordings/h100.json"
CAPS = "driver/nvidia/capabilities"  # below /proc
MEMORY_SLICES = 8
MULTIPROCESSORS = 132
UNINITIALIZED = 1
_POLL = 0.01
_LONGEST_WAIT = 0.1  # seconds, so that tests end soon
_NAMES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    6: "Not Found",
    10: "Timeout",
    13: "Function Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
    19: "In use by another client",
    23: "Insufficient Resources",
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(_NAMES.get(value, f"NVML Error with code {value}"))
        self.value = value


class NotRecordedError(Exception):
    """The recording has no such call, so a test that makes it would prove nothing."""


class _Placement(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


class _FabricInfo(ctypes.Structure):
    _fields_ = (
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
    )


@cache
def _recording(path: Path) -> dict[str, Any]:
    """Returns the recorded calls by name and arguments. Of equal calls the first counts."""
    out: dict[str, Any] = {}
    for entry in json.loads(path.read_text()):
        if "call" in entry:
            out.setdefault(_key(entry["call"], entry["args"]), entry)
    return out


def _key(name: str, args: Sequence[Any]) -> str:
    return f"{name}({', '.join(map(str, args))})"


class RecordedBindings:
    """Has the functions of the bindings that the driver calls.

    Args:
        addresses: the PCI addresses of the GPUs.
        hardware: the state of the GPUs.
        proc: ``/proc`` of the described host, which has UUID and minor number of each GPU. The capabilities of MIG
            instances appear in it.
        recording: the recorded calls.
    """

    NVMLError = NVMLError
    c_nvmlGpuInstancePlacement_t = _Placement
    c_nvmlGpuFabricInfo_t = _FabricInfo
    c_nvmlGpuInstance_t = ctypes.py_object
    c_nvmlComputeInstance_t = ctypes.py_object

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        hardware: HardwareState,
        proc: Path,
        recording: Path = RECORDING,
    ) -> None:
        self._addresses = addresses
        self.hardware = hardware
        self._proc = proc
        self._calls = _recording(recording)
        self._opened = 0
        self._found: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            return partial(self._replay, name)
        raise AttributeError(name)

    def _replay(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Returns what the recorded GPU returned."""
        self._check()
        handles = [a for a in args if isinstance(a, _Device)]
        for handle in handles:
            self._present(handle.address)
        entry = self._calls.get(_key(name, ["device:0" if isinstance(a, _Device) else a for a in args]))
        if entry is None:
            raise NotRecordedError(f"{_key(name, args)} was not recorded")
        if error := entry.get("error"):
            raise NVMLError(error["code"])
        result = entry["result"]
        return SimpleNamespace(**result) if isinstance(result, dict) else result

    def _check(self) -> None:
        if not self._opened:
            raise NVMLError(UNINITIALIZED)
        if self.hardware.read()["replaced"]:
            raise NVMLError(nvml.LIB_RM_VERSION_MISMATCH)

    def _present(self, address: str) -> None:
        if address not in self._addresses() or address in self.hardware.read()["lost"]:
            raise NVMLError(nvml.GPU_IS_LOST)

    @contextlib.contextmanager
    def _changing(self, address: str) -> Iterator[State]:
        """Changes the hardware. Kills the process before or after the change, if the state asks for it."""
        self._check()
        self._present(address)
        with self.hardware.change() as state:
            state["changes"] += 2
            number, kill_at = state["changes"], state["kill_at"]
            if kill_at != number - 1:
                yield state
        if kill_at in (number - 1, number):
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    # --- GPUs -----------------------------------------------------------------------------------

    def nvmlInitWithFlags(self, flags: int) -> None:
        self._opened += 1
        self._found = sorted(self._addresses())  # NVML does not find GPUs that are bound later

    def nvmlShutdown(self) -> None:
        self._check()
        self._opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self._found)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._check()
        address = self._found[index]
        self._present(address)
        return _Device(address)

    def nvmlDeviceGetHandleByUUID(self, wanted: str) -> Any:
        self._check()
        for address in self._found:
            if self._uuid(address) == wanted:
                self._present(address)
                return _Device(address)
        raise NVMLError(nvml.NOT_FOUND)

    def nvmlDeviceGetUUID(self, device: Any) -> str:
        if isinstance(device, _Mig):
            return str(device.instance["uuid"])
        self._present(device.address)
        return self._uuid(device.address)

    def _uuid(self, address: str) -> str:
        return self._information(address)["GPU UUID"]

    def nvmlDeviceGetMinorNumber(self, device: _Device) -> int:
        self._present(device.address)
        return int(self._information(device.address)["Device Minor"])

    def _information(self, address: str) -> dict[str, str]:
        """Returns what the kernel driver of a described host writes about a GPU below ``/proc``."""
        text = (self._proc / f"driver/nvidia/gpus/{address}/information").read_text()
        pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
        return {key.strip(): value.strip() for key, value in pairs}

    def nvmlDeviceGetPciInfo_v3(self, device: _Device) -> Any:
        self._present(device.address)
        return SimpleNamespace(busId=f"0000{device.address.upper()}")

    def nvmlDeviceGetFieldValues(self, device: _Device, fields: Sequence[int]) -> list[Any]:
        every = self._calls[_key("nvmlDeviceGetFieldValues", ["device:0", "each field by itself"])]["result"].values()
        self._check()
        self._present(device.address)
        by_id = {field["id"]: field for field in every}
        action = self.hardware.read()["action"].get(device.address)
        out = []
        for field in fields:
            if field not in by_id:
                raise NotRecordedError(f"field {field} was not recorded")
            value = action if action is not None and field == nvml.FIELD_RECOVERY_ACTION else by_id[field].get("value")
            code, number = (0, value) if value is not None else (nvml.NOT_SUPPORTED, 0)
            values = SimpleNamespace(uiVal=number, ullVal=number)
            out.append(SimpleNamespace(nvmlReturn=code, valueType=by_id[field].get("type", 0), value=values))
        return out

    def nvmlDeviceGetGpuInstanceProfileInfo(self, device: _Device, number: int, version: int) -> Any:
        return self._replay("nvmlDeviceGetGpuInstanceProfileInfo", device, number)

    def nvmlDeviceGetGpuFabricInfo(self, device: _Device, info: Any) -> Any:
        return self._replay("nvmlDeviceGetGpuFabricInfo", device, "<c_nvmlGpuFabricInfo_t>")  # all zero

    def nvmlDeviceGetPersistenceMode(self, device: _Device) -> int:
        self._present(device.address)
        return int(device.address not in self.hardware.read()["released"])

    def nvmlDeviceSetPersistenceMode(self, device: _Device, mode: int) -> None:
        self._present(device.address)
        self.hardware.set_persistent(device.address, on=bool(mode))

    # --- partitions -----------------------------------------------------------------------------

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, device: _Device, profile: int, array: Any, count: Any) -> int:
        places = self._places(device, profile)
        if array is not None:
            for i, (start, size) in enumerate(places):
                array[i].start, array[i].size = start, size
        count._obj.value = len(places)
        return 0

    def _places(self, device: _Device, profile: int) -> list[tuple[int, int]]:
        self._check()
        self._present(device.address)
        entry = self._calls[_key("nvmlDeviceGetGpuInstancePossiblePlacements_v2", ["device:0", profile])]
        return [(place["start"], place["size"]) for place in entry["result"]]

    def nvmlDeviceGetMigMode(self, device: _Device) -> list[int]:
        self._check()
        self._present(device.address)
        return [int(device.address in self.hardware.read()["mig"])] * 2

    def nvmlDeviceSetMigMode(self, device: _Device, mode: int) -> int:
        with self._changing(device.address) as state:
            if device.address in state["in_use"]:
                return nvml.IN_USE  # as activation status: the call itself succeeds
            if not mode and any(i["address"] == device.address for i in state["instances"]):
                raise NVMLError(nvml.IN_USE)
            state["mig"] = sorted({*state["mig"], device.address} if mode else {*state["mig"]} - {device.address})
        return 0

    def nvmlDeviceGetMaxMigDeviceCount(self, device: _Device) -> int:
        return 7 if self.nvmlDeviceGetMigMode(device)[0] else 0

    def _instances(self, device: _Device) -> list[State]:
        return [i for i in self.hardware.read()["instances"] if i["address"] == device.address]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: _Device, index: int) -> Any:
        self._check()
        complete = [i for i in self._instances(device) if i["uuid"]]
        if index >= len(complete):
            raise NVMLError(nvml.NOT_FOUND)
        return _Mig(complete[index])

    def nvmlDeviceGetGpuInstanceId(self, mig: Any) -> int:
        return int(mig.instance["gi"])

    def nvmlDeviceGetComputeInstanceId(self, mig: Any) -> int:
        return 0

    def nvmlDeviceGetGpuInstances(self, device: _Device, profile: int, array: Any, count: Any) -> int:
        self._check()
        self._present(device.address)
        found = [_Mig(i) for i in self._instances(device) if i["profile"] == profile]
        for i, instance in enumerate(found):
            array[i] = instance
        count._obj.value = len(found)
        return 0

    def nvmlGpuInstanceGetInfo(self, gi: Any) -> Any:
        place = SimpleNamespace(start=gi.instance["start"], size=gi.instance["size"])
        return SimpleNamespace(id=gi.instance["gi"], profileId=gi.instance["profile"], placement=place)

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, device: _Device, profile: int, place: Any) -> Any:
        start, size = place._obj.start, place._obj.size
        with self._changing(device.address) as state:
            if device.address not in state["mig"]:
                raise NVMLError(nvml.NOT_SUPPORTED)
            if (start, size) not in self._places(device, profile):
                raise NVMLError(nvml.INVALID_ARGUMENT)
            self._check_room(device, profile, range(start, start + size))
            used = {i["gi"] for i in self._instances(device)}
            instance = {
                "address": device.address,
                "profile": profile,
                "start": start,
                "size": size,
                "gi": next(n for n in range(1, 16) if n not in used),
                "uuid": "",
            }
            state["instances"].append(instance)
        self._write_capability(device, f"gi{instance['gi']}")
        return _Mig(instance)

    def _check_room(self, device: _Device, profile: int, wanted: range) -> None:
        """Raises if the memory slices, the engines or the number of instances of the profile are used up."""
        others = self._instances(device)
        occupied = {slot for i in others for slot in range(i["start"], i["start"] + i["size"])}
        infos = [self._profile(i["profile"]) for i in others] + [self._profile(profile)]
        same = sum(i["profile"] == profile for i in others)
        if (
            occupied & set(wanted)
            or same >= self._profile(profile)["instanceCount"]
            or sum(info["multiprocessorCount"] for info in infos) > MULTIPROCESSORS
            or sum(info["ofaCount"] for info in infos) > 1
        ):
            raise NVMLError(nvml.INSUFFICIENT_RESOURCES)

    def _profile(self, id: int) -> Any:
        return self._calls[_key("nvmlDeviceGetGpuInstanceProfileInfoById", ["device:0", id])]["result"]

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, gi: Any, number: int, engine: int) -> Any:
        self._check()
        slices = self._profile(gi.instance["profile"])["sliceCount"]
        if number not in nvml.COMPUTE_PROFILE_OF_SLICES.values():
            raise NVMLError(nvml.NOT_SUPPORTED)
        size = next(s for s, n in nvml.COMPUTE_PROFILE_OF_SLICES.items() if n == number)
        if size > slices:
            raise NVMLError(nvml.NOT_SUPPORTED)
        return SimpleNamespace(id=number, sliceCount=size, instanceCount=slices // size)

    def nvmlGpuInstanceCreateComputeInstance(self, gi: Any, profile: int) -> Any:
        address = gi.instance["address"]
        with self._changing(address) as state:
            instance = _same(state, gi.instance)
            if instance["uuid"]:
                raise NVMLError(nvml.INSUFFICIENT_RESOURCES)
            place = f"{self._uuid(address)}/{instance['profile']}/{instance['start']}"
            instance["uuid"] = f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, place)}"
        self._write_capability(_Device(address), f"gi{instance['gi']}/ci0")
        return _Mig(instance)

    def nvmlGpuInstanceGetComputeInstances(self, gi: Any, profile: int, array: Any, count: Any) -> int:
        instance = _same(self.hardware.read(), gi.instance)
        slices = self._profile(instance["profile"])["sliceCount"]
        exists = bool(instance["uuid"]) and profile == nvml.COMPUTE_PROFILE_OF_SLICES[slices]
        if exists:
            array[0] = _Mig(instance)
        count._obj.value = int(exists)
        return 0

    def nvmlComputeInstanceDestroy(self, ci: Any) -> None:
        with self._changing(ci.instance["address"]) as state:
            if ci.instance["address"] in state["in_use"]:
                raise NVMLError(nvml.IN_USE)
            _same(state, ci.instance)["uuid"] = ""

    def nvmlGpuInstanceDestroy(self, gi: Any) -> None:
        with self._changing(gi.instance["address"]) as state:
            instance = _same(state, gi.instance)
            if gi.instance["address"] in state["in_use"] or instance["uuid"]:
                raise NVMLError(nvml.IN_USE)
            state["instances"].remove(instance)

    def _write_capability(self, device: _Device, path: str) -> None:
        """Writes the file from which a driver learns the minor number of the device node of an instance."""
        minor = self.nvmlDeviceGetMinorNumber(device)
        instance, _, compute = path.partition("/")
        number = 3 + minor * 128 + int(instance.removeprefix("gi")) * 9 + bool(compute)
        file = self._proc / CAPS / f"gpu{minor}/mig/{path}/access"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")

    # --- health ---------------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> list[str]:
        self._check()
        return []

    def nvmlDeviceRegisterEvents(self, device: _Device, types: int, event_set: list[str]) -> None:
        self._present(device.address)
        if device.address in self.hardware.read()["unmonitored"]:
            raise NVMLError(nvml.NOT_SUPPORTED)
        event_set.append(device.address)

    def nvmlEventSetFree(self, event_set: list[str]) -> None:
        event_set.clear()

    def nvmlEventSetWait_v2(self, event_set: list[str], milliseconds: int) -> Any:
        deadline = time.monotonic() + min(milliseconds / 1000, _LONGEST_WAIT)
        while time.monotonic() < deadline:
            self._check()
            if any(e["address"] in event_set for e in self.hardware.read()["events"]):
                with self.hardware.change() as state:
                    for event in [e for e in state["events"] if e["address"] in event_set][:1]:
                        state["events"].remove(event)
                        return SimpleNamespace(
                            device=_Device(event["address"]),
                            eventType=event["type"],
                            eventData=event["data"],
                            gpuInstanceId=event["gi"],
                        )
            if any(address in self.hardware.read()["lost"] for address in event_set):
                raise NVMLError(nvml.GPU_IS_LOST)
            time.sleep(_POLL)
        raise NVMLError(nvml.TIMEOUT)


class _Device:
    """A handle of a GPU."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __str__(self) -> str:
        return f"<GPU {self.address}>"

    def __bytes__(self) -> bytes:
        return self.address.encode()


class _Mig:
    """A handle of a GPU instance, of its compute instance, or of its device."""

    def __init__(self, instance: State) -> None:
        self.instance = instance


def _same(state: State, instance: State) -> Any:
    for found in state["instances"]:
        if all(found[key] == instance[key] for key in ("address", "profile", "start")):
            return found
    raise NVMLError(nvml.NOT_FOUND)
