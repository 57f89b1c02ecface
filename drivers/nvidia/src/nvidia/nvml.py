"""Implements :class:`.sdk.Gpus` with NVIDIA's bindings of NVML (``nvidia-ml-py``), which no other module imports.

NVML runs its calls one after the other, so one lock costs nothing, except around the wait for events. What a GPU or an
older kernel driver does not have (*not supported*, *function not found*) is left out; every other error is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .names import ACTIONS, ADDRESSING, ARCHITECTURES, BRANDS, EVENTS
from .sdk import (
    Event,
    Gpu,
    GpuLostError,
    Instance,
    InUseError,
    LibraryError,
    LibraryReplacedError,
    NoLibraryError,
    OccupiedError,
    Profile,
    Recovery,
    User,
)

LIBRARY = "libnvidia-ml.so.1"
# Codes of NVML. tests/test_nvidia_nvml.py compares all numbers of this module with the bindings.
INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT = 2, 3, 6, 9, 10
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, IN_USE = 12, 13, 15, 18, 19
INSUFFICIENT_RESOURCES, GPU_NOT_FOUND = 23, 28
LEFT_OUT = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
ERRORS: dict[int, type[LibraryError]] = {
    DRIVER_NOT_LOADED: NoLibraryError,
    LIBRARY_NOT_FOUND: NoLibraryError,
    GPU_IS_LOST: GpuLostError,
    GPU_NOT_FOUND: GpuLostError,
    LIB_RM_VERSION_MISMATCH: LibraryReplacedError,
    IN_USE: InUseError,
    INSUFFICIENT_RESOURCES: OccupiedError,
}
INIT_WITHOUT_GPUS = 1  # a node whose GPUs are all passed through is no error
FIELD_SWITCHES_MIG, FIELD_READS_PROFILES, FIELD_RECOVERY_ACTION = 184, 199, 230
UNSIGNED_INT = 1  # type of the value of a field
GPU_INSTANCE_PROFILES = range(17)
COMPUTE_PROFILES = range(9)
COMPUTE_PROFILE_OF_SLICES = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}
SHARED_ENGINES = 0
VIRTUAL_GPU = 2  # mode of virtualization: a vGPU in a guest
CLOSING_PAUSE = 0.05  # seconds
NO_INSTANCE = 0xFFFFFFFF
FABRIC_COMPLETED = 3
XID = 0x8


def load(library: Path) -> Any:
    """Loads NVML, and returns the bindings, which then find it by its soname.

    Raises:
        NoLibraryError: the bindings or the library are missing.
    """
    try:
        ctypes.CDLL(str(library))
        return importlib.import_module("pynvml")
    except ImportError:
        raise NoLibraryError("the Python package nvidia-ml-py is not installed") from None
    except OSError as e:
        raise NoLibraryError(f"{library} cannot be loaded: {e}") from None


class Nvml:
    """NVML, initialised. See :class:`.sdk.Gpus` for the methods.

    Args:
        library: the bindings, from :func:`load`.
    """

    def __init__(self, library: Any) -> None:
        self._lib = library
        self._lock = threading.RLock()
        self._waiting = threading.Lock()  # held during a wait for events, which uses the library without `_lock`
        self._closing = 0  # how many calls want to close the library; no wait begins then
        self._handles: dict[str, Any] = {}
        self._events: tuple[frozenset[str], Any] | None = None  # the registered GPUs, and the set of events
        self._unmonitored: dict[str, str] = {}  # why a GPU has no events, by UUID
        self._is_open = True
        self._unlocked("nvmlInitWithFlags", INIT_WITHOUT_GPUS)

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._open_again()
            return self._unlocked(name, *args, **kwargs)

    def _open_again(self) -> None:
        """Opens the library if opening it at the end of :meth:`closed` failed, for example without a kernel driver."""
        if not self._is_open:
            self._unlocked("nvmlInitWithFlags", INIT_WITHOUT_GPUS)
            self._is_open = True

    def _unlocked(self, name: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self._lib, name, None)
        if function is None:  # other bindings; the same as a kernel driver without the function
            raise _error(name, self._lib.NVMLError(FUNCTION_NOT_FOUND))
        try:
            return function(*args, **kwargs)
        except self._lib.NVMLError as e:
            raise _error(name, e) from None

    def _optional(self, name: str, *args: Any, also: int | None = None, **kwargs: Any) -> Any:
        """Returns None if the GPU or its kernel driver lacks the function, or for the error code ``also``."""
        try:
            return self._call(name, *args, **kwargs)
        except LibraryError as e:
            if e.number in (*LEFT_OUT, also):
                return None
            raise

    def _field(self, handle: Any, field: int) -> int | None:
        """Returns the value of a field that is a whole number; None if the GPU does not have it."""
        values = self._optional("nvmlDeviceGetFieldValues", handle, [field])
        if values is None or values[0].nvmlReturn != 0:
            return None
        value = values[0].value
        return int(value.uiVal if values[0].valueType == UNSIGNED_INT else value.ullVal)

    def _handle(self, uuid: str) -> Any:
        with self._lock:
            if uuid not in self._handles:
                try:
                    self._handles[uuid] = self._call("nvmlDeviceGetHandleByUUID", uuid)
                except LibraryError as e:
                    if e.number == NOT_FOUND:
                        raise GpuLostError(f"NVML does not know the GPU {uuid}") from None
                    raise
            return self._handles[uuid]

    def _uuid(self, handle: Any) -> str:
        with self._lock:
            try:
                return str(self._call("nvmlDeviceGetUUID", handle))
            except GpuLostError:  # an error of the GPU that no longer responds
                for uuid, known in self._handles.items():
                    if bytes(known) == bytes(handle):  # the address to which both point
                        return uuid
                raise

    # --- GPUs -----------------------------------------------------------------------------------

    def gpus(self) -> list[Gpu]:
        with self._lock:
            versions = self._call("nvmlSystemGetDriverVersion"), self._call("nvmlSystemGetCudaDriverVersion_v2")
            found: dict[str, Any] = {}
            out, failed = [], []
            for index in range(self._call("nvmlDeviceGetCount")):
                try:
                    handle = self._call("nvmlDeviceGetHandleByIndex", index)
                    gpu = self._gpu(handle, *versions)
                except (NoLibraryError, LibraryReplacedError):
                    raise
                except LibraryError as e:  # often "Unknown Error" for a GPU that has failed
                    failed.append(e)
                    continue
                found[gpu.uuid] = handle
                out.append(gpu)
            if not out and failed and not isinstance(failed[0], GpuLostError):
                raise failed[0]
            self._handles = found
            return out

    def _gpu(self, handle: Any, driver_version: str, cuda: int) -> Gpu:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        mig = self._optional("nvmlDeviceGetMigMode", handle)
        ecc = self._optional("nvmlDeviceGetEccMode", handle)
        memory = self._optional("nvmlDeviceGetMemoryInfo", handle)
        return Gpu(
            uuid=self._call("nvmlDeviceGetUUID", handle),
            address=_address(self._call("nvmlDeviceGetPciInfo_v3", handle).busId),
            minor=self._call("nvmlDeviceGetMinorNumber", handle),
            name=self._call("nvmlDeviceGetName", handle),
            brand=BRANDS.get(self._optional("nvmlDeviceGetBrand", handle), "Unknown"),
            architecture=ARCHITECTURES.get(self._optional("nvmlDeviceGetArchitecture", handle), "Unknown"),
            compute_capability=f"{major}.{minor}",
            memory=memory and memory.total,
            driver_version=driver_version,
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            mig=None if mig is None else bool(mig[0]),
            switches_mig=self._field(handle, FIELD_SWITCHES_MIG) == 1,
            reads_profiles=self._field(handle, FIELD_READS_PROFILES) == 1,
            is_vgpu=self._optional("nvmlDeviceGetVirtualizationMode", handle) == VIRTUAL_GPU,
            addressing_mode=ADDRESSING.get(self._optional("nvmlDeviceGetAddressingMode", handle)),
            ecc=None if ecc is None else bool(ecc[0]),
            pcie_generation=self._optional("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            fabric_clique=self._fabric(handle),
        )

    def _fabric(self, handle: Any) -> str | None:
        info = self._lib.c_nvmlGpuFabricInfo_t()
        if self._optional("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
            return None
        cluster = bytes(info.clusterUuid)
        if info.state != FABRIC_COMPLETED or not any(cluster):
            return None
        text = cluster.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}.{info.cliqueId}"

    # --- partitions -----------------------------------------------------------------------------

    def profiles(self, uuid: str) -> list[Profile]:
        with self._lock:
            handle = self._handle(uuid)
            return [p for info in self._profile_infos(handle) if (p := self._profile(handle, info)).starts]

    def _profile_infos(self, handle: Any) -> list[Any]:
        """Returns NVML's structures of the profiles. Their places need two more calls for each profile."""
        name = "nvmlDeviceGetGpuInstanceProfileInfo"
        found = (self._optional(name, handle, n, also=INVALID_ARGUMENT, version=2) for n in GPU_INSTANCE_PROFILES)
        return [info for info in found if info is not None]

    def _profile(self, handle: Any, info: Any) -> Profile:
        places = self._placements(handle, info.id)
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        return Profile(
            id=info.id,
            name=name.removeprefix("MIG ") or f"{info.sliceCount}g.{round(info.memorySizeMB / 1024)}gb",
            slices=info.sliceCount,
            instances=info.instanceCount,
            starts=tuple(p.start for p in places),
            size=places[0].size if places else 0,
            memory=info.memorySizeMB,
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
        )

    def _placements(self, handle: Any, profile: int) -> list[Any]:
        """Returns the places of a profile. NVML is called twice: for the number of places, and for the places."""
        count = ctypes.c_uint(0)
        name = "nvmlDeviceGetGpuInstancePossiblePlacements"
        self._call(name, handle, profile, None, ctypes.byref(count))
        places = (self._lib.c_nvmlGpuInstancePlacement_t * count.value)()
        self._call(name, handle, profile, places, ctypes.byref(count))
        return list(places[: count.value])

    def instances(self, uuid: str) -> list[Instance]:
        with self._lock:
            handle = self._handle(uuid)
            compute = self._compute_instances(handle)
            out = []
            for profile in self._profile_infos(handle):
                for _, info in self._gpu_instances(handle, profile.id, profile.instanceCount):
                    ids = compute.get(info.id, [])
                    only = ids[0][1] if len(ids) == 1 else ""
                    out.append(Instance(profile.id, info.placement.start, info.id, tuple(i for i, _ in ids), only))
            return out

    def _gpu_instances(self, handle: Any, profile: int, most: int) -> list[tuple[Any, Any]]:
        count = ctypes.c_uint(most)
        found = (self._lib.c_nvmlGpuInstance_t * most)()
        if self._optional("nvmlDeviceGetGpuInstances", handle, profile, found, ctypes.byref(count)) is None:
            return []
        return [(gi, self._call("nvmlGpuInstanceGetInfo", gi)) for gi in found[: count.value]]

    def _compute_instances(self, handle: Any) -> dict[int, list[tuple[int, str]]]:
        """Returns ids and UUIDs of the compute instances, by the id of their GPU instance."""
        out: dict[int, list[tuple[int, str]]] = {}
        for index in range(self._optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            mig = self._optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, index, also=NOT_FOUND)
            if mig is not None:
                found = self._call("nvmlDeviceGetComputeInstanceId", mig), self._call("nvmlDeviceGetUUID", mig)
                out.setdefault(self._call("nvmlDeviceGetGpuInstanceId", mig), []).append(found)
        return out

    def create(self, uuid: str, profile: Profile, start: int) -> Instance:
        with self._lock:
            handle = self._handle(uuid)
            place = self._lib.c_nvmlGpuInstancePlacement_t(start, profile.size)
            gi = self._call("nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile.id, ctypes.byref(place))
            number = COMPUTE_PROFILE_OF_SLICES[profile.slices]
            compute = self._call("nvmlGpuInstanceGetComputeInstanceProfileInfo", gi, number, SHARED_ENGINES)
            self._call("nvmlGpuInstanceCreateComputeInstance", gi, compute.id)
            for instance in self.instances(uuid):
                if (instance.profile, instance.start) == (profile.id, start) and instance.uuid:
                    return instance
        raise LibraryError(f"NVML created {profile.name} at {start} of {uuid} and does not list it")

    def destroy(self, uuid: str, profile: int, start: int) -> bool:
        with self._lock:
            handle = self._handle(uuid)
            most = next((p.instanceCount for p in self._profile_infos(handle) if p.id == profile), 0)
            for gi, info in self._gpu_instances(handle, profile, most) if most else ():
                if info.placement.start == start:
                    self._destroy(gi)
                    return True
            return False

    def _destroy(self, gi: Any) -> None:
        for number in COMPUTE_PROFILES:
            name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            info = self._optional(name, gi, number, SHARED_ENGINES, also=INVALID_ARGUMENT)
            if info is None:
                continue
            count = ctypes.c_uint(info.instanceCount)
            found = (self._lib.c_nvmlComputeInstance_t * info.instanceCount)()
            self._call("nvmlGpuInstanceGetComputeInstances", gi, info.id, found, ctypes.byref(count))
            for ci in found[: count.value]:
                self._call("nvmlComputeInstanceDestroy", ci)
        self._call("nvmlGpuInstanceDestroy", gi)

    def set_mig(self, uuid: str, *, on: bool) -> None:
        with self._lock:
            activation = self._call("nvmlDeviceSetMigMode", self._handle(uuid), int(on))
            if activation:  # the call succeeds although the activation failed
                raise _error("activation of MIG mode", self._lib.NVMLError(activation))
            self.gpus()  # a change of the mode can reset the GPU, so its handle may be a new one
            current, _ = self._call("nvmlDeviceGetMigMode", self._handle(uuid))
            if bool(current) != on:
                raise LibraryError(f"MIG mode of {uuid} is {'on' if on else 'off'} only after a reset of the GPU")

    # --- health ---------------------------------------------------------------------------------

    def wait(self, seconds: float) -> Event | None:
        if self._closing:  # a lock is not fair: without a pause, the next wait would begin before the library is closed
            time.sleep(min(seconds, CLOSING_PAUSE))
            return None
        with self._waiting:
            event_set = self._event_set()
            try:
                data = self._unlocked("nvmlEventSetWait_v2", event_set, int(seconds * 1000))
            except LibraryError as e:
                if e.number == TIMEOUT:
                    return None
                raise
            instance = None if data.gpuInstanceId == NO_INSTANCE else data.gpuInstanceId
            kind = EVENTS.get(data.eventType, f"event {data.eventType:#x}")
            return Event(self._uuid(data.device), kind, data.eventData if data.eventType == XID else 0, instance)

    def _event_set(self) -> Any:
        """Returns the set of events of all GPUs. Creates it again when there are other GPUs."""
        with self._lock:
            if not self._handles:
                self.gpus()
            now = frozenset(self._handles)
            if self._events is None or self._events[0] != now:
                self._free_events()
                event_set = self._call("nvmlEventSetCreate")
                self._events = now, event_set
                self._unmonitored = {uuid: why for uuid in sorted(now) if (why := self._register(uuid, event_set))}
            return self._events[1]

    def _register(self, uuid: str, event_set: Any) -> str:
        """Registers the events of a GPU. Returns why that is not possible; one GPU must not hide events of others."""
        handle = self._handles[uuid]
        try:
            types = self._optional("nvmlDeviceGetSupportedEventTypes", handle) or 0
            if wanted := types & sum(EVENTS):
                self._call("nvmlDeviceRegisterEvents", handle, wanted, event_set)
        except (NoLibraryError, LibraryReplacedError):
            raise
        except LibraryError as e:
            return str(e)
        return "" if wanted else "the GPU supports no events"

    def unmonitored(self) -> dict[str, str]:
        with self._lock:
            return dict(self._unmonitored)

    def _free_events(self) -> None:
        if self._events is not None:
            event_set, self._events = self._events[1], None
            self._call("nvmlEventSetFree", event_set)

    def recovery(self, uuid: str) -> Recovery:
        with self._lock:
            handle = self._handle(uuid)
            action = self._field(handle, FIELD_RECOVERY_ACTION)
            rows = self._optional("nvmlDeviceGetRemappedRows", handle)
            text = None if action is None else ACTIONS.get(action, f"action {action}")
            return Recovery(text, bool(rows and rows[3]))

    def is_persistent(self, uuid: str) -> bool:
        return bool(self._optional("nvmlDeviceGetPersistenceMode", self._handle(uuid)))

    def set_persistent(self, uuid: str, *, on: bool) -> None:
        self._call("nvmlDeviceSetPersistenceMode", self._handle(uuid), int(on))

    def users(self, uuid: str) -> list[User]:
        found = self._optional("nvmlDeviceGetComputeRunningProcesses_v3", self._handle(uuid)) or []
        return [User(p.pid, p.usedGpuMemory) for p in found]

    # --- open and closed ------------------------------------------------------------------------

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        with self._without_waits():
            self._shut_down()
            try:
                yield
            finally:
                self._is_open = False
                self._open_again()

    def close(self) -> None:
        with self._without_waits():
            self._shut_down()

    @contextlib.contextmanager
    def _without_waits(self) -> Iterator[None]:
        """Lets a running wait end, and prevents waits and other calls within the block."""
        with self._lock:
            self._closing += 1
        try:
            with self._waiting, self._lock:
                yield
        finally:
            with self._lock:
                self._closing -= 1

    def _shut_down(self) -> None:
        self._handles.clear()
        with contextlib.suppress(LibraryError):
            self._free_events()
        with contextlib.suppress(LibraryError):
            self._call("nvmlShutdown")


def _error(name: str, error: Any) -> LibraryError:
    code = int(error.value)
    out = ERRORS.get(code, LibraryError)(f"{name}: {error} ({code})")
    out.number = code
    return out


def _address(bus_id: str | bytes) -> str:
    """Maps NVML's bus id, whose domain has eight digits, to an address of sysfs."""
    text = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"
