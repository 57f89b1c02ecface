"""Simulated GPUs, with all that real ones need: partitions, sharing, configuration, health, status.

Manifests for the upstream example driver (kubernetes-sigs/dra-example-driver) run on it unchanged.
Options: :mod:`.options`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

from dra_kubeletplugin import (
    AllocatedDevice,
    Capacity,
    Claim,
    ContainerEdits,
    CounterSet,
    Device,
    DeviceStatus,
    Driver,
    Gate,
    Health,
    Pool,
    PreparedDevice,
    Quantity,
    RequestPolicy,
    Role,
    Taint,
    Version,
    run,
)

from .config import GpuConfig, SpacePartitioningConfig, TimeSlicingConfig
from .options import GpuOptions

MODEL = "LATEST-GPU-MODEL"
DRIVER_VERSION = Version("1.0.0")
MEMORY, COMPUTE = Quantity("80Gi"), Quantity(100)
READY, FAILED = "BindingConditions", "BindingFailureConditions"
EVICTS = "NoExecute"


class Gpu(Driver):
    """GPUs that exist in name only: a container finds in its environment what it was given."""

    name = "gpu.example.com"
    config = GpuConfig
    options = GpuOptions()
    metadata = True

    # --- what there is --------------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        if self.role is Role.CONTROLLER:
            return []  # it binds claims, and has no devices of its own
        partitions = 0 if Gate.PARTITIONS in self.gates_off else self.options.gpu_partitions
        gpus = range(self.options.num_devices)
        sets = [CounterSet(_counters(i), {"memory": MEMORY, "compute": COMPUTE}) for i in gpus] if partitions else []
        return [Pool(self.settings.node_name, [d for i in gpus for d in self._devices(i, partitions)], sets)]

    def _devices(self, index: int, partitions: int) -> Iterator[Device]:
        """Partitions come before the whole: the scheduler takes the first that fits."""
        if not partitions:
            yield self._device(f"gpu-{index}", index, {})
            return
        for j in range(partitions):
            extra = {"partition": j, "partitionable": True}
            yield self._device(f"gpu-{index}-partition-{j}", index, extra, partitions, counted=True)
        yield self._device(f"gpu-{index}-full", index, {"partitionable": True, "full": True}, counted=True)

    def _device(
        self, name: str, index: int, extra: Mapping[str, int | bool], parts: int = 1, *, counted: bool = False
    ) -> Device:
        memory, compute = (Quantity(int(amount) // parts, amount.format) for amount in (MEMORY, COMPUTE))
        shared = self.options.gpu_allow_multiple_allocations
        return Device(
            name,
            {"index": index, "uuid": self._uuid(index), "model": MODEL, "driverVersion": DRIVER_VERSION, **extra},
            capacity={
                "memory": Capacity(memory, _up_to(memory, Quantity("1Gi")) if shared else None),
                "compute": Capacity(compute, _up_to(compute, Quantity(1)) if shared else None),
            },
            consumes_counters={_counters(index): {"memory": memory, "compute": compute}} if counted else {},
            allow_multiple_allocations=shared,
            binding_conditions=[READY] if self.options.binding_conditions else (),
            binding_failure_conditions=[FAILED] if self.options.binding_conditions else (),
            data=index,
        )

    def _uuid(self, index: int) -> str:
        """Stable over restarts, different on each node; a real driver reads it from the hardware."""
        return f"gpu-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{self.settings.node_name}.{self.name}')}"

    def health(self) -> dict[str, Health]:
        out = {}
        folder = self.options.gpu_faults
        for file in sorted(folder.iterdir()) if folder and folder.is_dir() else ():
            try:
                why = file.read_text(errors="replace").strip() or "no reason given"
            except FileNotFoundError:
                continue  # the fault ended while we looked
            except OSError as e:
                why = f"{file} cannot be read: {e.strerror}"
            taint = Taint(key=f"{self.name}/broken", effect=EVICTS) if why.startswith(EVICTS) else None
            fault = Health(healthy=False, message=why, taint=taint)
            # A fault of a GPU is one of all its partitions.
            names = (
                [d.name for d in self._devices(int(index), self.options.gpu_partitions)]
                if (index := file.name.removeprefix("gpu-")).isdecimal()
                else [file.name]
            )
            out.update(dict.fromkeys(names, fault))
        return out

    # --- a claim --------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        shown = ("uuid", "model", "driverVersion")
        told = (
            DeviceStatus(data={key: str(device.attributes[key]) for key in shown})
            if self.options.gpu_device_status
            else None
        )
        return device.prepared(ContainerEdits(env=self._environment(claim, device)), status=told)

    def _environment(self, claim: Claim, device: AllocatedDevice) -> dict[str, str]:
        id = device.name.removeprefix("gpu-").upper().replace("-", "_")
        config = device.config
        assert isinstance(config, GpuConfig)  # all its fields have defaults, so there is always one
        env = {
            "KUBERNETES_NODE_NAME": self.settings.node_name,
            "DRA_RESOURCE_DRIVER_NAME": self.settings.driver_name,
            "DRA_ADMIN_ACCESS": str(device.admin_access).lower(),
            f"GPU_DEVICE_{id}": device.name,
            f"GPU_DEVICE_GPU_{id}_RESOURCE_CLAIM": claim.uid,
            f"GPU_DEVICE_{id}_SHARING_STRATEGY": config.sharing.strategy,
        }
        if config.sharing.strategy == "TimeSlicing":
            slicing = config.sharing.time_slicing_config or TimeSlicingConfig()
            env[f"GPU_DEVICE_{id}_TIMESLICE_INTERVAL"] = slicing.interval
        else:
            space = config.sharing.space_partitioning_config or SpacePartitioningConfig()
            env[f"GPU_DEVICE_{id}_PARTITION_COUNT"] = str(space.partition_count)
        for key, amount in device.consumed_capacity.items():
            env[f"GPU_DEVICE_{id}_{key.upper()}"] = str(amount)
        return env

    async def bind(self, claim: Claim) -> None:
        """Nothing has to be done to a simulated GPU: that this returns is what pods wait for."""


def _counters(index: int) -> str:
    return f"gpu-{index}-counters"


def _up_to(all_of_it: Quantity, step: Quantity) -> RequestPolicy:
    """A claim that does not say how much it wants gets everything."""
    return RequestPolicy(default=all_of_it, min=step, step=step, max=all_of_it)


if __name__ == "__main__":
    run(Gpu)
