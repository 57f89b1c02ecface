"""A DRA driver for NVIDIA GPUs.

:mod:`.sdk` is the interface to the vendor's library, :mod:`.devices` builds what is published, :mod:`.edits` what
containers get, :mod:`.mig` creates partitions, :mod:`.health` judges the GPUs. This module connects them with the
framework.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from dra_kubeletplugin import (
    AllocatedDevice,
    Check,
    Claim,
    ContainerEdits,
    CounterSet,
    Device,
    DeviceNode,
    DeviceStatus,
    Driver,
    Gate,
    Health,
    Mount,
    PciFunction,
    PermanentError,
    Pool,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
    run,
)

from . import devices, edits, machine, mps, sdk, vfio
from .config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from .devices import GpuDevice
from .edits import Ready
from .health import Monitor
from .mig import MODE_STEP, Partitions
from .options import NvidiaOptions
from .sharing import set_time_slice

NVIDIA, DISPLAY = 0x10DE, 0x03
KERNEL_DRIVER = "nvidia"
REOPEN_INTERVAL = 60.0  # seconds


class Nvidia(Driver):
    """Publishes the GPUs of a node, and prepares them for containers."""

    name = "gpu.dra-kubeletplugin.dev"
    config = (GpuConfig, MigDeviceConfig, VfioDeviceConfig)
    options = NvidiaOptions()
    metadata = True
    processes = True  # a daemon of MPS for a claim
    privileged = True  # NVML needs the device nodes of all GPUs, and passthrough writes to sysfs
    subsystems = ("pci",)

    # --- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        self._machine: machine.Machine | None = None
        self._opening = threading.RLock()  # a scan and a claim may both be the first that finds NVIDIA's driver
        self._known: dict[str, tuple[sdk.Gpu, list[sdk.Profile]]] = {}
        self._unchecked: set[str] | None = None  # addresses to check for instances without a claim; None for all
        self._lost: set[str] = set()  # addresses of the functions that NVML does not see any more
        self._reopened: tuple[set[str], float] = (set(), 0.0)  # the functions that NVML did not see then, and when
        self._scanned_again: set[str] = set()  # addresses of lost GPUs for which a scan was requested
        self._bound: set[str] = set()  # addresses of the functions with NVIDIA's kernel driver
        self._published: list[Device] = []
        if any(fn.driver == KERNEL_DRIVER for fn in self._functions()):  # a node without GPUs needs no library
            try:
                self._open()
            except sdk.LibraryError as e:
                self.log.warning("NVML is not available yet: %s", e)  # the next scan tries again

    def stop(self) -> None:
        if self._machine:
            self._machine.monitor.stop()
            self._machine.gpus.close()

    def _open(self) -> machine.Machine:
        """Returns the opened library and what depends on it. Opens it at the first call that finds NVIDIA's driver.

        Raises:
            NoLibraryError: NVIDIA's driver is not installed or not loaded.
        """
        with self._opening:
            if self._machine is None:
                try:
                    gpus, root = machine.open_library(self.host, self.options)
                except sdk.LibraryReplacedError as e:  # an attempt before the update loaded the old library
                    self._end_process(str(e))
                    raise
                ignored = [int(x) for x in self.options.nvidia_ignore_xids]
                errors = self.metrics.counter(
                    "gpu_errors_total", "Errors that GPUs reported, such as XID 31.", ["gpu", "error"]
                )
                seconds = self.metrics.histogram(
                    "mig_instance_duration_seconds", "Time to create or destroy a MIG instance.", ["operation"]
                )
                monitor = Monitor(gpus, self.changed, self._end_process, self.log, ignored, errors)
                partitions = Partitions(gpus, self.settings.plugin_dir / "mig", self.host.boot_id(), self.log, seconds)
                self._machine = machine.Machine(gpus, root, monitor, partitions)
                monitor.start()
        return self._machine

    def _end_process(self, why: str) -> None:
        """Ends the process in order, because the library in its memory does not fit the updated kernel driver."""
        self.log.error("NVIDIA's driver was updated, so this process ends; the next one loads the new library: %s", why)
        os.kill(os.getpid(), signal.SIGTERM)

    # --- devices --------------------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        functions = self._functions()
        found = self._scan(functions)
        published: list[Device] = []
        counter_sets: list[CounterSet] = []
        for fn in functions:
            own, counters = self._devices(fn, *found[fn.address]) if fn.address in found else ([], None)
            if self.options.nvidia_passthrough and Gate.PARTITIONS not in self.gates_off:
                own, counters = self._with_passthrough(fn, own, counters)
            published += own
            counter_sets += [counters] if counters else []
        self._published = published
        return [Pool(self.settings.node_name, published, counter_sets)]

    def _functions(self) -> list[PciFunction]:
        return [fn for fn in self.host.pci(vendor=NVIDIA) if fn.is_class(DISPLAY) and not fn.is_vf]

    def _scan(self, functions: list[PciFunction]) -> dict[str, tuple[sdk.Gpu, list[sdk.Profile]]]:
        """Returns the GPUs with their profiles, by address. GPUs that are lost or passed through stay as they were.

        A GPU that an operator unbinds is no longer returned, unless claims may pass it through.
        """
        self._bound = bound = {fn.address for fn in functions if fn.driver == KERNEL_DRIVER}
        present: dict[str, sdk.Gpu] = {}
        if bound:
            gpus = self._open().gpus
            present = {gpu.address: gpu for gpu in gpus.gpus()}
            if self._reopens(bound - present.keys()):
                with gpus.closed():
                    pass
                present = {gpu.address: gpu for gpu in gpus.gpus()}
            missing = sorted(bound - present.keys())
            if missing and not present and not self._known:
                raise RetryableError(
                    f"NVML sees no GPU, and PCI has {', '.join(missing)}: this process needs /dev/nvidia*"
                )
            for address, gpu in present.items():
                try:
                    self._known[address] = gpu, self._profiles(gpu)
                except sdk.LibraryError as e:  # one GPU must not hide changes of the others
                    self.log.warning("cannot read the MIG profiles of %s: %s", address, e)
            lost = {address for address in missing if address in self._known}
            if new := sorted(lost - self._lost):
                self.log.warning("NVML does not see GPUs any more: %s", ", ".join(new))
            self._lost = lost
            self._destroy_unclaimed(present)
        kept = {fn.address for fn in functions} if self.options.nvidia_passthrough else bound
        self._known = {address: known for address, known in self._known.items() if address in kept}
        return dict(self._known)

    def _destroy_unclaimed(self, present: Mapping[str, sdk.Gpu]) -> None:
        """Destroys instances that no claim has: at the first scan, and of a GPU that was lost when its claim ended.

        A GPU that is lost or fails is checked by a later scan.
        """
        if self.options.nvidia_mig != "dynamic":
            return
        self._unchecked = set(self._bound if self._unchecked is None else self._unchecked)
        for address in sorted(self._unchecked & present.keys()):
            try:
                if present[address].mig:
                    with self.hardware_lock(address):
                        self._open().partitions.destroy_unclaimed(present[address])
            except RetryableError as e:
                self.log.warning("cannot look for MIG instances without a claim on %s: %s", address, e)
            else:
                self._unchecked.discard(address)

    def _reopens(self, missing: set[str]) -> bool:
        """Whether to open NVML again, which takes seconds: only then it finds a GPU that was bound again or reset."""
        before, at = self._reopened
        is_due = missing != before or time.monotonic() > at + REOPEN_INTERVAL
        if is_due:
            self._reopened = missing, time.monotonic()
        return bool(missing) and is_due

    def _profiles(self, gpu: sdk.Gpu) -> list[sdk.Profile]:
        has_partitions = gpu.mig is not None and not gpu.is_vgpu and (gpu.mig or gpu.reads_profiles)
        wanted = has_partitions and (self.options.nvidia_mig == "dynamic" or gpu.mig)
        return self._open().gpus.profiles(gpu.uuid) if wanted else []

    def _devices(
        self, fn: PciFunction, gpu: sdk.Gpu, profiles: list[sdk.Profile]
    ) -> tuple[list[Device], CounterSet | None]:
        """Returns the devices of one GPU, and the counters that they share."""
        partitions = self._open().partitions
        ours = partitions.turned_on(gpu.address)
        if gpu.mig and (self.options.nvidia_mig != "dynamic" or gpu.is_vgpu):
            return ([] if self.options.nvidia_mig == "off" else self._existing(fn, gpu, profiles)), None
        changeable = gpu.mig or gpu.switches_mig
        if self.options.nvidia_mig == "dynamic" and profiles and changeable and Gate.PARTITIONS not in self.gates_off:
            # While an operator's MIG mode is on, the GPU cannot be used as a whole.
            made = devices.partitioned(gpu, fn, profiles, with_whole=not gpu.mig or ours)
            return list(made.devices), made.counter_set
        return ([] if gpu.mig and not ours else [devices.whole(gpu, fn)]), None

    def _existing(self, fn: PciFunction, gpu: sdk.Gpu, profiles: list[sdk.Profile]) -> list[Device]:
        by_id = {p.id: p for p in profiles}
        if fn.driver != KERNEL_DRIVER:
            return []
        if gpu.address in self._lost:
            return [d for d in self._published if isinstance(d.data, GpuDevice) and d.data.address == fn.address]
        instances = self._open().gpus.instances(gpu.uuid)
        return [devices.existing(gpu, fn, by_id[i.profile], i) for i in instances if i.uuid and i.profile in by_id]

    def _with_passthrough(
        self, fn: PciFunction, own: list[Device], counters: CounterSet | None
    ) -> tuple[list[Device], CounterSet | None]:
        """Adds the GPU's form for passthrough, which excludes its other devices."""
        if counters is None:
            if any(isinstance(d.data, GpuDevice) and d.data.place for d in own):
                return own, None  # an operator's MIG instances
            counters = CounterSet(f"{devices.name_of(fn.address)}-counter-set", {"gpu": 1})
            own = [replace(d, consumes_counters={counters.name: {"gpu": 1}}) for d in own]
        uuid = str(uuid5(NAMESPACE_DNS, fn.address))
        return [*own, devices.passthrough(fn, uuid, counters, has_iommufd=vfio.has_iommufd(self.host))], counters

    # --- health ---------------------------------------------------------------------------------

    def health(self) -> dict[str, Health]:
        if self._machine is None:
            return {}
        monitor, partitions = self._machine.monitor, self._machine.partitions
        out: dict[str, Health] = {}
        for address in sorted(self._bound & self._known.keys()):
            gpu, _ = self._known[address]
            verdict = monitor.verdict(gpu)
            if address in self._lost and not verdict.fault:  # a scan finds it if it responds again
                self._scan_again(address)
                verdict = replace(verdict, unknown="NVML does not list the GPU")
            else:
                self._scanned_again.discard(address)
            numbers = {}
            if verdict.concerns_instances:
                with contextlib.suppress(sdk.LibraryError):  # a lost GPU must not hide the health of the others
                    numbers = partitions.numbers(gpu.uuid)
            for device in self._published:
                data = device.data
                if isinstance(data, GpuDevice) and data.address == address and not data.is_passthrough:
                    place = data.place and (data.place.profile.id, data.place.start)
                    own = verdict.of_instance(numbers.get(place) if place else None)
                    out[device.name] = own.health(self.settings.driver_name, monitor.obstacle_of(gpu.uuid))
        return out

    def _scan_again(self, address: str) -> None:
        """Requests one scan. A scan calls :meth:`health` again, so repeated requests would never end."""
        if address not in self._scanned_again:
            self._scanned_again.add(address)
            self.changed()

    def checks(self) -> list[Check]:
        bound = {fn.address for fn in self._functions() if fn.driver == KERNEL_DRIVER}
        if not bound:
            return [Check("nvml"), Check("gpus"), Check("events")]
        try:
            state = self._open()
            missing = sorted(bound - {gpu.address for gpu in state.gpus.gpus()})
        except sdk.LibraryError as e:
            return [Check("nvml", str(e), "install NVIDIA's driver, or set NVIDIA_DRIVER_ROOT", blocking=True)]
        return [
            Check("nvml"),
            Check(
                "gpus",
                f"NVML does not see {', '.join(missing)}, which PCI has" if missing else "",
                "search the kernel's log for NVRM; a lost GPU needs a reset or a reboot",
            ),
            Check("events", state.monitor.obstacle, "health comes from the recovery action alone"),
        ]

    # --- claims ---------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        gpus = {gpu.address: gpu for gpu in self._open().gpus.gpus()} if self._bound else {}
        ready = [self._prepare(claim, device, gpus) for device in claim.devices]
        clients = [mps.Client(r.device, r.uuid) for r in ready if isinstance(r, Ready) and mps.config_of(r.device)]
        clients = [c for c in clients if not c.device.admin_access]
        shared = mps.start(claim, clients, self._open().root, self._mps_folder(claim.uid)) if clients else ({}, [])
        names = {c.device.name for c in clients}
        out = []
        for found in ready:
            if isinstance(found, Ready):
                found = self._prepared(found, *(shared if found.device.name in names else ({}, [])))
            out.append(found)
        return out

    def _prepare(self, claim: Claim, device: AllocatedDevice, gpus: Mapping[str, sdk.Gpu]) -> Ready | PreparedDevice:
        data = device.device.data
        if not isinstance(data, GpuDevice):
            raise RetryableError(f"{device.name} is a device of a GPU that this node does not have (any more)")
        if data.is_passthrough:
            return self._prepare_passthrough(claim, device, data.address)
        gpu = gpus.get(data.address)
        if gpu is None:
            raise RetryableError(f"NVML does not see the GPU {data.address}")
        if data.place is None:
            return self._prepare_whole(claim, device, gpu)
        return self._prepare_partition(claim, device, gpu, data)

    def _gpu(self, address: str) -> sdk.Gpu | None:
        """Returns the current state of a GPU; None if NVML does not see it."""
        return next((gpu for gpu in self._open().gpus.gpus() if gpu.address == address), None)

    def _prepare_whole(self, claim: Claim, device: AllocatedDevice, gpu: sdk.Gpu) -> Ready:
        if gpu.mig and not device.admin_access:
            raise RetryableError(f"{gpu.address} is in MIG mode, so it cannot be used as a whole")
        config = device.config
        slicing = config.sharing.time_slicing_config if isinstance(config, GpuConfig) and config.sharing else None
        if slicing and not device.admin_access:
            claim.on_undo("time_slice", address=gpu.address)
            set_time_slice(self._open().root, gpu.uuid, slicing.interval)
        return Ready(device, gpu, gpu.uuid)

    def _prepare_partition(self, claim: Claim, device: AllocatedDevice, gpu: sdk.Gpu, data: GpuDevice) -> Ready:
        assert data.place
        state = self._open()
        if data.uuid or device.admin_access:  # static MIG: the instance exists already
            instance = state.partitions.find(gpu.uuid, data.place)
        else:
            place = data.place
            claim.shared_step(MODE_STEP, gpu.address)  # on until no claim has a partition of this GPU
            claim.on_undo("destroy", address=gpu.address, profile=place.profile.id, start=place.start)
            with self.hardware_lock(gpu.address):  # NVML changes one instance of a GPU at a time
                instance = state.partitions.create(gpu, place, claim, device)
        if instance is None or not instance.uuid:
            raise RetryableError(f"{device.name} does not exist as a complete MIG instance")
        nodes = edits.instance_nodes(self.host, gpu.minor, instance)
        return Ready(device, gpu, instance.uuid, nodes)

    def _prepare_passthrough(self, claim: Claim, device: AllocatedDevice, address: str) -> PreparedDevice:
        fn = self.host.function(address)
        if fn is None:
            raise RetryableError(f"this node has no GPU {address} (any more)")
        if self.settings.local_cluster and self.host.is_real:
            raise PermanentError("a local cluster does not change the functions of a real machine")
        if reason := vfio.obstacle(self.host, fn):
            raise PermanentError(f"{address} cannot be passed through: {reason}")
        if fn.driver != vfio.VFIO:
            if device.admin_access:
                raise RetryableError(f"{address} is not passed through: a claim with admin access does not change it")
            # Without a driver, an unbind that took too long has ended since: the GPU goes back to NVIDIA's driver.
            claim.on_undo("restore_driver", address=address, driver=fn.driver or KERNEL_DRIVER)
            with self.hardware_lock(address):
                self._release(address)
                with self._closed():
                    vfio.bind(self.host, fn)
        config = device.config
        iommu = config.iommu if isinstance(config, VfioDeviceConfig) else VfioDeviceConfig().iommu
        now = self.host.function(address) or fn
        own = ContainerEdits(device_nodes=vfio.nodes(self.host, now, iommu))
        return device.prepared(own, data={"address": address}, metadata={"iommuGroup": fn.iommu_group or 0})

    def _closed(self) -> AbstractContextManager[None]:
        """Closes NVML for a block. An open library uses all GPUs, and does not find GPUs that are bound later."""
        return self._machine.gpus.closed() if self._machine else contextlib.nullcontext()

    def _release(self, address: str) -> None:
        """Makes sure that no process uses a GPU before its kernel driver is unbound."""
        gpu = self._gpu(address) if self._bound else None
        if gpu is None:
            return
        gpus = self._open().gpus
        if users := gpus.users(gpu.uuid):
            pids = ", ".join(str(user.pid) for user in users)
            raise RetryableError(f"{address} cannot be passed through: the processes {pids} of the host compute on it")
        gpus.release(gpu.uuid)

    def _prepared(self, ready: Ready, env: dict[str, str], mounts: list[Mount]) -> PreparedDevice:
        """Returns the result for a device, with the variables and mounts of its sharing."""
        variables, files = edits.driver_files(self._open().root, self.options.nvidia_library_path)
        nodes: list[str | DeviceNode] = [*edits.gpu_nodes(self.host.dev, ready.gpu.minor), *ready.nodes]
        return ready.device.prepared(
            ContainerEdits(env=variables | env, mounts=[*files, *mounts], device_nodes=nodes),
            data={"uuid": ready.uuid},
            status=DeviceStatus(data={"uuid": ready.uuid, "driverVersion": ready.gpu.driver_version}),
            metadata={"uuid": ready.uuid},
        )

    def _mps_folder(self, uid: str) -> Path:
        """Returns the folder of a claim's daemon; short, because Linux limits the path of a socket to 107 bytes."""
        return self.settings.plugin_dir / "mps" / uid.partition("-")[0]

    def unprepare(self, claim: PreparedClaim) -> None:
        """Does nothing: the framework calls the undo steps."""

    def undo_destroy(self, claim: PreparedClaim, address: str, profile: int, start: int) -> None:
        """Destroys a MIG instance. Idempotent."""
        partitions, gpu = self._open().partitions, self._gpu(address)
        if gpu is None and self._unchecked is not None:
            self._unchecked.add(address)  # the instance exists again when NVML sees the GPU again
        with self.hardware_lock(address):
            partitions.destroy(gpu, address, profile, start, claim.uid)

    def undo_mps_folder(self, claim: PreparedClaim, uid: str) -> None:
        """Removes the folder of the claim's MPS daemon, which has ended before. Idempotent."""
        mps.remove(self._mps_folder(uid))

    def undo_restore_driver(self, claim: PreparedClaim, address: str, driver: str | None) -> None:
        """Binds a GPU to its former kernel driver. Idempotent. Does nothing after a reboot, or without the GPU."""
        if claim.same_boot and self.host.function(address):
            with self.hardware_lock(address), self._closed():
                vfio.restore(self.host, address, driver)
            self.changed()  # the GPU can have another minor number

    def undo_time_slice(self, claim: PreparedClaim, address: str) -> None:
        """Sets the default time slice again. Idempotent. Never called without need: old GPUs refuse every value."""
        if gpu := self._gpu(address):
            set_time_slice(self._open().root, gpu.uuid, "Default")

    def setup_mig_mode(self, address: str) -> None:
        """Called for the first partition of a GPU."""
        gpu = self._gpu(address)
        if gpu is None:
            raise RetryableError(f"NVML does not see the GPU {address}")
        self._open().partitions.turn_on(gpu)

    def teardown_mig_mode(self, address: str) -> None:
        """Called after the last partition of a GPU. Idempotent."""
        self._open().partitions.turn_off(self._gpu(address), address)

    def recover(self) -> Iterator[RecoveredClaim]:
        """Returns the claims of MIG instances, from the notes. Nothing else on the hardware knows its claim."""
        return self._open().partitions.recovered() if self._machine else iter(())


if __name__ == "__main__":
    run(Nvidia)
