"""Converts the allocation results in a claim to the devices that a driver gets, on a node and in the controller."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..base.json_types import JSON
from ..resourceapi import quantity
from ..resourceapi.types import Device
from .claim import AllocatedDevice
from .config.model import Config

_UNKNOWN = Device("unknown")


class AllocationResult(msgspec.Struct, rename="camel"):
    """One allocated device, as in ``status.allocation.devices.results`` of a ResourceClaim. All API versions have the same form."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int | float] | None = None
    tolerations: list[JSON] | None = None

    def consumed(self) -> dict[str, quantity.Quantity]:
        """Returns the consumed capacity by name. Raises ``ValueError`` if a value is not a quantity."""
        return {k: quantity.parse(str(v)) for k, v in (self.consumed_capacity or {}).items()}

    def allocated(
        self,
        device: Device | None = None,
        config: Config | None = None,
        source: str = "",
        consumed: Mapping[str, quantity.Quantity] | None = None,
    ) -> AllocatedDevice:
        """Returns the device as the driver gets it.

        Args:
            device: the device in the inventory; by default an unknown device without attributes.
            config: the parameters of its request.
            source: ``FromClass``, ``FromClaim`` or empty.
            consumed: the consumed capacity, parsed.
        """
        return AllocatedDevice(
            request=self.request,
            pool=self.pool,
            name=self.device,
            share_id=self.share_id,
            admin_access=bool(self.admin_access),
            consumed_capacity=consumed or {},
            config=config,
            config_source=source,
            published=device or _UNKNOWN,
            tolerations=self.tolerations or (),
        )
