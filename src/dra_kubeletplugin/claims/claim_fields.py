"""Decodes the fields of a ResourceClaim that the plugin and the controller read, and skips the rest.

Any user of the cluster may write a claim of 1 MB, which takes 30 MB of memory if it is decoded entirely. Therefore, opaque parameters stay
encoded until they are resolved. Managed fields and device statuses stay encoded until a status is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from ..base.json_types import JSON
from ..driver import AllocatedDevice
from ..resourceapi.allocation import node_of
from ..resourceapi.encoded import from_json
from ..resourceapi.quantity import Quantity, parse
from ..resourceapi.types import Device

T = TypeVar("T")
DeviceKey = tuple[str, str, str]  # pool, device, share id
_UNKNOWN = Device("unknown")


class ClaimIdentity(NamedTuple):
    """A claim as the kubelet identifies it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class DeviceResult(msgspec.Struct, rename="camel"):
    """An allocated device, as in ``status.allocation.devices.results`` of a ResourceClaim. All API versions have the same form."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int | float] | None = None
    tolerations: list[JSON] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None

    @property
    def key(self) -> DeviceKey:
        return self.pool, self.device, self.share_id or ""

    def consumed(self) -> dict[str, Quantity]:
        """Returns the consumed capacity by name. Raises ``ValueError`` if a value is not a quantity."""
        return {k: parse(str(v)) for k, v in (self.consumed_capacity or {}).items()}

    def allocated(
        self, device: Device | None = None, consumed: Mapping[str, Quantity] | None = None
    ) -> AllocatedDevice:
        """Returns the device as the driver gets it, without its parameters.

        Args:
            device: the device in the inventory; by default an unknown device without attributes.
            consumed: the consumed capacity, parsed.
        """
        return AllocatedDevice(
            request=self.request,
            pool=self.pool,
            name=self.device,
            share_id=self.share_id,
            admin_access=bool(self.admin_access),
            consumed_capacity=consumed or {},
            config=None,
            config_source="",
            published=device or _UNKNOWN,
            tolerations=self.tolerations or (),
        )


class _AllocatedDevices(msgspec.Struct, frozen=True):
    results: list[DeviceResult] = []
    config: msgspec.Raw = msgspec.Raw(b"null")


class _Allocation(msgspec.Struct, frozen=True, rename="camel"):
    devices: _AllocatedDevices = _AllocatedDevices()
    allocation_timestamp: str = ""
    node_selector: JSON = {}


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[JSON] = []
    devices: msgspec.Raw = msgspec.Raw(b"null")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    managed_fields: msgspec.Raw = msgspec.Raw(b"null")


class ClaimFields(msgspec.Struct, frozen=True):
    """A ResourceClaim; all API versions have these fields in the same form. The API server leaves empty fields out."""

    metadata: _Metadata
    status: _Status = _Status()

    @classmethod
    def decode(cls, encoded: bytes | msgspec.Raw) -> ClaimFields:
        """Decodes a claim. Raises ``msgspec.DecodeError`` or ``RecursionError`` if it is not a ResourceClaim."""
        found: ClaimFields = from_json(encoded, cls)
        return found

    @property
    def allocated_at(self) -> str:
        """The allocation's timestamp, which differs between two allocations of the same devices. Empty if there is none."""
        return self.status.allocation.allocation_timestamp if self.status.allocation else ""

    @property
    def node(self) -> str:
        """The single node where the allocation can be used; empty if there may be several."""
        allocation = self.status.allocation or _Allocation()
        return node_of({"status": {"allocation": {"nodeSelector": allocation.node_selector}}})

    @property
    def encoded_config(self) -> msgspec.Raw:
        """``status.allocation.devices.config`` as JSON, for :func:`.config_entries`."""
        return (self.status.allocation or _Allocation()).devices.config

    def results(self, driver: str) -> list[DeviceResult]:
        """Returns the allocated devices of one driver."""
        return [r for r in (self.status.allocation or _Allocation()).devices.results if r.driver == driver]

    def device_statuses(self, entry: type[T]) -> list[T]:
        """Decodes the entries of ``status.devices``. Raises ``msgspec.DecodeError``."""
        return from_json(self.status.devices, list[entry] | None) or []  # type: ignore[valid-type]

    def managed_fields(self) -> list[JSON]:
        """Decodes ``metadata.managedFields``. Raises ``msgspec.DecodeError``."""
        return from_json(self.metadata.managed_fields, list[JSON] | None) or []
