"""A driver for GPUs that are partitioned when claims need it (KEP-4815), like NVIDIA's A100 with MIG.

The driver publishes every possible partition, with the counters that it consumes of its GPU. The scheduler allocates
only partitions that fit together, and ``prepare`` creates them. :mod:`.sdk` simulates the vendor's library, so no real
GPU is changed; the other modules are as in a real driver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from dra_kubeletplugin import (
    AllocatedDevice,
    Claim,
    Config,
    ContainerEdits,
    Driver,
    Gate,
    Mount,
    Partition,
    Partitioned,
    PciFunction,
    PermanentError,
    Pool,
    PreparedClaim,
    PreparedDevice,
    Quantity,
    RecoveredClaim,
    RetryableError,
    partitions,
    run,
)

from .profiles import MEMORY_SLICES, PROFILES, RESOURCES, WHOLE
from .sdk import Gpus

NVIDIA, A100 = 0x10DE, 0x20B0


class MigConfig(Config):
    """How a container uses its partition."""

    KIND = "MigConfig"
    API_VERSION = "mig.example.com/v1alpha1"
    DEVICES: ClassVar = {"type": "mig"}
    memory_limit: Quantity | None = None
    """The most memory that one process may use; None for the whole memory of the partition."""


class GpuConfig(Config):
    """How the containers of a claim share its whole GPUs."""

    KIND = "GpuConfig"
    API_VERSION = "mig.example.com/v1alpha1"
    DEVICES: ClassVar = {"type": "gpu"}
    time_slice: Literal["Default", "Short", "Medium", "Long"] = "Default"


class Mig(Driver):
    """Publishes all possible partitions of a node's GPUs and creates the partitions that claims get."""

    name = "mig.example.com"
    config = (MigConfig, GpuConfig)

    def start(self) -> None:
        self.gpus = Gpus(self.settings.plugin_dir / "instances")

    def pools(self) -> list[Pool]:
        gpus = [self._partitioned(fn) for fn in self.host.pci(vendor=NVIDIA, device=A100)]
        devices = [d for gpu in gpus for d in gpu.devices]
        if Gate.PARTITIONS in self.gates_off:
            # Without counters the scheduler would allocate partitions that overlap, so only whole GPUs are published.
            whole = [replace(d, consumes_counters={}) for d in devices if d.data.profile is None]
            return [Pool(self.settings.node_name, whole)]
        return [Pool(self.settings.node_name, devices, [gpu.counter_set for gpu in gpus])]

    def _partitioned(self, fn: PciFunction) -> Partitioned:
        # Named by its address, so that a removed GPU does not rename the others.
        name = f"gpu-{fn.address.translate(str.maketrans(':.', '--'))}"
        # Only the standard attributes (topology): a device with this many counters has no room for all PCI attributes.
        standard = {k: v for k, v in fn.attributes().items() if k.startswith("resource.kubernetes.io/")}
        return partitions(
            name,
            PROFILES,
            has=dict(zip(RESOURCES, WHOLE, strict=True)),
            slots=MEMORY_SLICES,
            slot="memorySlice",
            kind="mig",
            attributes={**standard, "productName": "A100 40GB"},
            part_attributes={"type": "mig", "parentUUID": self.gpus.uuid(name)},
            whole_attributes={"type": "gpu", "uuid": self.gpus.uuid(name)},
        )

    # --- claims ---------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        partition = device.data
        if not isinstance(partition, Partition):
            raise RetryableError(f"{device.name} is a partition of a GPU that this node does not have (any more)")
        identity = self.gpus.uuid(device.name)
        env = self._environment(device, partition, identity)
        if partition.profile is None or device.admin_access:
            return device.prepared(ContainerEdits(env=env), data={"uuid": identity})
        claim.shared_step(self.setup_mig_mode, partition.parent)  # on until no claim has a partition of this GPU
        claim.on_undo(self.destroy, gpu=partition.parent, instance=identity)
        with self.hardware_lock(partition.parent):  # the library changes one partition of a GPU at a time
            self.gpus.create(identity, partition.parent, claim, device)
        mount = Mount(
            host_path=str(self.gpus.path(identity)),
            container_path=f"/run/mig/{device.name}.json",
            options=["ro", "bind", "nosuid", "nodev", "noexec"],
        )
        return device.prepared(ContainerEdits(env=env, mounts=[mount]), data={"uuid": identity})

    def _environment(self, device: AllocatedDevice, partition: Partition, identity: str) -> dict[str, str]:
        """The names contain the device's name, because a container can have several partitions."""
        name = f"MIG_DEVICE_{device.name.upper().replace('-', '_')}"
        out = {name: identity}
        if partition.profile:
            out[f"{name}_PROFILE"] = partition.profile.name
        config = device.config
        if isinstance(config, GpuConfig):
            out[f"{name}_TIME_SLICE"] = config.time_slice
        if isinstance(config, MigConfig) and config.memory_limit is not None:
            memory = device.capacity["memory"]
            assert isinstance(memory, Quantity)  # partitions() creates capacities as Quantity
            if config.memory_limit > memory:
                raise PermanentError(
                    f"memoryLimit {config.memory_limit} is more than the memory of {device.name}, which is {memory}"
                )
            out[f"{name}_MEMORY_LIMIT"] = str(config.memory_limit)
        return out

    def unprepare(self, claim: PreparedClaim) -> None:
        """Does nothing: the framework calls ``destroy`` for each partition that prepare created."""

    def destroy(self, claim: PreparedClaim, gpu: str, instance: str) -> None:
        """Destroys a partition. Idempotent."""
        with self.hardware_lock(gpu):
            self.gpus.destroy(instance)

    def setup_mig_mode(self, gpu: str) -> None:
        """Called for the first partition of a GPU."""
        self.gpus.set_mig(gpu, on=True)

    def teardown_mig_mode(self, gpu: str) -> None:
        """Called after the last partition of a GPU. Idempotent."""
        self.gpus.set_mig(gpu, on=False)

    def recover(self) -> list[RecoveredClaim]:
        """Returns the claims that have partitions. The library stores the claim of each partition."""
        return self.gpus.used(self.setup_mig_mode, self.destroy)


if __name__ == "__main__":
    run(Mig)
