"""Checks a claim before the hardware is touched: reads it from the API server, then validates it without side effects.

Whether another claim holds one of its devices is decided later, in `transitions.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ..base.json_types import JSON
from ..base.threads import in_own_thread
from ..devices.inventory import Inventory
from ..driver import AllocatedDevice, Driver
from ..driver.config.resolution import Resolver
from ..driver.diagnostics.author_errors import without_frames
from ..driver.encoded_claim import EncodedClaim
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
from ..kube import KubeClient
from ..kube.errors import NotFoundError
from ..resourceapi.encoded import config_entries
from .capacity import Supply, takes_json
from .claim_fields import ClaimFields, ClaimIdentity, DeviceResult
from .record import Record, allocated_json, identity
from .remote_devices import SliceLookup

_GET = 10.0  # seconds for reading one claim
_LARGE = 64 * 1024  # bytes of JSON: a claim up to this size is decoded on the event loop, in about 3 ms at most
_LARGE_AT_ONCE = 2


class VerifiedClaim(msgspec.Struct, frozen=True):
    """A live, allocated claim.

    ``fault`` is why the claim cannot be prepared now; it is ignored if the claim is already prepared.
    ``entries`` are the claim's devices as a record stores them before they are prepared. ``supply`` has the limits at that time.
    """

    object: EncodedClaim
    node: str
    reserved_for: Sequence[JSON]
    devices: Sequence[AllocatedDevice]
    entries: Sequence[JSON]
    supply: Supply
    fault: ClaimError | None = None


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
        self.name = name
        self.refuse_unhealthy = refuse_unhealthy
        self._resolver = Resolver(driver, name)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def stuck(self) -> str:
        """Why claims with large parameters cannot be verified; empty if they can."""
        stuck = self._resolver.stuck()
        return f"claims with large parameters cannot be prepared: {stuck}: restart the plugin's pod" if stuck else ""

    async def fetch(self, ref: ClaimIdentity) -> ClaimFields | None:
        """Reads a claim; returns None if it does not exist.

        Raises :class:`ApiUnavailableError` for every response except the claim or "not found".
        """
        found = await self._fetch(ref)
        return found and found[0]

    async def _fetch(self, ref: ClaimIdentity) -> tuple[ClaimFields, EncodedClaim] | None:
        try:
            resource = await self.client.dra("resourceclaims")
            response = await self.client.raw("GET", resource.path(ref.namespace, ref.name), timeout=_GET)
        except ApiError as e:
            if isinstance(e, NotFoundError) and e.names(ref.name):
                return None
            # An error response does not mean that the claim is deleted.
            # The cause may be a rotated token, a missing permission, or an API version that is no longer served.
            raise ApiUnavailableError(f"claim {ref} cannot be read now: {e}") from None
        encoded = EncodedClaim(response.body, resource.version)
        try:
            if len(response.body) <= _LARGE:
                return ClaimFields.decode(response.body), encoded
            async with self._large:  # a few at a time, because each may take 20 ms
                return await in_own_thread(ClaimFields.decode, response.body), encoded
        except (ValueError, RecursionError) as e:
            raise ApiUnavailableError(
                f"claim {ref} cannot be read now: the API server's response is not a ResourceClaim: {describe(e)}"
            ) from None

    def has(self, claim: ClaimFields, record: Record) -> bool:
        """Whether a claim is the claim of ``record`` and still has the devices that were prepared for it."""
        now = {r.key for r in claim.results(self.name)}
        return claim.metadata.uid == record.uid and now >= {identity(d) for d in record.devices}

    def may_be_in_use(self, claim: ClaimFields, record: Record) -> bool:
        """Whether a pod of this node may use the prepared devices, although the claim now has other devices of this node.

        If the kubelet's cache contains the claim as prepared, it starts the next pod with the cached devices, without a call to the plugin.
        This happens if a pod is force-deleted while the kubelet is away, and the claim is allocated again for another pod.
        """
        here = self.inventory.pools if self.inventory.known else None
        is_used = claim.metadata.uid == record.uid and claim.status.reserved_for
        return bool(is_used) and any(here is None or r.pool in here for r in claim.results(self.name))

    async def verify(self, ref: ClaimIdentity) -> VerifiedClaim:
        """Reads the claim and resolves its devices.

        Raises :class:`ClaimError` if the claim does not exist, was replaced or is not allocated. A fault of its devices is returned as
        ``fault``.
        """
        found = await self._fetch(ref)
        if found is None:
            raise ClaimNotFoundError(f"claim {ref} (UID {ref.uid}) does not exist: delete the pod")
        fields, encoded = found
        uid = fields.metadata.uid
        if uid != ref.uid:
            raise ClaimReplacedError(f"claim {ref} has UID {uid}, not {ref.uid}: it was deleted and created again")
        if fields.status.allocation is None:
            raise ClaimNotAllocatedError(
                f"claim {ref} (UID {uid}) is not allocated: the scheduler has not chosen devices"
            )
        results = fields.results(self.name)
        supply = Supply(self.inventory)
        # A response since this time is recent enough for all devices of the claim, however long their lookups take.
        started = asyncio.get_running_loop().time()
        try:
            devices, entries = [], []
            for result in results:
                device, entry = await self._device(ref, result, supply, started)
                devices.append(device)
                entries.append(entry)
            resolved = await self._resolver.resolve(
                config_entries(fields.encoded_config), [(d.request, d.published) for d in devices]
            )
            for i, config in enumerate(resolved):
                if isinstance(config, ConfigError):
                    raise ConfigError(f"claim {ref}, device {devices[i].name}: {config}")
                if isinstance(config, DraError):
                    raise config
                devices[i] = replace(devices[i], config=config[0], config_source=config[1])
            return VerifiedClaim(encoded, fields.node, fields.status.reserved_for, devices, entries, supply)
        except ClaimError as e:
            devices = [r.allocated() for r in results]
            entries = [allocated_json(d) for d in devices]
            # Nothing will be prepared, so the result keeps neither the claim's object nor a traceback, whose frames reference the object.
            none, fault = EncodedClaim(b""), without_frames(e)
            return VerifiedClaim(none, fields.node, fields.status.reserved_for, devices, entries, supply, fault)

    async def _device(
        self, ref: ClaimIdentity, result: DeviceResult, supply: Supply, started: float
    ) -> tuple[AllocatedDevice, JSON]:
        """Returns an allocated device, and the entry that the claim's record stores before the device is prepared."""
        name, pool = result.device, result.pool
        device = self.inventory.get(name, pool)
        entry: JSON = {}
        if device is not None:
            if self.refuse_unhealthy and not result.admin_access and not self.inventory.healthy(name, pool):
                reason = self.inventory.unhealthy_reason(name, pool)
                raise DeviceUnhealthyError(f"claim {ref}: device {name} is unhealthy: {reason}")
            # Read at once, because the device may vanish while the next one is looked up.
            entry["published"] = self.inventory.description(name, pool)
        elif not self.inventory.known:
            raise DevicesUnknownError(
                f"claim {ref}: device {name} is not known yet, because devices() of the driver has not succeeded: "
                "the kubelet retries; see the plugin's readiness"
            )
        elif pool in self.inventory.pools:
            raise DeviceGoneError(f"claim {ref}: device {name} is no longer on this node")
        else:  # another process publishes its pool
            device, counter_sets = await self.slices.find(f"claim {ref}", pool, name, started)
            supply.add(pool, device, counter_sets)
        try:
            consumed = result.consumed()
        except ValueError as e:
            raise ClaimError(f"claim {ref}, device {name}: consumed capacity: {describe(e)}") from None
        if result.share_id and not device.allow_multiple_allocations:
            raise ClaimError(
                f"claim {ref}: the claim's allocation has share {result.share_id} of device {name} in pool {pool}, but the device "
                "does not allow multiple allocations: the scheduler never allocates a device like this; delete the pod and the claim, "
                "and see who may write resourceclaims/status"
            )
        allocated = result.allocated(device, consumed=consumed)
        takes = takes_json(supply.draws(pool, name) or {}, consumed if result.share_id else None)
        return allocated, allocated_json(allocated) | {"takes": takes} | entry
