"""Follows the claims of the whole cluster for the controller: claims with devices of one driver, and their binding conditions.

Opaque parameters stay encoded until the binder needs them, and only claims that wait for a binding are kept whole, as JSON.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ....base.json_types import JSON
from ....base.telemetry.log_once import LogOnce
from ....claims.claim_fields import ClaimFields, ClaimIdentity, DeviceKey, DeviceResult
from ....devices.pool_state import Held
from ....errors import DraError, NotReadyError, describe
from ....kube import KubeClient, Reflector
from ....resourceapi.encoded import config_entries

log = logging.getLogger(__name__)
_PAGE = 16  # claims in one page of a list: each has up to 1 MB, and a page is decoded in one step


class _Condition(msgspec.Struct):
    type: str
    status: str


class _DeviceConditions(msgspec.Struct):
    driver: str
    pool: str
    device: str
    conditions: list[_Condition] | None = None


@dataclass(frozen=True)
class BoundClaimIdentity:
    """Identifies one allocation of a claim: ``stamp`` differs if the same devices are allocated to the same claim again."""

    node: str
    stamp: str
    devices: frozenset[DeviceKey]


@dataclass(frozen=True)
class AllocatedClaim:
    """A claim with devices of the driver.

    Attributes:
        waiting: the devices with binding conditions.
        ready: whether the binding conditions of all devices are true.
        failed: whether a binding failure condition is true.
        encoded: the claim as JSON, as the API server sent it. Empty unless the claim waits for a binding.
        encoded_config: ``status.allocation.devices.config`` as JSON.
    """

    claim: ClaimIdentity
    node: str
    stamp: str
    results: Sequence[DeviceResult]
    reserved_for: Sequence[JSON] = ()
    encoded: bytes = field(default=b"", repr=False, compare=False)
    encoded_config: bytes = field(default=b"null", repr=False)
    ready: bool = True
    failed: bool = False

    @property
    def waiting(self) -> Sequence[DeviceResult]:
        return [r for r in self.results if r.binding_conditions]

    @property
    def config(self) -> list[JSON]:
        """Entries of the allocation's configuration, with encoded parameters."""
        return config_entries(msgspec.Raw(self.encoded_config))

    @property
    def identity(self) -> BoundClaimIdentity:
        return BoundClaimIdentity(self.node, self.stamp, frozenset(r.key for r in self.waiting))

    @property
    def exclusive(self) -> frozenset[DeviceKey]:
        return frozenset(r.key for r in self.waiting if not r.admin_access)


def allocated(encoded: msgspec.Raw, driver: str) -> AllocatedClaim | None:
    """Decodes the fields of a ResourceClaim that concern the driver. Returns None for a claim without devices of the driver.

    Raises ``msgspec.ValidationError`` for an object that is not a ResourceClaim.
    """
    found = ClaimFields.decode(encoded)
    results = found.results(driver)
    if not results:
        return None
    conditions = {
        (d.pool, d.device): {c.type for c in d.conditions or () if c.status == "True"}
        for d in found.device_statuses(_DeviceConditions)
        if d.driver == driver
    }
    waiting = [(r, conditions.get((r.pool, r.device), set())) for r in results if r.binding_conditions]
    ready = all(set(r.binding_conditions or ()) <= true for r, true in waiting)
    failed = any(true & set(r.binding_failure_conditions or ()) for r, true in waiting)
    is_whole = not ready and not failed
    meta = found.metadata
    if not (meta.namespace and meta.name):
        raise msgspec.ValidationError("a claim has no name or no namespace")
    return AllocatedClaim(
        claim=ClaimIdentity(meta.namespace, meta.name, meta.uid),
        node=found.node,
        stamp=found.allocated_at,
        results=results,
        reserved_for=found.status.reserved_for if is_whole else (),
        encoded=bytes(encoded) if is_whole else b"",  # a copy: the buffer belongs to the whole page
        encoded_config=bytes(found.encoded_config) if is_whole else b"null",
        ready=ready,
        failed=failed,
    )


class ClaimWatch:
    """Follows all claims. ``changed`` is called with a claim's UID when it may have changed, on the event loop."""

    def __init__(self, client: KubeClient, driver: str, changed: Callable[[str], None]) -> None:
        self.driver = driver
        self.synced = asyncio.Event()
        self._changed = changed
        self._reflector = Reflector(client, "resourceclaims", page=_PAGE)
        self._allocated: dict[str, AllocatedClaim] = {}
        self._logged = LogOnce()

    @property
    def fault(self) -> str:
        """Why claims are not followed now; empty while they are."""
        if not self.synced.is_set():
            return self._reflector.fault or "the claims have not been listed yet"
        return self._reflector.fault

    def get(self, uid: str) -> AllocatedClaim | None:
        return self._allocated.get(uid)

    def __iter__(self) -> Iterator[AllocatedClaim]:
        return iter(list(self._allocated.values()))

    async def held(self) -> Held:
        """Returns the devices that claims hold.

        Raises :class:`DraError` if they are not known.
        """
        if not self.synced.is_set():
            raise NotReadyError("the claims have not been listed yet")
        return {(r.pool, r.device): {} for a in self._allocated.values() for r in a.results}

    async def run(self) -> None:
        """Follows the claims. Never returns; external failures do not stop it."""
        async for event in self._reflector.events():
            if event.type == "SYNCED":
                self.synced.set()
                continue
            uid = event.uid
            allocated = None if event.type == "DELETED" else self._read(uid, event.encoded)
            if event.type == "DELETED":
                self._logged.forget(uid)
            before = self._allocated.pop(uid, None)
            if allocated is not None:
                self._allocated[uid] = allocated
            if allocated is not None or before is not None:
                self._changed(uid)
            await asyncio.sleep(0)  # a page has many claims: other tasks run between them

    def _read(self, uid: str, encoded: msgspec.Raw) -> AllocatedClaim | None:
        try:
            return allocated(encoded, self.driver)
        except (msgspec.DecodeError, RecursionError, DraError) as e:
            if self._logged.is_new(uid):
                log.warning(
                    "cannot decode a ResourceClaim of the API server: %s", describe(e), extra={"claim_uid": uid}
                )
            return self._allocated.get(uid)  # the last readable state stays in use
