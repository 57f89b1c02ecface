"""Options of this driver; ``dra run --help`` and the README list them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class GpuOptions:
    """The options have the same names as in the upstream example driver."""

    num_devices: Annotated[int, "number of GPUs on each node"] = 8
    gpu_partitions: Annotated[
        int, "number of partitions of each GPU (KEP-4815); a claim can also get the whole GPU"
    ] = 0
    gpu_allow_multiple_allocations: Annotated[
        bool, "several claims can share a GPU; each gets a part of its memory and compute (KEP-5075)"
    ] = False
    gpu_device_status: Annotated[
        bool, "writes UUID, model and driver version of the GPUs to the claim's status (KEP-4817)"
    ] = False
    binding_conditions: Annotated[
        bool, "pods wait until the controller has bound their GPUs (KEP-5007); needs `dra controller`"
    ] = False
    gpu_faults: Annotated[
        Path | None,
        "folder with simulated faults: a file `gpu-3` makes GPU 3 unhealthy, with its text as the message; a text that "
        "begins with `NoExecute` also evicts the pods that use the GPU",
    ] = None

    def __post_init__(self) -> None:
        if self.num_devices < 0 or self.gpu_partitions < 0:
            raise ValueError("num_devices and gpu_partitions must be 0 or more")
