"""A driver for simulated GPUs with all features of real ones: partitions, sharing, configuration, health, status.

Manifests for the upstream example driver (kubernetes-sigs/dra-example-driver) run without changes.
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
NO_EXECUTE = "NoExecute"


class Gpu(Driver):
    """Publishes simulated GPUs. Containers get environment variables and no device nodes."""

    name = "gpu.example.com"
    config = GpuConfig
    options = GpuOptions()
    metadata = True

    # --- devices --------------------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        if self.role is Role.CONTROLLER:
            return []  # the controller binds claims; the plugins publish the devices
        partitions = 0 if Gate.PARTITIONS in self.gates_off else self.options.gpu_partitions
        gpus = range(self.options.num_devices)
        sets = [CounterSet(_counters(i), {"memory": MEMORY, "compute": COMPUTE}) for i in gpus] if partitions else []
        return [Pool(self.settings.node_name, [d for i in gpus for d in self._devices(i, partitions)], sets)]

    def _devices(self, index: int, partitions: int) -> Iterator[Device]:
        """Yields partitions before the whole GPU, because the scheduler allocates the first device that fits."""
        if not partitions:
            yield self._device(f"gpu-{index}", index, {})
            return
        for j in range(partitions):
            extra = {"partition": j, "partitionable": True}
            yield self._device(f"gpu-{index}-partition-{j}", index, extra, partitions, counted=True)
        yield self._device(f"gpu-{index}-full", index, {"partitionable": True, "full": True}, counted=True)

    def _device(
        self, name: str, index: int, extra: Mapping[str, int | bool], fraction: int = 1, *, counted: bool = False
    ) -> Device:
        memory, compute = (Quantity(int(amount) // fraction, amount.format) for amount in (MEMORY, COMPUTE))
        shared = self.options.gpu_allow_multiple_allocations
        return Device(
            name,
            attributes={
                "index": index,
                "uuid": self._uuid(index),
                "model": MODEL,
                "driverVersion": DRIVER_VERSION,
                **extra,
            },
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
        """Returns an id that a restart does not change. A real driver reads it from the hardware."""
        return f"gpu-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{self.settings.node_name}.{self.name}')}"

    def health(self) -> dict[str, Health]:
        out = {}
        folder = self.options.gpu_faults
        for file in sorted(folder.iterdir()) if folder and folder.is_dir() else ():
            try:
                message = file.read_text(errors="replace").strip() or "no reason given"
            except FileNotFoundError:
                continue  # the fault ended after the folder was listed
            except OSError as e:
                message = f"{file} cannot be read: {e.strerror}"
            taints = [Taint(key=f"{self.name}/broken", effect=NO_EXECUTE)] if message.startswith(NO_EXECUTE) else []
            fault = Health(healthy=False, message=message, taints=taints)
            # A fault of a GPU affects all its partitions.
            names = (
                [d.name for d in self._devices(int(index), self.options.gpu_partitions)]
                if (index := file.name.removeprefix("gpu-")).isdecimal()
                else [file.name]
            )
            out.update(dict.fromkeys(names, fault))
        return out

    # --- claims ---------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        status = None
        if self.options.gpu_device_status:
            status = DeviceStatus(data={key: str(device.attributes[key]) for key in ("uuid", "model", "driverVersion")})
        return device.prepared(ContainerEdits(env=self._environment(claim, device)), status=status)

    def _environment(self, claim: Claim, device: AllocatedDevice) -> dict[str, str]:
        id = device.name.removeprefix("gpu-").upper().replace("-", "_")
        config = device.config
        assert isinstance(config, GpuConfig)  # never None, because all fields have defaults
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
        """Returns at once: a simulated GPU needs no work. Then the framework sets the binding condition to True."""


def _counters(index: int) -> str:
    return f"gpu-{index}-counters"


def _up_to(maximum: Quantity, step: Quantity) -> RequestPolicy:
    """Allows requests from ``step`` to ``maximum``. A request without an amount gets the maximum."""
    return RequestPolicy(default=maximum, min=step, step=step, max=maximum)


if __name__ == "__main__":
    run(Gpu)
