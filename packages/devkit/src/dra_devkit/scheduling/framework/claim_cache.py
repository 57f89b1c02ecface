"""The scheduler's cache of claims.

It has the claims of the watch, newer versions that the scheduler wrote, and allocations that are not written yet. From the claims it
computes which devices are in use. The use of each pool is an immutable object. A cycle in another thread can
therefore read it, and a cached result for a node stays valid while the object is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

from ...generations import PoolKey
from ..allocator.pools import DeviceId
from ..allocator.search import plus

log = logging.getLogger(__name__)
# The annotation of a claim that the scheduler creates for extended resources.
EXTENDED = "resource.kubernetes.io/extended-resource-claim"


@dataclass(frozen=True, eq=False)
class AllocatedState:
    """The allocated devices of one pool: the devices that are held as a whole, and the consumed capacity of shared devices."""

    devices: frozenset[DeviceId] = frozenset()
    shares: Mapping[DeviceId, Mapping[str, Quantity]] = field(default_factory=dict)


UNUSED = AllocatedState()


class ClaimCache:
    """The cache of all claims. ``use`` is replaced, never modified, when a claim's devices change."""

    def __init__(self) -> None:
        self.use: Mapping[PoolKey, AllocatedState] = {}
        self._seen: dict[str, JSON] = {}
        self._written: dict[str, JSON] = {}
        self._pending: dict[str, JSON] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._extended: dict[str, str] = {}  # pod UID → claim UID
        self._holders: dict[PoolKey, dict[str, list[JSON]]] = {}
        self._held: dict[str, set[PoolKey]] = {}

    def get(self, namespace: str, name: str) -> JSON | None:
        uid = self._names.get((namespace, name))
        return self._current(uid) if uid else None

    def extended_of(self, pod_uid: str) -> JSON | None:
        """Returns the claim that was created for a pod's extended resources."""
        uid = self._extended.get(pod_uid)
        return self._current(uid) if uid else None

    def is_pending(self, uid: str) -> bool:
        """Returns whether a claim has an allocation that is not written yet."""
        return uid in self._pending

    # --- updates --------------------------------------------------------------------------------

    def observe(self, claim: JSON) -> None:
        """Records a claim from the watch."""
        self._recompute_use(self._record(claim))

    def observe_all(self, claims: Iterable[JSON]) -> None:
        """Records claims as :meth:`observe` does, but recomputes the use of each pool only once."""
        self._recompute_use({key for claim in claims for key in self._record(claim)})

    def _record(self, claim: JSON) -> set[PoolKey]:
        """Records a claim. Returns the pools whose use changed."""
        meta = claim["metadata"]
        uid = str(meta["uid"])
        self._seen[uid] = claim
        self._names[meta["namespace"], meta["name"]] = uid
        if (meta.get("annotations") or {}).get(EXTENDED) == "true":
            for owner in meta.get("ownerReferences") or []:
                if owner.get("controller"):
                    self._extended[str(owner["uid"])] = uid
        written = self._written.get(uid)
        if written is not None and _version(written) <= _version(claim):
            del self._written[uid]
        return self._update_held(uid)

    def forget(self, claim: JSON) -> None:
        meta = claim["metadata"]
        uid = str(meta["uid"])
        for known in (self._seen, self._written):
            known.pop(uid, None)
        key = (str(meta.get("namespace") or ""), str(meta.get("name") or ""))
        if self._names.get(key) == uid:
            del self._names[key]
        self._extended = {pod: claim for pod, claim in self._extended.items() if claim != uid}
        self._update_use(uid)

    def wrote(self, claim: JSON) -> None:
        """Records a claim that the scheduler wrote, until the watch shows it."""
        uid = str(claim["metadata"]["uid"])
        known = self._current(uid)
        if known is not None and _version(known) < _version(claim):
            self._written[uid] = claim
            self._update_use(uid)

    def created(self, claim: JSON) -> None:
        """Records a claim that the scheduler created, until the watch shows it."""
        meta = claim["metadata"]
        uid = str(meta["uid"])
        if uid not in self._seen:
            self._written[uid] = claim
            self._names[meta["namespace"], meta["name"]] = uid
            self._update_use(uid)

    def reserve(self, uid: str, claim: JSON) -> None:
        """Records an allocation that will be written."""
        self._pending[uid] = claim
        self._update_use(uid)

    def release(self, uid: str) -> None:
        if self._pending.pop(uid, None) is not None:
            self._update_use(uid)

    # --- devices --------------------------------------------------------------------------------

    def _current(self, uid: str) -> JSON | None:
        return self._written.get(uid) or self._seen.get(uid)

    def _update_use(self, uid: str) -> None:
        self._recompute_use(self._update_held(uid))

    def _update_held(self, uid: str) -> set[PoolKey]:
        claim = self._pending.get(uid) or self._current(uid)
        held: dict[PoolKey, list[JSON]] = {}
        for result in results_of(claim) if claim else []:
            held.setdefault((str(result["driver"]), str(result["pool"])), []).append(result)
        before = self._held.pop(uid, set())
        changed = set()
        for key in before | held.keys():
            holders = self._holders.setdefault(key, {})
            if held.get(key) == holders.get(uid):
                continue
            changed.add(key)
            if key in held:
                holders[uid] = held[key]
            else:
                holders.pop(uid, None)
        if held:
            self._held[uid] = set(held)
        return changed

    def _recompute_use(self, changed: set[PoolKey]) -> None:
        if changed:
            use = dict(self.use)
            for key in changed:
                use[key] = taken_by(r for results in self._holders[key].values() for r in results)
            self.use = use


def is_allocated(claim: Mapping[str, Any]) -> bool:
    return (claim.get("status") or {}).get("allocation") is not None


def reserved_for(claim: Mapping[str, Any]) -> list[JSON]:
    return list((claim.get("status") or {}).get("reservedFor") or [])


def taken_by(results: Iterable[JSON]) -> AllocatedState:
    devices: set[DeviceId] = set()
    shares: dict[DeviceId, dict[str, Quantity]] = {}
    for result in results:
        if result.get("adminAccess"):
            continue  # admin access does not hold the device
        device = DeviceId(result["driver"], result["pool"], result["device"])
        if result.get("shareID"):
            used = shares.setdefault(device, {})
            for name, amount in (result.get("consumedCapacity") or {}).items():
                used[name] = plus(used.get(name), parse(amount))
        else:
            devices.add(device)
    return AllocatedState(frozenset(devices), shares)


def _version(claim: JSON) -> int:
    return int(claim["metadata"].get("resourceVersion") or 0)
