"""What this driver is told; ``dra run --help`` and the README list it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class GpuOptions:
    """Named as the upstream example driver names its own."""

    num_devices: Annotated[int, "how many GPUs each node has"] = 8
    gpu_partitions: Annotated[
        int, "into how many partitions a GPU can be divided (KEP-4815); it can be had whole too"
    ] = 0
    gpu_allow_multiple_allocations: Annotated[
        bool, "claims may share a GPU, each with a part of memory and compute (KEP-5075)"
    ] = False
    gpu_device_status: Annotated[bool, "a prepared claim tells which GPU it has (KEP-4817)"] = False
    binding_conditions: Annotated[
        bool, "pods wait until the controller has readied a GPU (KEP-5007): run `dra controller` too"
    ] = False
    gpu_faults: Annotated[
        Path | None,
        "a folder: a file `gpu-3` in it makes that GPU unhealthy, and its text says why; a text that begins with "
        "`NoExecute` also evicts the pods that use it",
    ] = None

    def __post_init__(self) -> None:
        if self.num_devices < 0 or self.gpu_partitions < 0:
            raise ValueError("num_devices and gpu_partitions are 0 or more")
