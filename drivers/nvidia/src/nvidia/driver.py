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
from collections.abc import Mapping
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
from .mig import Partitions
from .mig_notes import MigMode, Notes
from .options import NvidiaOptions
from .scan import KERNEL_DRIVER, Scanner
from .sharing import set_time_slice

NVIDIA, DISPLAY = 0x10DE, 0x03


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
        self._scanner = Scanner(self._open, self.hardware_lock, self.options, self.log)
        self._scanned_again: set[str] = set()  # addresses of lost GPUs for which a scan was requested
        self._vfio = vfio.Functions(self.host)
        self._published: list[Device] = []
        self._errors = self.metrics.counter(
            "gpu_errors_total", "Errors that GPUs reported, such as XID 31.", ["gpu", "error"]
        )
        self._durations = self.metrics.histogram(
            "mig_instance_duration_seconds", "Time to create or destroy a MIG instance.", ["operation"]
        )
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
                monitor = Monitor(gpus, self.rescan, self._end_process, self.log, ignored, self._errors)
                partitions = Partitions(gpus, self._notes(), self.log, self._durations)
                self._machine = machine.Machine(gpus, root, monitor, partitions)
                monitor.start()
        return self._machine

    def _notes(self) -> Notes:
        return Notes(self.settings.plugin_dir / "mig", self.host.boot_id())

    def _end_process(self, why: str) -> None:
        """Ends the process in order, because the library in its memory does not fit the updated kernel driver."""
        self.log.error("NVIDIA's driver was updated, so this process ends; the next one loads the new library: %s", why)
        os.kill(os.getpid(), signal.SIGTERM)

    # --- devices --------------------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        functions = self._functions()
        found = self._scanner.scan(functions)
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

    def _devices(
        self, fn: PciFunction, gpu: sdk.Gpu, profiles: list[sdk.Profile]
    ) -> tuple[list[Device], CounterSet | None]:
        """Returns the devices of one GPU, and the counters that they share."""
        if gpu.mig and (self.options.nvidia_mig != "dynamic" or gpu.is_vgpu):
            return ([] if self.options.nvidia_mig == "off" else self._existing(fn, gpu, profiles)), None
        # While an operator's MIG mode is on, the GPU cannot be used as a whole.
        with_whole = not gpu.mig or self._open().partitions.mode(gpu.address) is MigMode.OF_CLAIMS
        changeable = gpu.mig or gpu.switches_mig
        if self.options.nvidia_mig == "dynamic" and profiles and changeable and Gate.PARTITIONS not in self.gates_off:
            made = devices.partitioned(gpu, fn, profiles, with_whole=with_whole)
            return list(made.devices), made.counter_set
        return ([devices.whole(gpu, fn)] if with_whole else []), None

    def _existing(self, fn: PciFunction, gpu: sdk.Gpu, profiles: list[sdk.Profile]) -> list[Device]:
        """Returns the MIG instances of a GPU. Those of a GPU that is lost or fails stay as they were."""
        by_id = {p.id: p for p in profiles}
        if fn.driver != KERNEL_DRIVER:
            return []
        if gpu.address not in self._scanner.lost:
            try:
                instances = self._open().gpus.instances(gpu.uuid)
            except sdk.LibraryError as e:  # one GPU must not hide changes of the others
                self.log.warning("cannot read the MIG instances of %s: %s", gpu.address, e)
            else:
                complete = [i for i in instances if i.uuid and i.profile in by_id]
                return [devices.existing(gpu, fn, by_id[i.profile], i) for i in complete]
        return [d for d in self._published if isinstance(d.data, GpuDevice) and d.data.address == fn.address]

    def _with_passthrough(
        self, fn: PciFunction, own: list[Device], counters: CounterSet | None
    ) -> tuple[list[Device], CounterSet | None]:
        """Adds the GPU's form for passthrough, which excludes its other devices.

        Not for a GPU in an operator's MIG mode, whose instances have no counters.
        """
        gpu, _ = self._scanner.known.get(fn.address, (None, []))
        if counters is None:
            if gpu and gpu.mig:
                return own, None
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
        for address in sorted(self._scanner.bound & self._scanner.known.keys()):
            gpu, _ = self._scanner.known[address]
            verdict = monitor.verdict(gpu)
            if address in self._scanner.lost and not verdict.fault:  # a scan finds it if it responds again
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
            self.rescan()

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
        gpus = {gpu.address: gpu for gpu in self._open().gpus.gpus()} if self._scanner.bound else {}
        ready = [self._prepare(claim, device, gpus) for device in claim.devices]
        clients = [mps.Client(r.device, r.uuid) for r in ready if isinstance(r, Ready) and mps.config_of(r.device)]
        clients = [c for c in clients if not c.device.admin_access]
        shared = (
            mps.start(claim, clients, self._open().root, self._mps_folder(claim.uid), self.remove_mps_folder)
            if clients
            else ({}, [])
        )
        names = {c.device.name for c in clients}
        out = []
        for found in ready:
            if isinstance(found, Ready):
                found = self._prepared(found, *(shared if found.device.name in names else ({}, [])))
            out.append(found)
        return out

    def _prepare(self, claim: Claim, device: AllocatedDevice, gpus: Mapping[str, sdk.Gpu]) -> Ready | PreparedDevice:
        data = device.data
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
            root = self._open().root
            set_time_slice(root, gpu.uuid, "Default")  # a GPU that refuses this would refuse it in the rollback too
            if slicing.interval != "Default":
                claim.on_undo(self.reset_time_slice, address=gpu.address)
                set_time_slice(root, gpu.uuid, slicing.interval)
        return Ready(device, gpu, gpu.uuid)

    def _prepare_partition(self, claim: Claim, device: AllocatedDevice, gpu: sdk.Gpu, data: GpuDevice) -> Ready:
        assert data.place
        state = self._open()
        place = data.place
        if device.admin_access:
            instance = state.partitions.find(gpu.uuid, place)
        else:
            if not data.uuid:
                claim.shared_step(self.setup_mig_mode, gpu.address)  # on until no claim has a partition of this GPU
            claim.on_undo(self.release_instance, address=gpu.address, profile=place.profile.id, start=place.start)
            with self.hardware_lock(gpu.address):  # NVML changes one instance of a GPU at a time
                obtain = state.partitions.use if data.uuid else state.partitions.create
                instance = obtain(gpu, place, claim, device)
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
            with self.hardware_lock(address):
                self._pass_through(claim, fn)
        config = device.config
        iommu = config.iommu if isinstance(config, VfioDeviceConfig) else VfioDeviceConfig().iommu
        now = self.host.function(address) or fn
        own = ContainerEdits(device_nodes=vfio.nodes(self.host, now, iommu))
        return device.prepared(own, data={"address": address}, metadata={"iommuGroup": fn.iommu_group or 0})

    def _pass_through(self, claim: Claim, fn: PciFunction) -> None:
        gpu = self._gpu(fn.address) if self._scanner.bound else None
        gpus = self._machine.gpus if self._machine else None
        if gpus and gpu:
            vfio.check_unused(gpus, gpu)
        persistent = bool(gpus and gpu and gpus.is_persistent(gpu.uuid))
        # A GPU without a driver goes back to NVIDIA's driver.
        driver = fn.driver or KERNEL_DRIVER
        claim.on_undo(self.restore_driver, address=fn.address, driver=driver, persistent=persistent)
        if gpus and gpu and persistent:
            gpus.set_persistent(gpu.uuid, on=False)
        with gpus.closed() if gpus else contextlib.nullcontext():  # an open library uses all GPUs
            self._vfio.bind(fn)

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
        parent = Path(self.options.nvidia_mps_folder or self.settings.plugin_dir / "mps")
        return parent / uid.partition("-")[0]

    def unprepare(self, claim: PreparedClaim) -> None:
        """Does nothing: the framework calls the undo steps."""

    def release_instance(self, claim: PreparedClaim, address: str, profile: int, start: int) -> None:
        """Ends the use of a MIG instance, and destroys it if it was created for the claim. Idempotent."""
        if not claim.same_boot:  # the instance is gone, and the GPU may be gone
            self._notes().remove(address, profile, start)
            return
        partitions, gpu = self._open().partitions, self._gpu(address)
        if gpu is None:
            self._scanner.check_again(address)  # the instance exists again when NVML sees the GPU again
        with self.hardware_lock(address):
            partitions.release(gpu, address, profile, start, claim.uid)

    def remove_mps_folder(self, claim: PreparedClaim, folder: str) -> None:
        """Removes the folder of the claim's MPS daemon, which has ended before. Idempotent."""
        mps.remove(Path(folder))

    def restore_driver(self, claim: PreparedClaim, address: str, driver: str | None, persistent: bool = False) -> None:
        """Binds a GPU to its former kernel driver. Idempotent. Does nothing after a reboot, or without the GPU."""
        if not claim.same_boot or not self.host.function(address):
            return
        with self.hardware_lock(address):
            self._vfio.restore(address, driver)
            if self._machine:
                with self._machine.gpus.closed():  # an open library does not find GPUs that are bound later
                    pass
            if persistent:
                self._set_persistent(address)
        self.rescan()  # the GPU can have another minor number

    def _set_persistent(self, address: str) -> None:
        try:
            if gpu := self._gpu(address):
                self._open().gpus.set_persistent(gpu.uuid, on=True)
        except sdk.LibraryError as e:  # the next claim can use the GPU all the same
            self.log.warning("cannot turn persistence mode of %s on again: %s", address, e)

    def reset_time_slice(self, claim: PreparedClaim, address: str) -> None:
        """Sets the default time slice again. Idempotent. Does nothing after a reboot, which resets it too."""
        if claim.same_boot and (gpu := self._gpu(address)):
            set_time_slice(self._open().root, gpu.uuid, "Default")

    # Names of these methods in records of earlier versions.
    instance, mps_folder, time_slice = release_instance, remove_mps_folder, reset_time_slice

    def setup_mig_mode(self, address: str) -> None:
        """Called for the first partition of a GPU."""
        gpu = self._gpu(address)
        if gpu is None:
            raise RetryableError(f"NVML does not see the GPU {address}")
        self._open().partitions.turn_on(gpu)

    def teardown_mig_mode(self, address: str) -> None:
        """Called after the last partition of a GPU. Idempotent."""
        if self._notes().mode(address) is MigMode.OF_OPERATOR:  # also after a reboot, when the GPU may be gone
            return
        self._open().partitions.turn_off(self._gpu(address), address)

    def recover(self) -> list[RecoveredClaim]:
        """Returns the claims of MIG instances, from the notes. Nothing else on the hardware knows its claim."""
        return self._notes().recovered(self.setup_mig_mode, self.release_instance)


if __name__ == "__main__":
    run(Nvidia)
