"""Parameters of a claim: how its containers share a GPU."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from dra_kubeletplugin import Config
from msgspec import Meta


class TimeSlicingConfig(Config):
    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class SpacePartitioningConfig(Config):
    partition_count: Annotated[int, Meta(ge=0)] = 1


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
