"""What this driver is told; ``dra run --help`` and the README list it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dra_kubeletplugin import option


@dataclass(frozen=True)
class GpuOptions:
    """Named as the upstream example driver names its own."""

    num_devices: int = option(8, "how many GPUs each node has")
    gpu_partitions: int = option(0, "into how many partitions a GPU can be divided (KEP-4815); it can be had whole too")
    gpu_allow_multiple_allocations: bool = option(
        False, "claims may share a GPU, each with a part of memory and compute (KEP-5075)"
    )
    gpu_device_status: bool = option(False, "a prepared claim tells which GPU it has (KEP-4817)")
    binding_conditions: bool = option(
        False, "pods wait until the controller has readied a GPU (KEP-5007): run `dra controller` too"
    )
    gpu_faults: Path | None = option(
        None,
        "a folder: a file `gpu-3` in it makes that GPU unhealthy, and its text says why. A text that begins with `NoExecute` also "
        "evicts the pods that use it",
    )

    def __post_init__(self) -> None:
        if self.num_devices < 0 or self.gpu_partitions < 0:
            raise ValueError("num_devices and gpu_partitions are 0 or more")
