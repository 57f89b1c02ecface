"""Writes the scheduler's decisions for a pod's claims: allocations, reservations and the claim for extended resources. Can undo them.

Corresponds to the extension points Reserve, PreBind and PostFilter of Kubernetes' DynamicResources plugin.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from weakref import WeakValueDictionary

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.wakeup import is_set_within
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import ConflictError, NotFoundError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework import extended, pod_groups
from ...scheduling.framework.binding import TIMED_OUT, BindingState, Readiness, state_of
from ...scheduling.framework.claim_cache import ClaimCache, is_allocated, reserved_for
from ...scheduling.framework.devices import NodeAllocation, PodClaims
from ...scheduling.framework.pod_info import OF_CLAIMS, PodInfo
from ...scheduling.framework.status import Plugin, SchedulerError
from ..informer import FINALIZER, server_message

log = logging.getLogger(__name__)
STRATEGIC = "application/strategic-merge-patch+json"
_MAX_ATTEMPTS = 5  # attempts of a write that conflicts with other clients
_CHECK_INTERVAL = 5.0  # maximum seconds between two checks of binding conditions


class _Conflict(Exception):
    """The API server rejected an update of a claim because another client changed the claim."""


class ClaimBinder:
    """Writes claims.

    Args:
        timeout: seconds from a claim's allocation until its binding conditions must be true.
    """

    def __init__(self, client: KubeClient, store: ClaimCache, timeout: float) -> None:
        self.client = client
        self.store = store
        self.timeout = timeout
        self._changed = asyncio.Event()
        self._claim_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by UID of a claim

    def claim_changed(self) -> None:
        """Wakes the pods that wait for binding conditions."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- reserve --------------------------------------------------------------------------------

    def reserve(self, claims: PodClaims, offer: NodeAllocation | None) -> PodBinding:
        """Reserves the devices of ``offer``, so that no other pod gets them."""
        return PodBinding(self, claims, offer)

    # --- writes ---------------------------------------------------------------------------------

    async def write(self, claim: JSON, consumer: JSON, allocation: JSON | None) -> JSON:
        """Writes a reservation for ``consumer`` to the claim, and ``allocation`` if it is not None.

        Writes for pods that share a claim follow one another, and each write starts from the previous result. Otherwise,
        all except one would conflict.

        Returns:
            The written claim.

        Raises:
            SchedulerError: the claim cannot be written, or a change of the claim has made the decision invalid.
        """
        lock = self._claim_locks.setdefault(claim["metadata"]["uid"], asyncio.Lock())
        async with lock:
            return await self._write(self._newest(claim), consumer, allocation)

    def _newest(self, claim: JSON) -> JSON:
        meta = claim["metadata"]
        known = self.store.get(meta["namespace"], meta["name"])
        return known if known is not None and known["metadata"]["uid"] == meta["uid"] else claim

    async def _write(self, claim: JSON, consumer: JSON, allocation: JSON | None) -> JSON:
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        conflict = ""
        for attempt in range(_MAX_ATTEMPTS):
            try:
                if attempt:
                    with _explained(f"get updated claim {name} after conflict"):
                        claim = await self.client.get(CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
                if claim["metadata"].get("deletionTimestamp"):
                    raise SchedulerError(f"claim {name} got deleted in the meantime")
                if allocation is None and pod_groups.is_group(consumer) and _is_reserved(claim, consumer):
                    return claim  # another pod of the group has already reserved it
                if allocation is not None:
                    if is_allocated(claim):
                        raise SchedulerError(f"claim {name} got allocated elsewhere in the meantime")
                    claim = await self._with_finalizer(claim, name)
                elif not is_allocated(claim):
                    raise SchedulerError(f"claim {name} got deallocated elsewhere in the meantime")
                status = dict(claim.get("status") or {})
                allocated = dict(allocation if allocation is not None else status["allocation"])
                allocated.setdefault("allocationTimestamp", now())
                status |= {"allocation": allocated, "reservedFor": [*reserved_for(claim), consumer]}
                what = "add allocation and reservation" if allocation is not None else "add reservation"
                return await self._update({**claim, "status": status}, f"{what} to claim {name}", "status")
            except _Conflict as e:
                conflict = str(e)
        raise SchedulerError(conflict)

    async def _with_finalizer(self, claim: JSON, name: str) -> JSON:
        """Adds the finalizer that keeps an allocated claim until it is deallocated."""
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            return claim
        meta = {**claim["metadata"], "finalizers": [*finalizers, FINALIZER]}
        return await self._update({**claim, "metadata": meta}, f"add finalizer to claim {name}", "")

    async def _update(self, claim: JSON, what: str, sub: str) -> JSON:
        try:
            updated = await self.client.update(CLAIMS, claim, sub)
        except ApiError as e:
            text = f"{what}: {server_message(e)}"
            raise (_Conflict(text) if isinstance(e, ConflictError) else SchedulerError(text)) from None
        self.store.wrote(updated)
        return updated

    async def create(self, draft: JSON, pod: PodInfo) -> JSON:
        """Creates the claim for a pod's extended resources."""
        meta = {k: v for k, v in draft["metadata"].items() if k not in {"name", "uid"}}
        body = {k: v for k, v in draft.items() if k != "status"} | {"metadata": meta}
        with _explained(f"create claim for extended resources {pod.namespace}/{draft['metadata']['name']}"):
            made = await self.client.create(CLAIMS, body, pod.namespace)
        self.store.created(made)
        return made

    async def map_requests(self, pod: PodInfo, claim: JSON, mappings: list[JSON]) -> None:
        status = {"requestMappings": mappings, "resourceClaimName": claim["metadata"]["name"]}
        with _explained(f"update pod {pod.key} ExtendedResourceClaimStatus"):
            await self._patch_status(pod, {"extendedResourceClaimStatus": status})

    async def write_node_resources(self, pod: PodInfo, entries: list[JSON]) -> None:
        """Writes what the pod's claims use of its node, before the kubelet admits the pod."""
        with _explained(f"update pod {pod.key} {OF_CLAIMS}"):
            await self._patch_status(pod, {OF_CLAIMS: entries})

    async def _patch_status(self, pod: PodInfo, status: JSON) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        await self.client.patch(PODS, pod.name, patch, pod.namespace, "status")

    async def unreserve(self, claim: JSON, consumer: JSON) -> None:
        meta = claim["metadata"]
        entry = {"$patch": "delete", "uid": consumer["uid"]}
        patch = {"metadata": {"uid": meta["uid"]}, "status": {"reservedFor": [entry]}}
        try:
            path = CLAIMS.path(meta["namespace"], meta["name"], "status")
            self.store.wrote(await self.client.call("PATCH", path, patch, content_type=STRATEGIC))
        except ApiError as e:
            # the claim controller removes the reservation later
            fields = {"claim": f"{meta['namespace']}/{meta['name']}", "pod": f"{meta['namespace']}/{consumer['name']}"}
            log.debug("scheduler: cannot remove a reservation: %s", e, extra=fields)

    async def delete(self, claim: JSON) -> None:
        """Deletes a claim that was created for extended resources.

        Raises:
            ApiError: the claim cannot be deleted.
        """
        meta = claim["metadata"]
        for _ in range(_MAX_ATTEMPTS):
            try:
                current = await self.client.get(CLAIMS, meta["name"], meta["namespace"])
                if current["metadata"]["uid"] != meta["uid"]:
                    return
                kept = [f for f in current["metadata"].get("finalizers") or [] if f != FINALIZER]
                await self.client.update(CLAIMS, {**current, "metadata": {**current["metadata"], "finalizers": kept}})
                await self.client.delete(CLAIMS, meta["name"], meta["namespace"], uid=meta["uid"])
                return
            except NotFoundError:
                return
            except ConflictError:
                continue

    # --- binding conditions ---------------------------------------------------------------------

    async def wait_ready(self, claims: list[JSON]) -> None:
        """Waits until the devices of all claims are ready. As in Kubernetes, only the first claim that is not ready is checked further.

        Raises:
            SchedulerError: a binding condition failed or timed out, or a claim was deleted.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            changed = self._changed
            for i, claim in enumerate(claims):
                claims[i] = self._current(claim)
            state = self._first_unready(claims)
            if state is None:
                return
            remaining = deadline - time.monotonic()
            if state.must_deallocate or remaining <= 0:
                raise SchedulerError(state.reason or TIMED_OUT)
            if state.remaining:
                remaining = min(remaining, state.remaining)
            await is_set_within(changed, max(0.01, min(_CHECK_INTERVAL, remaining)))

    def _current(self, claim: JSON) -> JSON:
        meta = claim["metadata"]
        current = self.store.get(meta["namespace"], meta["name"])
        if current is None:
            raise SchedulerError(f'resourceclaim.resource.k8s.io "{meta["name"]}" not found')
        return current

    def _first_unready(self, claims: list[JSON]) -> BindingState | None:
        for claim in claims:
            state = state_of(claim, self.timeout) if is_allocated(claim) else BindingState(Readiness.WAITING)
            if state.readiness is not Readiness.READY:
                return state
        return None

    # --- PostFilter -----------------------------------------------------------------------------

    async def free_claims(self, pod: PodInfo, claims: PodClaims | None) -> str:
        """Deallocates the first claim of a pod whose devices suit no node and that no other pod uses.

        If there is no such claim, deletes the pod's claim for extended resources. Returns the result as text.
        """
        if claims is None or not claims.claims:
            return "no new claims to deallocate"
        for index in claims.unusable:
            claim = claims.claims[index]
            if claims.is_extended(index):
                continue
            if all(r["uid"] == pod.uid for r in reserved_for(claim)):
                rest = {k: v for k, v in claim["status"].items() if k not in {"allocation", "reservedFor", "devices"}}
                try:
                    self.store.wrote(await self.client.update(CLAIMS, {**claim, "status": rest}, "status"))
                except ApiError as e:
                    return server_message(e)
                return "deallocation of ResourceClaim completed"
        if claims.extended is not None and not extended.is_draft(claims.extended):
            try:
                await self.delete(claims.extended)
            except ApiError as e:
                return server_message(e)
            return "deletion of ResourceClaim completed"
        return "still not schedulable"


class PodBinding:
    """The writes for the claims of one pod during its binding. Create it with :meth:`ClaimBinder.reserve`."""

    def __init__(self, binder: ClaimBinder, claims: PodClaims, offer: NodeAllocation | None) -> None:
        self._binder = binder
        self._claims = list(claims.claims)
        self._consumers = claims.consumers
        self._extended = next((i for i in range(len(self._claims)) if claims.is_extended(i)), -1)
        self._offer = offer
        self._allocations: dict[int, JSON] = {}
        self._reserved: list[str] = []
        self._using_node: PodInfo | None = None  # the pod, if its status may name what its claims use of the node
        for index, allocation in zip(offer.indices, offer.results, strict=True) if offer else ():
            claim = self._claims[index]
            if index == self._extended and offer and offer.extended is not None:
                claim = self._claims[index] = offer.extended
            self._allocations[index] = allocation
            uid = str(claim["metadata"]["uid"])
            binder.store.reserve(uid, {**claim, "status": {**(claim.get("status") or {}), "allocation": allocation}})
            self._reserved.append(uid)

    async def write(self, pod: PodInfo) -> None:
        """Writes allocations and reservations.

        Raises:
            SchedulerError: a claim cannot be written.
        """
        with _named():
            for index, claim in enumerate(self._claims):
                if _is_reserved(claim, self._consumers[index]):
                    continue
                allocation = self._allocations.get(index)
                if index == self._extended and allocation is None:
                    continue  # device plugins of the node provide the resources
                await self._write_one(index, pod, allocation)
            if self._offer and self._offer.node_resources:
                self._using_node = pod
                await self._binder.write_node_resources(pod, [self._renamed(e) for e in self._offer.node_resources])

    def _renamed(self, entry: JSON) -> JSON:
        """Returns an entry with the name of the claim that was created for extended resources."""
        if entry["resourceClaimName"] != extended.DRAFT:
            return entry
        return {**entry, "resourceClaimName": self._claims[self._extended]["metadata"]["name"]}

    async def _write_one(self, index: int, pod: PodInfo, allocation: JSON | None) -> None:
        claim = self._claims[index]
        pending = str(claim["metadata"]["uid"])
        try:
            if index == self._extended and extended.is_draft(claim):
                claim = self._claims[index] = await self._binder.create(claim, pod)
            claim = self._claims[index] = await self._binder.write(claim, self._consumers[index], allocation)
        finally:
            if allocation is not None:
                self._binder.store.release(pending)
        if index == self._extended and self._offer:
            await self._binder.map_requests(pod, claim, self._offer.mappings)

    @property
    def waits(self) -> bool:
        """Whether devices have binding conditions."""
        return any(r.get("bindingConditions") for c in self._written for r in results_of(c))

    @property
    def _written(self) -> list[JSON]:
        return [c for c in self._claims if not extended.is_draft(c)]

    async def wait_ready(self) -> None:
        """Waits until the devices of all claims are ready; see :meth:`ClaimBinder.wait_ready`."""
        with _named():
            await self._binder.wait_ready(self._written)

    def forget(self) -> None:
        """Releases the devices that are reserved only in the scheduler's claim cache."""
        for uid in self._reserved:
            self._binder.store.release(uid)

    async def undo(self, *, group: bool) -> None:
        """Undoes reservations and writes. Raises only ``asyncio.CancelledError``.

        Args:
            group: also undo the reservation for the pod's PodGroup.
        """
        self.forget()
        if self._using_node:
            with contextlib.suppress(SchedulerError):  # the next attempt writes the status again
                await self._binder.write_node_resources(self._using_node, [])
        for index, (claim, consumer) in enumerate(zip(self._claims, self._consumers, strict=True)):
            if index == self._extended:
                if not extended.is_draft(claim):
                    with contextlib.suppress(ApiError):
                        await self._binder.delete(claim)
            elif is_allocated(claim) and _is_reserved(claim, consumer) and (group or not pod_groups.is_group(consumer)):
                await self._binder.unreserve(claim, consumer)


def _is_reserved(claim: JSON, consumer: JSON) -> bool:
    return any(r["uid"] == consumer["uid"] for r in reserved_for(claim))


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except ApiError as e:
        raise SchedulerError(f"{what}: {server_message(e)}") from None


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Adds the name of the plugin to each ``SchedulerError``."""
    try:
        yield
    except SchedulerError as e:
        raise SchedulerError(f'running PreBind plugin "{Plugin.DEVICES.value}": {e}') from None
