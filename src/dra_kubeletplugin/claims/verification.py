"""Checks a claim before the hardware is touched: reads it from the API server, then validates it without side effects.

Whether another claim holds one of its devices is decided later, in `transitions.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import msgspec

from ..base.json_types import JSON
from ..base.threads import in_own_thread
from ..devices.inventory import Inventory
from ..driver import AllocatedDevice, Driver
from ..driver.claim import EncodedClaim
from ..driver.config.resolution import Resolver
from ..driver.diagnostics.author_errors import without_frames
from ..driver.results import AllocationResult
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
    DraError,
    describe,
)
from ..kube import KubeClient, Resource
from ..kube.errors import NotFoundError
from ..kube.http1 import HttpResponse
from ..resourceapi.conversion import convert
from ..resourceapi.encoded import from_json
from ..resourceapi.types import Device
from .capacity import Supply
from .claim_fields import ClaimFields, ClaimIdentity
from .device_lookup import DeviceLookup
from .record import Record, allocated_json, identity
from .remote_devices import SliceLookup

_GET = 10.0  # seconds for reading one claim
_LARGE = 64 * 1024  # bytes of JSON: a claim up to this size is decoded on the event loop, in about 3 ms at most
_LARGE_AT_ONCE = 2
_FORGED = ": the scheduler never allocates a device like this; delete the pod and the claim, and see who may write resourceclaims/status"


class VerifiedClaim(msgspec.Struct, frozen=True):
    """A live, allocated claim.

    ``fault`` is why the claim cannot be prepared now; it is ignored if the claim is already prepared.
    ``entries`` are the claim's devices as a record stores them before they are prepared. ``supply`` has the limits at that time.
    """

    object: EncodedClaim | JSON
    node: str
    reserved_for: Sequence[JSON]
    devices: Sequence[AllocatedDevice]
    entries: Sequence[JSON]
    supply: Supply
    fault: ClaimError | None = None


class FetchedClaim(msgspec.Struct, frozen=True):
    """A claim as the API server sent it, with decoded and validated fields."""

    object: EncodedClaim | JSON
    fields: ClaimFields


class Verifier:
    """Reads claims and checks them against the inventory, or against slices for devices that another process publishes."""

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        slices: SliceLookup,
        driver: Driver,
        name: str,
        *,
        refuse_unhealthy: bool = True,
    ) -> None:
        self.client = client
        self.inventory = inventory
        self.slices = slices
        self.driver = driver
        self.name = name
        self.refuse_unhealthy = refuse_unhealthy
        self._resolver = Resolver(driver, name)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def stuck(self) -> str:
        """Why claims with large parameters cannot be verified; empty if they can."""
        stuck = self._resolver.stuck()
        return f"claims with large parameters cannot be prepared: {stuck}: restart the plugin's pod" if stuck else ""

    async def fetch(self, ref: ClaimIdentity) -> FetchedClaim | None:
        """Reads a claim; returns None if it does not exist.

        Raises :class:`ApiUnavailableError` for every response except the claim or "not found".
        """
        async with self._reading(ref) as claim:
            return claim

    @contextlib.asynccontextmanager
    async def _reading(self, ref: ClaimIdentity) -> AsyncIterator[FetchedClaim | None]:
        """Reads a claim as :meth:`fetch` does.

        Large claims are decoded in threads, and only a few at a time, because each may take 20 ms.
        """
        try:
            resource = await self.client.dra("resourceclaims")
            response: HttpResponse | None = await self.client.raw(resource.path(ref.namespace, ref.name), timeout=_GET)
        except ApiError as e:
            if not isinstance(e, NotFoundError) or not e.names(ref.name):
                # An error response does not mean that the claim is deleted.
                # The cause may be a rotated token, a missing permission, or an API version that is no longer served.
                raise ApiUnavailableError(f"claim {ref} cannot be read now: {e}") from None
            response = None
        if response is None:
            yield None
            return
        if len(response.body) <= _LARGE:
            yield _fetched(ref, resource, response)
            return
        async with self._large:
            yield await in_own_thread(_fetched, ref, resource, response)

    def has(self, claim: FetchedClaim, record: Record) -> bool:
        """Whether a claim is the claim of ``record`` and still has the devices that were prepared for it."""
        now = {r.key for r in claim.fields.results(self.name)}
        return claim.fields.metadata.uid == record.uid and now >= {identity(d) for d in record.devices}

    def may_be_in_use(self, claim: FetchedClaim, record: Record) -> bool:
        """Whether a pod of this node may use the prepared devices, although the claim now has other devices of this node.

        If the kubelet's cache contains the claim as prepared, it starts the next pod with the cached devices, without a call to the plugin.
        This happens if a pod is force-deleted while the kubelet is away, and the claim is allocated again for another pod.
        """
        here = self.inventory.pools if self.inventory.known else None
        fields = claim.fields
        found = fields.results(self.name) if fields.metadata.uid == record.uid and fields.reserved_for else []
        return any(here is None or r.pool in here for r in found)

    async def verify(self, ref: ClaimIdentity) -> VerifiedClaim:
        """Reads the claim and resolves its devices.

        Raises :class:`ClaimError` if the claim does not exist, was replaced or is not allocated. A fault of its devices is returned as
        ``fault``.
        """
        async with self._reading(ref) as claim:
            return await self._verified(ref, claim)

    async def _verified(self, ref: ClaimIdentity, claim: FetchedClaim | None) -> VerifiedClaim:
        if claim is None:
            raise ClaimNotFoundError(f"claim {ref} (UID {ref.uid}) does not exist: delete the pod")
        fields, uid = claim.fields, claim.fields.metadata.uid
        if uid != ref.uid:
            raise ClaimReplacedError(f"claim {ref} has UID {uid}, not {ref.uid}: it was deleted and created again")
        if fields.allocation is None:
            raise ClaimNotAllocatedError(
                f"claim {ref} (UID {uid}) is not allocated: the scheduler has not chosen devices"
            )
        results = fields.results(self.name)
        supply = DeviceLookup(self.inventory)
        # A response since this time is recent enough for all devices of the claim, however long their lookups take.
        started = asyncio.get_running_loop().time()
        try:
            _check_allocation(ref, results)
            devices, entries = [], []
            for result in results:
                devices.append(await self._device(ref, result, supply, started))
                # Built at once, because the device may vanish while the next one is looked up.
                entries.append(supply.entry(devices[-1]))
            devices = await self._with_config(ref, devices, fields.config())
            return VerifiedClaim(claim.object, fields.node, fields.reserved_for, devices, entries, supply)
        except ClaimError as e:
            devices = [r.allocated() for r in results]
            entries = [allocated_json(d) for d in devices]
            # Nothing will be prepared, so the result keeps neither the claim's object nor a traceback, whose frames reference the object.
            return VerifiedClaim({}, fields.node, fields.reserved_for, devices, entries, supply, without_frames(e))

    async def _device(
        self,
        ref: ClaimIdentity,
        result: AllocationResult,
        supply: DeviceLookup,
        started: float,
    ) -> AllocatedDevice:
        name = result.device
        device = self._from_inventory(ref, result)
        if device is None:
            found = await self.slices.find(f"claim {ref}", result.pool, name, started)
            supply.add(result.pool, found)
            device = found.device
        try:
            consumed = result.consumed()
        except ValueError as e:
            raise ClaimError(f"claim {ref}, device {name}: consumed capacity: {describe(e)}") from None
        if result.share_id and not device.allow_multiple_allocations:
            raise ClaimError(
                f"claim {ref}: the claim's allocation has share {result.share_id} of device {name} in pool {result.pool}, but the device "
                f"does not allow multiple allocations{_FORGED}"
            )
        return result.allocated(device, consumed=consumed)

    async def _with_config(
        self, ref: ClaimIdentity, devices: Sequence[AllocatedDevice], config: Sequence[JSON]
    ) -> list[AllocatedDevice]:
        """Returns the devices with their parameters, which depend on the request and on the type of the device."""
        out = []
        resolved = await self._resolver.resolve(config, [(d.request, d.device) for d in devices])
        for device, found in zip(devices, resolved, strict=False):  # an error is the last item
            match found:
                case ConfigError() as e:
                    raise ConfigError(f"claim {ref}, device {device.name}: {e}")
                case DraError() as e:
                    raise e
                case (chosen, source):
                    out.append(replace(device, config=chosen, config_source=source))
        return out

    def _from_inventory(self, ref: ClaimIdentity, result: AllocationResult) -> Device | None:
        """Returns a device of the inventory; None if another process publishes its pool."""
        name, pool = result.device, result.pool
        device = self.inventory.get(name, pool)
        if device is None:
            if not self.inventory.known:
                raise DevicesUnknownError(
                    f"claim {ref}: device {name} is not known yet, because devices() of the driver has not succeeded: "
                    "the kubelet retries; see the plugin's readiness"
                )
            if pool in self.inventory.pools:
                raise DeviceGoneError(f"claim {ref}: device {name} is no longer on this node")
        elif self.refuse_unhealthy and not result.admin_access and not self.inventory.healthy(name, pool):
            reason = self.inventory.unhealthy_reason(name, pool)
            raise DeviceUnhealthyError(f"claim {ref}: device {name} is unhealthy: {reason}")
        return device


def _check_allocation(ref: ClaimIdentity, results: Sequence[AllocationResult]) -> None:
    """Raises :class:`ClaimError` if one device, or one share of a device, is allocated twice. Admin access may add a device."""
    seen: dict[tuple[object, ...], str] = {}
    for r in results:
        key = (r.pool, r.device, r.share_id or "", r.request if r.admin_access else None)
        if key in seen:
            requests = " and ".join(dict.fromkeys((seen[key], r.request)))
            raise ClaimError(
                f"claim {ref}: the claim's allocation has device {r.device} of pool {r.pool} twice, for request {requests}{_FORGED}"
            )
        seen[key] = r.request


def _fetched(ref: ClaimIdentity, resource: Resource, response: HttpResponse) -> FetchedClaim:
    """Decodes a response. Raises :class:`ApiUnavailableError` if it is not a ResourceClaim."""
    try:
        fields = ClaimFields.decode(response.body)
        obj: EncodedClaim | JSON = EncodedClaim(response.body)
        if resource.version == "v1beta1":  # the only version with another shape
            found = {**from_json(response.body), "apiVersion": resource.api_version, "kind": "ResourceClaim"}
            obj = convert(found, "v1")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
        raise ApiUnavailableError(
            f"claim {ref} cannot be read now: the API server's response is not a ResourceClaim: {describe(e)}"
        ) from None
    return FetchedClaim(obj, fields)
