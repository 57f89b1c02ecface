"""What must be true of a claim before the hardware is touched: a GET, then checks without side effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..driver import AllocatedDevice, Driver
from ..driver.config import resolve
from ..errors import (
    ApiError,
    ApiUnavailableError,
    ClaimError,
    ClaimNotAllocatedError,
    ClaimNotFoundError,
    ClaimReplacedError,
    ConfigError,
    DeviceGoneError,
    DevicesUnknownError,
    DeviceUnhealthyError,
    WrongNodeError,
)
from ..inventory import Inventory
from ..kube import KubeClient
from ..resources import quantity
from ..resources.convert import convert
from ..resources.types import Device
from .record import Record, identity

JSON = Mapping[str, Any]


@dataclass(frozen=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Verified:
    """A live, allocated claim. ``fault`` is why it could not be prepared now; a repetition does not care."""

    object: JSON
    results: Sequence[JSON]
    devices: Sequence[AllocatedDevice]
    fault: ClaimError | None = None


class Verifier:
    """Reads claims and checks them against the inventory."""

    def __init__(
        self, client: KubeClient, inventory: Inventory, driver: Driver, name: str, *, refuse_unhealthy: bool = True
    ) -> None:
        self.client = client
        self.inventory = inventory
        self.driver = driver
        self.name = name
        self.refuse_unhealthy = refuse_unhealthy

    async def fetch(self, ref: ClaimRef) -> JSON | None:
        """The claim; None where it is gone.

        Raises :class:`ApiUnavailableError` where the server may be away, :class:`ClaimError` where it refuses.
        """
        try:
            resource = await self.client.dra("resourceclaims")
            found = await self.client.get(resource, ref.name, ref.namespace, timeout=10)
        except ApiError as e:
            if e.status == 404 and e.names(ref.name):
                return None
            if e.status == 404:
                # Not the claim is missing but the whole resource: another server, or a version that it no longer has.
                self.client.forget_version()
            if e.unreachable or e.status == 404:
                raise ApiUnavailableError(f"claim {ref} cannot be read now: {e}") from None
            raise ClaimError(f"claim {ref} cannot be read: {e}") from None
        return convert({"apiVersion": resource.api_version, "kind": "ResourceClaim", **found}, "v1")

    def has(self, claim: JSON, record: Record) -> bool:
        """Whether a claim is the one of ``record``, and still has the devices that were prepared for it."""
        if claim["metadata"]["uid"] != record.uid:
            return False
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        now = {(r["pool"], r["device"], r.get("shareID") or "") for r in results if r["driver"] == self.name}
        return now >= {identity(d) for d in record.devices}

    async def verify(self, ref: ClaimRef) -> Verified:
        """Reads the claim and resolves its devices.

        Raises :class:`ClaimError` where the claim itself is wrong; what is wrong with its devices is ``fault``.
        """
        claim = await self.fetch(ref)
        if claim is None:
            raise ClaimNotFoundError(f"claim {ref} (UID {ref.uid}) does not exist: delete the pod")
        uid = claim["metadata"]["uid"]
        if uid != ref.uid:
            raise ClaimReplacedError(f"claim {ref} has UID {uid}, not {ref.uid}: it was deleted and created again")
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is None:
            raise ClaimNotAllocatedError(
                f"claim {ref} (UID {uid}) is not allocated: the scheduler has not chosen devices"
            )
        devices = allocation.get("devices") or {}
        results = [r for r in devices.get("results") or [] if r["driver"] == self.name]
        for r in results:
            if r["pool"] != self.inventory.pool:
                raise WrongNodeError(
                    f"claim {ref}: device {r['device']} is of pool {r['pool']}, and this node has pool {self.inventory.pool}"
                )
        fault: ClaimError | None = None
        allocated: list[AllocatedDevice] = []
        try:
            for r in results:
                allocated.append(self._device(ref, r, devices.get("config") or []))
        except ClaimError as e:
            fault = e
            allocated = [_bare(r) for r in results]
        return Verified(claim, results, allocated, fault)

    def _device(self, ref: ClaimRef, result: JSON, config: Sequence[JSON]) -> AllocatedDevice:
        name = result["device"]
        device = self.inventory.get(name)
        if device is None:
            if not self.inventory.known:
                raise DevicesUnknownError(
                    f"claim {ref}: device {name} is not known yet, because the driver has not answered which devices there are: "
                    "the kubelet tries again; see the plugin's readiness"
                )
            raise DeviceGoneError(f"claim {ref}: device {name} is not on this node any more")
        if self.refuse_unhealthy and not self.inventory.healthy(name) and not result.get("adminAccess"):
            reason = self.inventory.unhealthy_reason(name)
            raise DeviceUnhealthyError(f"claim {ref}: device {name} is unhealthy: {reason}")
        try:
            chosen, source = resolve(config, self.driver.config_kinds(), self.name, result["request"])
        except ConfigError as e:
            raise ConfigError(f"claim {ref}, device {name}: {e}") from None
        bare = _bare(result)
        return dataclasses.replace(bare, device=device, config=chosen, config_source=source)


def _bare(result: JSON) -> AllocatedDevice:
    """A result without what the inventory and the configuration add."""
    consumed = {k: quantity.parse(str(v)) for k, v in (result.get("consumedCapacity") or {}).items()}
    return AllocatedDevice(
        request=result["request"],
        pool=result["pool"],
        name=result["device"],
        share_id=result.get("shareID"),
        admin_access=bool(result.get("adminAccess")),
        consumed_capacity=consumed,
        config=None,
        config_source="",
        device=Device("unknown"),
        tolerations=result.get("tolerations") or (),
    )
