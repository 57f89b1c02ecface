"""Simulated GPUs, with everything that a real GPU driver needs of Kubernetes: partitions, sharing, configuration, health, status.

Manifests for the upstream example driver (kubernetes-sigs/dra-example-driver) run on it unchanged. Options, from the environment:

NUM_DEVICES                      how many GPUs each node has; 8 when empty.
GPU_PARTITIONS                   into how many partitions a GPU can be divided (KEP-4815); it can be had whole too. 0: not at all.
GPU_ALLOW_MULTIPLE_ALLOCATIONS   ``true``: claims may share a GPU, each with a part of its memory and compute (KEP-5075).
GPU_DEVICE_STATUS                ``true``: a prepared claim tells which GPU it has (KEP-4817).
BINDING_CONDITIONS               ``true``: pods wait until the controller has readied a GPU (KEP-5007): run ``dra controller`` too.
GPU_FAULTS                       a folder: a file ``gpu-3`` in it makes that GPU unhealthy, and its text says why. A text that begins
                                 with ``NoExecute`` also evicts the pods that use it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dra_kubeletplugin import (
    AllocatedDevice,
    Capacity,
    Claim,
    Config,
    ContainerEdits,
    CounterSet,
    Device,
    DeviceStatus,
    Driver,
    Gate,
    Health,
    PermanentError,
    Pool,
    PreparedDevice,
    Quantity,
    RequestPolicy,
    Role,
    Taint,
    Version,
    run,
)

MODEL = "LATEST-GPU-MODEL"
DRIVER_VERSION = Version("1.0.0")
MEMORY, COMPUTE = Quantity("80Gi"), Quantity(100)
READY, FAILED = "BindingConditions", "BindingFailureConditions"
EVICTS = "NoExecute"


class TimeSlicingConfig(Config):
    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class SpacePartitioningConfig(Config):
    partition_count: int = 1

    def check(self) -> None:
        if self.partition_count < 0:
            raise ValueError(f"partitionCount is {self.partition_count}: give 0 or more")


class Sharing(Config):
    strategy: Literal["TimeSlicing", "SpacePartitioning"] = "TimeSlicing"
    time_slicing_config: TimeSlicingConfig | None = None
    space_partitioning_config: SpacePartitioningConfig | None = None

    def check(self) -> None:
        if self.strategy == "TimeSlicing" and self.space_partitioning_config is not None:
            raise ValueError(
                "spacePartitioningConfig is of strategy SpacePartitioning, and the strategy is TimeSlicing"
            )
        if self.strategy == "SpacePartitioning" and self.time_slicing_config is not None:
            raise ValueError("timeSlicingConfig is of strategy TimeSlicing, and the strategy is SpacePartitioning")


class GpuConfig(Config):
    """How the containers of a claim share a GPU among themselves."""

    KIND: ClassVar[str] = "GpuConfig"
    API_VERSION: ClassVar[str] = "gpu.resource.example.com/v1alpha1"
    sharing: Sharing = Sharing()


@dataclass(frozen=True)
class Options:
    """What the environment says; see the module."""

    gpus: int = 8
    partitions: int = 0
    shared: bool = False
    status: bool = False
    binding: bool = False
    faults: Path | None = None

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Options:
        """Raises :class:`PermanentError` for what cannot be read."""
        return cls(
            gpus=_count(env, "NUM_DEVICES", 8),
            partitions=_count(env, "GPU_PARTITIONS", 0),
            shared=_switch(env, "GPU_ALLOW_MULTIPLE_ALLOCATIONS"),
            status=_switch(env, "GPU_DEVICE_STATUS"),
            binding=_switch(env, "BINDING_CONDITIONS"),
            faults=Path(env["GPU_FAULTS"]) if env.get("GPU_FAULTS") else None,
        )


class Gpu(Driver):
    """GPUs that exist in name only: a container finds in its environment what it was given."""

    name = "gpu.example.com"
    config = GpuConfig
    metadata = True

    def start(self) -> None:
        self.options = Options.of(os.environ)

    # --- what there is --------------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        if self.role is Role.CONTROLLER:
            return []  # it binds claims, and has no devices of its own
        partitions = 0 if Gate.PARTITIONS in self.gates_off else self.options.partitions
        gpus = range(self.options.gpus)
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
        shared = self.options.shared
        return Device(
            name,
            {"index": index, "uuid": self._uuid(index), "model": MODEL, "driverVersion": DRIVER_VERSION, **extra},
            capacity={
                "memory": Capacity(memory, _up_to(memory, Quantity("1Gi")) if shared else None),
                "compute": Capacity(compute, _up_to(compute, Quantity(1)) if shared else None),
            },
            consumes_counters={_counters(index): {"memory": memory, "compute": compute}} if counted else {},
            allow_multiple_allocations=shared,
            binding_conditions=[READY] if self.options.binding else (),
            binding_failure_conditions=[FAILED] if self.options.binding else (),
            data=index,
        )

    def _uuid(self, index: int) -> str:
        """Stable over restarts, different on each node; a real driver reads it from the hardware."""
        return f"gpu-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{self.settings.node_name}.{self.name}')}"

    def health(self) -> dict[str, Health]:
        out = {}
        folder = self.options.faults
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
                [d.name for d in self._devices(int(index), self.options.partitions)]
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
        told = DeviceStatus(data={key: str(device.attributes[key]) for key in shown}) if self.options.status else None
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


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "") or str(default)
    if not text.isdecimal():
        raise PermanentError(f"{name} is {text!r}: give a number, 0 or more")
    return int(text)


def _switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "") or "false"
    if text.lower() not in {"true", "false"}:
        raise PermanentError(f"{name} is {text!r}: give true or false")
    return text.lower() == "true"


if __name__ == "__main__":
    run(Gpu)
