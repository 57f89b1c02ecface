"""Parameters of a claim: how its containers share a GPU."""

from __future__ import annotations

from typing import ClassVar, Literal

from dra_kubeletplugin import Config


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
            raise ValueError("spacePartitioningConfig needs strategy SpacePartitioning; the strategy is TimeSlicing")
        if self.strategy == "SpacePartitioning" and self.time_slicing_config is not None:
            raise ValueError("timeSlicingConfig needs strategy TimeSlicing; the strategy is SpacePartitioning")


class GpuConfig(Config):
    """Sets how the containers of a claim share its GPU."""

    KIND: ClassVar[str] = "GpuConfig"
    API_VERSION: ClassVar[str] = "gpu.resource.example.com/v1alpha1"
    sharing: Sharing = Sharing()
