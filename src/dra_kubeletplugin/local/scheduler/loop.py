"""Pods to nodes: allocates what a pod's claims lack, reserves them, binds the pod."""

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
from .allocator import AllocationError, Allocator

log = logging.getLogger(__name__)
JSON = dict[str, Any]


class Unschedulable(Exception):
    """The pod has to wait; the text says for what."""


class Scheduler:
    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.informers = Informers(client, {PODS: "", CLAIMS: "", CLASSES: "", NODES: "", SLICES: ""})
        self._written: dict[str, JSON] = {}  # claims by UID as we wrote them, until the informer has caught up
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            await self.informers.run(tasks)
            await self.informers.loop(self.reconcile)

    async def reconcile(self) -> None:
        waiting = [p for p in self.informers.all(PODS) if _is_waiting(p)]
        for pod in sorted(
            waiting, key=lambda p: (p["metadata"]["creationTimestamp"], int(p["metadata"]["resourceVersion"]))
        ):
            try:
                await self._schedule(pod)
                self._told.pop(pod["metadata"]["uid"], None)
            except Unschedulable as e:
                await self._tell(pod, str(e))

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
        for node in sorted(candidates, key=lambda n: n["metadata"]["name"]):
            if not all(_allocation_fits(c, node) for c in have):
                continue
            try:
                results = allocator.allocate(node, missing)
            except AllocationError as e:
                raise Unschedulable(str(e)) from None
            if results is not None:
                await self._bind(pod, node, have, missing, results)
                return
        total = len(candidates)
        raise Unschedulable(f"0/{total} nodes are available: {total} cannot allocate all claims.")

    async def _bind(
        self, pod: JSON, node: JSON, have: list[JSON], missing: list[JSON], results: list[dict[str, Any]]
    ) -> None:
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for claim, result in zip(missing, results, strict=True):
            claim = await self._protect(claim)
            status = {**(claim.get("status") or {}), "allocation": {**result, "allocationTimestamp": now()}}
            await self._write({**claim, "status": {**status, "reservedFor": [consumer]}})
        for claim in have:
            reserved = claim["status"].get("reservedFor") or []
            if not any(r["uid"] == consumer["uid"] for r in reserved):
                await self._write({**claim, "status": {**claim["status"], "reservedFor": [*reserved, consumer]}})
        meta = pod["metadata"]
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}}
        binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]}
        await self.client.call("POST", PODS.path(meta["namespace"], meta["name"], "binding"), binding)
        text = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node['metadata']['name']}"
        await record_event(self.client, pod, "Pod", "Normal", "Scheduled", text, "default-scheduler")

    async def _protect(self, claim: JSON) -> JSON:
        """An allocated claim stays until it is deallocated."""
        if FINALIZER in (claim["metadata"].get("finalizers") or []):
            return claim
        copied = copy.deepcopy(claim)
        copied["metadata"].setdefault("finalizers", []).append(FINALIZER)
        updated = await self.client.update(CLAIMS, copied)
        self._written[updated["metadata"]["uid"]] = updated
        return updated

    async def _write(self, claim: JSON) -> None:
        updated = await self.client.update(CLAIMS, claim, "status")
        self._written[updated["metadata"]["uid"]] = updated

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
