"""Pods to nodes: allocates what a pod's claims lack, reserves them, waits for binding conditions, binds the pod."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

from ...kube import KubeClient
from ...resources import node_selection as nodes
from ...resources.defaults import now
from ..informer import (
    CLAIMS,
    CLASSES,
    FINALIZER,
    NODES,
    PODS,
    SLICES,
    Informers,
    is_finished,
    pod_claim_names,
    record_event,
)
from .allocator import AllocationError, AllocationTimeout, Allocator
from .binding import TIMEOUT, Readiness, state_of

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_BACKOFF = 1.0  # seconds before a pod whose binding failed is tried again; it doubles with each failure,
_MAX_BACKOFF = 10.0  # up to this, as in Kubernetes
_CHECK = 5.0  # the most seconds between looks at a pod that waits


class Unschedulable(Exception):
    """The pod has to wait; the text says for what."""


class Scheduler:
    """Args: binding_timeout: seconds from a claim's allocation in which its binding conditions must become true."""

    def __init__(self, client: KubeClient, binding_timeout: float = TIMEOUT) -> None:
        self.client = client
        self.binding_timeout = binding_timeout
        self.informers = Informers(client, {PODS: "", CLAIMS: "", CLASSES: "", NODES: "", SLICES: ""})
        self._written: dict[str, JSON] = {}  # claims by UID as we wrote them, until the informer has caught up
        self._told: dict[str, str] = {}
        self._failures: dict[str, int] = {}  # pods by UID whose binding failed, and how often
        self._not_before: dict[str, float] = {}  # when such a pod is tried again, on the loop's clock

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            await self.informers.run(tasks)
            await self.informers.loop(self.reconcile)

    async def reconcile(self) -> None:
        waiting = [p for p in self.informers.all(PODS) if _is_waiting(p)]
        self._forget({p["metadata"]["uid"] for p in waiting})
        for pod in sorted(
            waiting, key=lambda p: (p["metadata"]["creationTimestamp"], int(p["metadata"]["resourceVersion"]))
        ):
            if self._not_before.get(pod["metadata"]["uid"], 0.0) > asyncio.get_running_loop().time():
                continue
            try:
                await self._schedule(pod)
            except Unschedulable as e:
                await self._tell(pod, str(e))

    def _forget(self, waiting: set[str]) -> None:
        for known in (self._told, self._failures, self._not_before):
            for uid in known.keys() - waiting:
                del known[uid]

    def _claims(self) -> dict[str, JSON]:
        """All claims, with our own writes that the informer has not seen yet."""
        seen = {c["metadata"]["uid"]: c for c in self.informers.all(CLAIMS)}
        for uid, ours in list(self._written.items()):
            theirs = seen.get(uid)
            if theirs is None or int(theirs["metadata"]["resourceVersion"]) >= int(ours["metadata"]["resourceVersion"]):
                del self._written[uid]
            else:
                seen[uid] = ours
        return seen

    def _pod_claims(self, pod: JSON, known: dict[str, JSON]) -> list[JSON]:
        namespace = pod["metadata"]["namespace"]
        by_name = {c["metadata"]["name"]: c for c in known.values() if c["metadata"]["namespace"] == namespace}
        out = []
        for entry, name in pod_claim_names(pod).items():
            if name is None:
                raise Unschedulable(f"waiting for the resource claim of {entry} to be created")
            if not name:
                continue
            claim = by_name.get(name)
            if claim is None:
                raise Unschedulable(f'resourceclaim "{name}" not found')
            if claim["metadata"].get("deletionTimestamp"):
                raise Unschedulable(f'resourceclaim "{name}" is being deleted')
            owner = next((o for o in claim["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
            if owner and owner["kind"] == "Pod" and owner["uid"] != pod["metadata"]["uid"]:
                raise Unschedulable(f'resourceclaim "{name}" was not created for pod {pod["metadata"]["name"]}')
            out.append(claim)
        return out

    async def _schedule(self, pod: JSON) -> None:
        known = self._claims()
        claims = self._pod_claims(pod, known)
        await self._give_up(pod, claims)
        candidates = [n for n in self.informers.all(NODES) if _is_ready(n) and _fits(n, pod)]
        if not candidates:
            raise Unschedulable("0 nodes are available that are ready and match the pod's node selector")
        missing = [c for c in claims if (c.get("status") or {}).get("allocation") is None]
        have = [c for c in claims if (c.get("status") or {}).get("allocation") is not None]
        allocator = Allocator(
            self.informers.all(SLICES),
            self.informers.all(CLASSES),
            [c for c in known.values() if (c.get("status") or {}).get("allocation") is not None],
        )
        timed_out = 0
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        for node in sorted(candidates, key=lambda n: (n["metadata"]["name"] != nominated, n["metadata"]["name"])):
            if not all(_allocation_fits(c, node) for c in have):
                continue
            try:
                results = await _allocate(allocator, node, missing) if missing else []
            except AllocationTimeout:
                timed_out += 1
                continue
            except AllocationError as e:
                raise Unschedulable(str(e)) from None
            if results is not None:
                await self._bind(pod, node, have, missing, results)
                return
        total = len(candidates)
        reasons = [
            (total - timed_out, "cannot allocate all claims"),
            (timed_out, "timed out trying to allocate devices"),
        ]
        told = ", ".join(f"{n} {why}" for n, why in reasons if n)
        raise Unschedulable(f"0/{total} nodes are available: {told}.")

    async def _bind(
        self, pod: JSON, node: JSON, have: list[JSON], missing: list[JSON], results: list[dict[str, Any]]
    ) -> None:
        meta = pod["metadata"]
        consumer = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        reserved_claims = []
        for claim, result in zip(missing, results, strict=True):
            claim = await self._protect(claim)
            status = {**(claim.get("status") or {}), "allocation": {**result, "allocationTimestamp": now()}}
            reserved_claims.append(await self._write({**claim, "status": {**status, "reservedFor": [consumer]}}))
        for claim in have:
            reserved = claim["status"].get("reservedFor") or []
            if not any(r["uid"] == consumer["uid"] for r in reserved):
                status = {**claim["status"], "reservedFor": [*reserved, consumer]}
                claim = await self._write({**claim, "status": status})
            reserved_claims.append(claim)
        if await self._waits(pod, node, reserved_claims):
            return
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}}
        binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]}
        await self.client.call("POST", PODS.path(meta["namespace"], meta["name"], "binding"), binding)
        text = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node['metadata']['name']}"
        await record_event(self.client, pod, "Pod", "Normal", "Scheduled", text, "default-scheduler")

    # --- binding conditions (KEP-5007) ----------------------------------------------------------

    async def _waits(self, pod: JSON, node: JSON, claims: list[JSON]) -> bool:
        """Whether devices have yet to become ready. Until then the pod has a nominated node, and no condition or node."""
        states = [state_of(c, self.binding_timeout) for c in claims]
        if all(s.readiness is Readiness.READY for s in states):
            self._failures.pop(pod["metadata"]["uid"], None)
            self._told.pop(pod["metadata"]["uid"], None)
            return False
        self._look_in(min([_CHECK, *(s.left for s in states if s.readiness is Readiness.WAITING)]))
        meta, name = pod["metadata"], node["metadata"]["name"]
        if (pod.get("status") or {}).get("nominatedNodeName") != name:
            nominated = {"status": {"nominatedNodeName": name}}
            await self.client.patch(PODS, meta["name"], nominated, meta["namespace"], "status")
        text = f"waiting for binding conditions for device on node {name}"
        stamps = ",".join(str(c["status"]["allocation"].get("allocationTimestamp")) for c in claims)
        if self._told.get(meta["uid"]) != f"{text} {stamps}":
            self._told[meta["uid"]] = f"{text} {stamps}"
            await record_event(self.client, pod, "Pod", "Normal", "BindingConditionsPending", text, "default-scheduler")
        return True

    async def _give_up(self, pod: JSON, claims: list[JSON]) -> None:
        """Takes back the allocation of a claim that failed to bind, or did not in time, where no other pod has it.

        Raises :class:`Unschedulable`: the pod is tried again after a pause.
        """
        uid = pod["metadata"]["uid"]
        for claim in claims:
            status = claim.get("status") or {}
            if status.get("allocation") is None:
                continue
            state = state_of(claim, self.binding_timeout)
            if not state.over:
                continue
            if all(r["uid"] == uid for r in status.get("reservedFor") or []):
                rest = {k: v for k, v in status.items() if k not in {"allocation", "reservedFor", "devices"}}
                await self._write({**claim, "status": rest})
            failures = self._failures[uid] = self._failures.get(uid, 0) + 1
            pause = min(_MAX_BACKOFF, _BACKOFF * 2 ** min(failures - 1, 10))
            self._not_before[uid] = asyncio.get_running_loop().time() + pause
            self._look_in(pause)
            raise Unschedulable(state.reason)

    def _look_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.informers.changed.set)

    async def _protect(self, claim: JSON) -> JSON:
        """An allocated claim stays until it is deallocated."""
        if FINALIZER in (claim["metadata"].get("finalizers") or []):
            return claim
        copied = copy.deepcopy(claim)
        copied["metadata"].setdefault("finalizers", []).append(FINALIZER)
        updated = await self.client.update(CLAIMS, copied)
        self._written[updated["metadata"]["uid"]] = updated
        return updated

    async def _write(self, claim: JSON) -> JSON:
        updated = await self.client.update(CLAIMS, claim, "status")
        self._written[updated["metadata"]["uid"]] = updated
        return updated

    async def _tell(self, pod: JSON, why: str) -> None:
        meta = pod["metadata"]
        if self._told.get(meta["uid"]) == why:
            return
        self._told[meta["uid"]] = why
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        condition["lastTransitionTime"] = now()
        await self.client.patch(
            PODS, meta["name"], {"status": {"conditions": [condition]}}, meta["namespace"], "status"
        )
        await record_event(self.client, pod, "Pod", "Warning", "FailedScheduling", why, "default-scheduler")


async def _allocate(allocator: Allocator, node: JSON, claims: list[JSON]) -> list[dict[str, Any]] | None:
    """In a thread: a search for what cannot be had takes up to its time limit, unless nobody waits for it any more."""
    try:
        return await asyncio.to_thread(allocator.allocate, node, claims)
    except asyncio.CancelledError:
        allocator.cancel()
        raise


def _is_waiting(pod: JSON) -> bool:
    return not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp") and not is_finished(pod)


def _is_ready(node: JSON) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable")


def _fits(node: JSON, pod: JSON) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(k) != v for k, v in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return affinity is None or nodes.selector_matches(node, affinity)


def _allocation_fits(claim: JSON, node: JSON) -> bool:
    selector = claim["status"]["allocation"].get("nodeSelector")
    return selector is None or nodes.selector_matches(node, selector)
