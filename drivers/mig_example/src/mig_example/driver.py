"""GPUs that are cut into partitions while claims ask for them (KEP-4815), as NVIDIA's A100 is with MIG.

Every partition that a GPU could be cut into is published, with what it takes of the GPU: the scheduler gives away only
what fits together, and a partition is made when a claim got it. What stands in for the maker's library is :mod:`.sdk`;
all else is how a real driver would be. Nothing of a real GPU is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    memory_limit: Quantity | None = None
    """What one process may take of the partition's memory; all of it where nothing is said."""


class Mig(Driver):
    """Publishes the partitions of a node's GPUs and makes those that claims get."""

    name = "mig.example.com"
    config = MigConfig

    def start(self) -> None:
        self.gpus = Gpus(self.settings.plugin_dir / "instances")

    def pools(self) -> list[Pool]:
        cut = [self._partitioned(fn) for fn in self.host.pci(vendor=NVIDIA, device=A100)]
        devices = [d for gpu in cut for d in gpu.devices]
        if Gate.PARTITIONS in self.gates_off:
            # Without counters nothing would keep partitions apart: GPUs are given whole.
            whole = [replace(d, consumes_counters={}) for d in devices if d.data.profile is None]
            return [Pool(self.settings.node_name, whole)]
        return [Pool(self.settings.node_name, devices, [gpu.counter_set for gpu in cut])]

    def _partitioned(self, fn: PciFunction) -> Partitioned:
        # Named after its address: a GPU that is taken out renames no other.
        name = f"gpu-{fn.address.translate(str.maketrans(':.', '--'))}"
        # How GPUs lie to each other; with the counters of a whole GPU there is no room for all that PCI knows.
        standard = {k: v for k, v in fn.attributes().items() if k.startswith("resource.kubernetes.io/")}
        return partitions(
            name,
            PROFILES,
            has=dict(zip(RESOURCES, WHOLE, strict=True)),
            slots=MEMORY_SLICES,
            slot="memorySlice",
            kind="mig",
            attributes={**standard, "productName": "A100 40GB", "parentUUID": self.gpus.uuid(name)},
        )

    # --- a claim --------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        partition = device.device.data
        if not isinstance(partition, Partition):
            raise RetryableError(f"{device.name} is a partition of a GPU that is not there (any more)")
        identity = self.gpus.uuid(device.name)
        env = self._environment(device, partition, identity)
        if partition.profile is None or device.admin_access:
            return device.prepared(ContainerEdits(env=env), data={"uuid": identity})
        claim.on_undo("destroy", instance=identity)
        self.gpus.create(identity, claim, device)
        mount = Mount(
            host_path=str(self.gpus.path(identity)),
            container_path=f"/run/mig/{device.name}.json",
            options=["ro", "bind", "nosuid", "nodev", "noexec"],
        )
        return device.prepared(ContainerEdits(env=env, mounts=[mount]), data={"uuid": identity})

    def _environment(self, device: AllocatedDevice, partition: Partition, identity: str) -> dict[str, str]:
        """Names carry the device's, so that a container with several has all of them."""
        name = f"MIG_DEVICE_{device.name.upper().replace('-', '_')}"
        out = {name: identity}
        if partition.profile:
            out[f"{name}_PROFILE"] = partition.profile.name
        config = device.config
        if isinstance(config, MigConfig) and config.memory_limit is not None:
            memory = device.device.capacity["memory"]
            assert isinstance(memory, Quantity)  # as partitions() makes it
            if config.memory_limit > memory:
                raise PermanentError(
                    f"memoryLimit {config.memory_limit} is more than {device.name} has, which is {memory}"
                )
            out[f"{name}_MEMORY_LIMIT"] = str(config.memory_limit)
        return out

    def unprepare(self, claim: PreparedClaim) -> None:
        """Nothing: whatever prepare made is registered as a step and reversed by ``undo_destroy``."""

    def undo_destroy(self, claim: PreparedClaim, instance: str) -> None:
        """Gives a partition back to its GPU. Idempotent."""
        self.gpus.destroy(instance)

    def recover(self) -> Iterator[RecoveredClaim]:
        """The partitions that there are tell who has them."""
        return self.gpus.used()


if __name__ == "__main__":
    run(Mig)
