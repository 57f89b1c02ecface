"""The claims of the whole cluster, as the controller sees them: those with devices of one driver, and what they wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ....claims.device_status import ClaimKey
from ....devices.inventory import Held
from ....driver.results import AllocationResult
from ....errors import DraError, NotReadyError, describe
from ....kube import KubeClient, Reflector
from ....resourceapi.allocation import node_of

log = logging.getLogger(__name__)
JSON = dict[str, Any]
DeviceKey = tuple[str, str, str]  # pool, name, share


class DeviceResult(AllocationResult, rename="camel"):
    """An allocated device, with what its binding waits for."""

    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None

    @property
    def key(self) -> DeviceKey:
        return self.pool, self.device, self.share_id or ""


class _Devices(msgspec.Struct):
    results: list[DeviceResult] | None = None
    config: list[JSON] | None = None


class _Allocation(msgspec.Struct, rename="camel"):
    devices: _Devices | None = None
    allocation_timestamp: str | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Told(msgspec.Struct):
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: list[_Condition] | None = None


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[JSON] | None = None
    devices: list[_Told] | None = None


class _Metadata(msgspec.Struct):
    name: str
    namespace: str
    uid: str


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


@dataclass(frozen=True)
class BoundClaimIdentity:
    """Which allocation: the same devices may be allocated to the same claim again."""

    node: str
    stamp: str
    devices: frozenset[DeviceKey]


@dataclass(frozen=True)
class AllocatedClaim:
    """A claim with devices of the driver.

    ``waiting`` are those with binding conditions; ``ready`` and ``failed`` say how these are.
    """

    claim: ClaimKey
    node: str
    stamp: str
    results: Sequence[DeviceResult]
    config: Sequence[JSON] = ()
    reserved_for: Sequence[JSON] = ()
    object: JSON = field(default_factory=dict, repr=False, compare=False)
    ready: bool = True
    failed: bool = False

    @property
    def waiting(self) -> Sequence[DeviceResult]:
        return [r for r in self.results if r.binding_conditions]

    @property
    def identity(self) -> BoundClaimIdentity:
        return BoundClaimIdentity(self.node, self.stamp, frozenset(r.key for r in self.waiting))

    @property
    def exclusive(self) -> frozenset[DeviceKey]:
        return frozenset(r.key for r in self.waiting if not r.admin_access)


def allocated(obj: Mapping[str, Any], driver: str) -> AllocatedClaim | None:
    """What a ResourceClaim has of a driver; None where that is nothing.

    Raises ``msgspec.ValidationError`` for what is no ResourceClaim.
    """
    found = msgspec.convert(obj, _Claim)
    status = found.status
    allocation = status.allocation if status else None
    results = [
        r
        for r in (allocation.devices.results if allocation and allocation.devices else None) or ()
        if r.driver == driver
    ]
    if status is None or allocation is None or not results:
        return None
    told = {
        (d.pool, d.device): {c.type for c in d.conditions or () if c.status == "True"}
        for d in status.devices or ()
        if d.driver == driver
    }
    waiting = [(r, told.get((r.pool, r.device), set())) for r in results if r.binding_conditions]
    meta = found.metadata
    return AllocatedClaim(
        claim=ClaimKey(meta.namespace, meta.name, meta.uid),
        node=node_of(obj),
        stamp=allocation.allocation_timestamp or "",
        results=results,
        config=(allocation.devices.config if allocation.devices else None) or (),
        reserved_for=status.reserved_for or (),
        object=dict(obj),
        ready=all(set(r.binding_conditions or ()) <= true for r, true in waiting),
        failed=any(true & set(r.binding_failure_conditions or ()) for r, true in waiting),
    )


class ClaimWatch:
    """Follows all claims. ``changed`` is called with a claim's UID when it may have changed, on the event loop."""

    def __init__(self, client: KubeClient, driver: str, changed: Callable[[str], None]) -> None:
        self.driver = driver
        self.synced = asyncio.Event()
        self._changed = changed
        self._reflector = Reflector(client, "resourceclaims")
        self._ours: dict[str, AllocatedClaim] = {}
        self._odd: set[str] = set()

    @property
    def fault(self) -> str:
        """Why claims are not followed now; empty while they are."""
        if not self.synced.is_set():
            return self._reflector.fault or "the claims have not been listed yet"
        return self._reflector.fault

    def get(self, uid: str) -> AllocatedClaim | None:
        return self._ours.get(uid)

    def __iter__(self) -> Iterator[AllocatedClaim]:
        return iter(list(self._ours.values()))

    async def held(self) -> Held:
        """The devices that claims have.

        Raises :class:`DraError` where that is not known.
        """
        if not self.synced.is_set():
            raise NotReadyError("the claims have not been listed yet")
        return {(r.pool, r.device): {} for a in self._ours.values() for r in a.results}

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        async for event in self._reflector.events():
            if event.type == "SYNCED":
                self.synced.set()
                continue
            uid = event.object["metadata"]["uid"]
            ours = None if event.type == "DELETED" else self._read(uid, event.object)
            if event.type == "DELETED":
                self._odd.discard(uid)
            before = self._ours.pop(uid, None)
            if ours is not None:
                self._ours[uid] = ours
            if ours is not None or before is not None:
                self._changed(uid)

    def _read(self, uid: str, obj: JSON) -> AllocatedClaim | None:
        try:
            return allocated(obj, self.driver)
        except (msgspec.ValidationError, DraError) as e:
            if uid not in self._odd:
                self._odd.add(uid)
                log.warning("what the API server has as claim %s is no ResourceClaim: %s", uid, describe(e))
            return self._ours.get(uid)  # what it was is nearer to the truth than nothing
