"""Decodes the fields of a ResourceClaim that the plugin and the controller read, and skips the rest.

Any user of the cluster may write a claim of 1 MB, which takes 30 MB of memory if it is decoded entirely. Therefore, opaque parameters stay
encoded until they are resolved. Managed fields and device statuses stay encoded until a status is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from ..base.json_types import JSON
from ..driver.results import AllocationResult
from ..resourceapi.allocation import node_of
from ..resourceapi.encoded import config_entries, from_json

T = TypeVar("T")
DeviceKey = tuple[str, str, str]  # pool, device, share id


class ClaimIdentity(NamedTuple):
    """A claim as the kubelet identifies it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class DeviceResult(AllocationResult, rename="camel"):
    """An allocated device with its binding conditions."""

    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None

    @property
    def key(self) -> DeviceKey:
        return self.pool, self.device, self.share_id or ""


class _AllocatedDevices(msgspec.Struct):
    results: list[DeviceResult] | None = None
    config: msgspec.Raw = msgspec.Raw(b"null")


class _Allocation(msgspec.Struct, rename="camel"):
    devices: _AllocatedDevices | None = None
    allocation_timestamp: str | None = None
    node_selector: JSON | None = None


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[JSON] | None = None
    devices: msgspec.Raw = msgspec.Raw(b"null")


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    managed_fields: msgspec.Raw = msgspec.Raw(b"null")


class ClaimFields(msgspec.Struct):
    """A ResourceClaim; all API versions have these fields in the same form."""

    metadata: _Metadata
    status: _Status | None = None

    @classmethod
    def decode(cls, encoded: bytes | msgspec.Raw) -> ClaimFields:
        """Decodes a claim. Raises ``msgspec.DecodeError`` or ``RecursionError`` if it is not a ResourceClaim."""
        found: ClaimFields = from_json(encoded, cls)
        return found

    @property
    def allocation(self) -> _Allocation | None:
        return self.status.allocation if self.status else None

    @property
    def allocated_at(self) -> str:
        """The allocation's timestamp, which differs between two allocations of the same devices. Empty if there is none."""
        return (self.allocation.allocation_timestamp if self.allocation else None) or ""

    @property
    def node(self) -> str:
        """The single node where the allocation can be used; empty if there may be several."""
        return node_of({"status": {"allocation": {"nodeSelector": self.allocation and self.allocation.node_selector}}})

    @property
    def reserved_for(self) -> Sequence[JSON]:
        return (self.status.reserved_for if self.status else None) or ()

    @property
    def encoded_config(self) -> msgspec.Raw:
        """``status.allocation.devices.config`` as JSON."""
        devices = self.allocation.devices if self.allocation else None
        return devices.config if devices else msgspec.Raw(b"null")

    def config(self) -> Sequence[JSON]:
        """Returns the configuration entries of the allocation, with encoded parameters."""
        return config_entries(self.encoded_config)

    def results(self, driver: str) -> list[DeviceResult]:
        """Returns the allocated devices of one driver."""
        devices = self.allocation.devices if self.allocation else None
        return [r for r in (devices.results if devices else None) or () if r.driver == driver]

    def device_statuses(self, entry: type[T]) -> list[T]:
        """Decodes the entries of ``status.devices``. Raises ``msgspec.DecodeError``."""
        return (from_json(self.status.devices, list[entry] | None) if self.status else None) or []  # type: ignore[valid-type]

    def managed_fields(self) -> list[JSON]:
        """Decodes ``metadata.managedFields``. Raises ``msgspec.DecodeError``."""
        return from_json(self.metadata.managed_fields, list[JSON] | None) or []
