"""Parameters of a claim.

Kinds, fields and API version are those of NVIDIA's own DRA driver, so manifests for that driver work unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from dra_kubeletplugin import Config, Quantity
from dra_kubeletplugin.resourceapi.types import Attribute
from msgspec import Meta, field

API_VERSION = "resource.nvidia.com/v1beta1"
MEBIBYTE = 1 << 20


class TimeSlicingConfig(Config):
    """How long a program computes before the next program gets the GPU."""

    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class MpsConfig(Config):
    """Limits of each program that uses the GPU through MPS.

    The keys of ``default_per_device_pinned_memory_limit`` are UUIDs, or the positions of the claim's devices.
    """

    default_active_thread_percentage: Annotated[int, Meta(ge=1, le=100)] | None = None
    default_pinned_device_memory_limit: Quantity | None = None
    default_per_device_pinned_memory_limit: dict[str, Quantity] | None = None

    def check(self) -> None:
        limits = [
            self.default_pinned_device_memory_limit,
            *(self.default_per_device_pinned_memory_limit or {}).values(),
        ]
        for limit in limits:
            if limit is not None and int(limit) < MEBIBYTE:
                raise ValueError(f"the memory limit {limit} is below 1Mi")


class GpuSharing(Config):
    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None

    def check(self) -> None:
        if self.strategy == "TimeSlicing" and self.mps_config is not None:
            raise ValueError("mpsConfig needs strategy MPS; the strategy is TimeSlicing")
        if self.strategy == "MPS" and self.time_slicing_config is not None:
            raise ValueError("timeSlicingConfig needs strategy TimeSlicing; the strategy is MPS")


class MigDeviceSharing(Config):
    strategy: Literal["TimeSlicing", "MPS"]
    mps_config: MpsConfig | None = None

    def check(self) -> None:
        if self.strategy == "TimeSlicing" and self.mps_config is not None:
            raise ValueError("mpsConfig needs strategy MPS; the strategy is TimeSlicing")


class GpuConfig(Config):
    """Sets how the programs of a claim share a whole GPU."""

    KIND: ClassVar[str] = "GpuConfig"
    API_VERSION: ClassVar[str] = API_VERSION
    DEVICES: ClassVar[Mapping[str, Attribute]] = {"type": "gpu"}
    sharing: GpuSharing | None = None


class MigDeviceConfig(Config):
    """Sets how the programs of a claim share a MIG instance."""

    KIND: ClassVar[str] = "MigDeviceConfig"
    API_VERSION: ClassVar[str] = API_VERSION
    DEVICES: ClassVar[Mapping[str, Attribute]] = {"type": "mig"}
    sharing: MigDeviceSharing | None = None


class Iommu(Config):
    backend_policy: Literal["LegacyOnly", "PreferIommuFD"] = "LegacyOnly"
    enable_api_device: bool = field(default=False, name="enableAPIDevice")


class VfioDeviceConfig(Config):
    """Sets how a container gets a GPU that is passed through."""

    KIND: ClassVar[str] = "VfioDeviceConfig"
    API_VERSION: ClassVar[str] = API_VERSION
    DEVICES: ClassVar[Mapping[str, Attribute]] = {"type": "vfio"}
    iommu: Iommu = Iommu()
