"""GPUs that are cut into partitions while claims ask for them (KEP-4815), as NVIDIA's A100 is with MIG.

Every partition that a GPU could be cut into is published, with what it takes of the GPU: the scheduler gives away only what fits
together, and a partition is made when a claim got it. What stands in for the maker's library is :class:`Gpus`; all else is how a
real driver would be. Nothing of a real GPU is touched.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    Profile,
    Quantity,
    RecoveredClaim,
    RetryableError,
    partitions,
    run,
)

NVIDIA, A100 = 0x10DE, 0x20B0
RESOURCES = ("memory", "multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
WHOLE = ("40Gi", 98, 7, 5, 0, 1, 1)
MEMORY_SLICES = 8


def profile(name: str, slices: int, at: list[int], *takes: str | int) -> Profile:
    return Profile(name=name, takes=dict(zip(RESOURCES, takes, strict=True)), slots=slices, at=at)


# KEP-4815's table of an A100 40GB: memory slices, where they may begin, and what is taken, in the order of RESOURCES.
PROFILES = [
    profile("7g.40gb", 8, [0], "40192Mi", 98, 7, 5, 0, 1, 1),
    profile("4g.20gb", 4, [0], "19968Mi", 56, 4, 2, 0, 0, 0),
    profile("3g.20gb", 4, [0, 4], "19968Mi", 42, 3, 2, 0, 0, 0),
    profile("2g.10gb", 2, [0, 2, 4], "9856Mi", 28, 2, 1, 0, 0, 0),
    profile("1g.10gb", 2, [0, 2, 4, 6], "9856Mi", 14, 1, 1, 0, 0, 0),
    profile("1g.5gb+me", 1, [0, 1, 2, 3, 4, 5, 6], "4864Mi", 14, 1, 1, 0, 1, 1),
    profile("1g.5gb", 1, [0, 1, 2, 3, 4, 5, 6], "4864Mi", 14, 1, 0, 0, 0, 0),
]


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
        # What tells how GPUs lie to each other; with the counters of a whole GPU there is no room for all that PCI knows.
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


class Gpus:
    """Stands in for the maker's library (here NVML): which partitions there are, each a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def uuid(name: str) -> str:
        """The same for the same hardware, as a serial number is."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def path(self, instance: str) -> Path:
        return self._folder / f"{instance}.json"

    def create(self, instance: str, claim: Claim, device: AllocatedDevice) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        owner = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
        place = {"request": device.request, "pool": device.pool, "device": device.name}
        unfinished = self._folder / f".{instance}"
        unfinished.write_text(json.dumps(owner | place))
        unfinished.rename(self.path(instance))

    def destroy(self, instance: str) -> None:
        self.path(instance).unlink(missing_ok=True)

    def used(self) -> Iterator[RecoveredClaim]:
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                found = json.loads(path.read_text())
                device = PreparedDevice(request=found["request"], pool=found["pool"], name=found["device"])
                yield RecoveredClaim(
                    uid=found["uid"], namespace=found["namespace"], name=found["name"], devices=[device]
                )


if __name__ == "__main__":
    run(Mig)
