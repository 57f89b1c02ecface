"""The claim controller: claims from templates, reservations that end, deallocation, deletion.

Source: KEP-4381, "Implementation of structured parameters"; kube-controller-manager's resourceclaim controller.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

from ..errors import ApiError
from ..kube import KubeClient
from .informer import (
    CLAIMS,
    FINALIZER,
    POD_CLAIM_NAME,
    PODS,
    TEMPLATES,
    Informers,
    is_finished,
    owned_by,
    record_event,
)

log = logging.getLogger(__name__)
JSON = dict[str, Any]


class ClaimController:
    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.informers = Informers(client, {PODS: "", CLAIMS: "", TEMPLATES: ""})
        self._complained: set[tuple[str, str]] = set()
        self._made: dict[
            tuple[str, str], str
        ] = {}  # (pod UID, name in the pod) → claim, which our copies may not show yet

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            await self.informers.run(tasks)
            await self.informers.loop(self.reconcile)

    async def reconcile(self) -> None:
        pods = self.informers.all(PODS)
        for pod in pods:
            if not is_finished(pod) and not pod["metadata"].get("deletionTimestamp"):
                await self._make_claims(pod)
        alive = {p["metadata"]["uid"]: p for p in pods}
        self._made = {key: name for key, name in self._made.items() if key[0] in alive}
        for claim in self.informers.all(CLAIMS):
            await self._release(claim, alive)

    async def _make_claims(self, pod: JSON) -> None:
        wanted = [c for c in pod["spec"].get("resourceClaims") or [] if c.get("resourceClaimTemplateName")]
        status = pod.get("status") or {}
        known = {s["name"] for s in status.get("resourceClaimStatuses") or []}
        made = []
        for entry in wanted:
            if entry["name"] not in known:
                name = await self._claim_for(pod, entry)
                if name is None:
                    return
                made.append({"name": entry["name"], "resourceClaimName": name})
        if made:
            statuses = [*(status.get("resourceClaimStatuses") or []), *made]
            meta = pod["metadata"]
            await self.client.patch(
                PODS, meta["name"], {"status": {"resourceClaimStatuses": statuses}}, meta["namespace"], "status"
            )

    async def _claim_for(self, pod: JSON, entry: JSON) -> str | None:
        meta = pod["metadata"]
        if name := self._made.get((meta["uid"], entry["name"])):
            return name
        for claim in self.informers.all(CLAIMS):
            # Made before, and the pod's status was not written.
            annotations = claim["metadata"].get("annotations") or {}
            if owned_by(claim, meta["uid"]) and annotations.get(POD_CLAIM_NAME) == entry["name"]:
                return str(claim["metadata"]["name"])
        template = self.informers.find(TEMPLATES, entry["resourceClaimTemplateName"], meta["namespace"])
        if template is None:
            key = (meta["uid"], entry["name"])
            if key not in self._complained:
                self._complained.add(key)
                missing = f'resourceclaimtemplates.resource.k8s.io "{entry["resourceClaimTemplateName"]}" not found'
                text = f"PodResourceClaim {entry['name']}: resource claim template: {missing}"
                await record_event(
                    self.client, pod, "Pod", "Warning", "FailedResourceClaimCreation", text, "resource_claim"
                )
            return None
        inner = template["spec"]
        claim_meta = copy.deepcopy(inner.get("metadata") or {})
        claim_meta["generateName"] = f"{meta['name']}-{entry['name']}-"
        claim_meta.setdefault("annotations", {})[POD_CLAIM_NAME] = entry["name"]
        claim_meta["namespace"] = meta["namespace"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        claim_meta["ownerReferences"] = [owner | {"controller": True, "blockOwnerDeletion": True}]
        body = {
            "apiVersion": CLAIMS.api_version,
            "kind": "ResourceClaim",
            "metadata": claim_meta,
            "spec": inner["spec"],
        }
        claim = await self.client.create(CLAIMS, body, meta["namespace"])
        self._made[meta["uid"], entry["name"]] = claim["metadata"]["name"]
        return str(claim["metadata"]["name"])

    async def _release(self, claim: JSON, pods: dict[str, JSON]) -> None:
        """Consumers that are done lose their reservation; a claim without any loses its allocation."""
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        meta = claim["metadata"]
        kept = [r for r in reserved if r["resource"] != "pods" or await self._still_uses(r, meta["namespace"], pods)]
        allocated = status.get("allocation") is not None
        if len(kept) == len(reserved) and not (allocated and not reserved):
            if not allocated and not reserved and FINALIZER in (meta.get("finalizers") or []):
                await self._unprotect(claim)
            elif self._is_done(claim, pods):
                await self._delete(claim)
            return
        fresh: JSON = {**status, "reservedFor": kept}
        if not kept:
            fresh.pop("reservedFor")
            fresh.pop("allocation", None)
            fresh.pop("devices", None)
        updated = await self.client.update(CLAIMS, {**claim, "status": fresh}, "status")
        if not kept:
            await self._unprotect(updated)

    async def _still_uses(self, consumer: JSON, namespace: str, pods: dict[str, JSON]) -> bool:
        """A pod that our copy does not have may be newer than the copy, so the server is asked."""
        pod = pods.get(consumer["uid"])
        if pod is None:
            try:
                pod = await self.client.get(PODS, consumer["name"], namespace)
            except ApiError as e:
                if e.status != 404:
                    raise
                return False
        return pod["metadata"]["uid"] == consumer["uid"] and _uses(pod)

    async def _unprotect(self, claim: JSON) -> None:
        meta = dict(claim["metadata"])
        meta["finalizers"] = [f for f in meta.get("finalizers") or [] if f != FINALIZER]
        await self.client.update(CLAIMS, {**claim, "metadata": meta})

    @staticmethod
    def _is_done(claim: JSON, pods: dict[str, JSON]) -> bool:
        """A claim that was made for a pod goes when that pod has finished."""
        if claim["metadata"].get("deletionTimestamp"):
            return False
        owners = [o["uid"] for o in claim["metadata"].get("ownerReferences") or [] if o["kind"] == "Pod"]
        annotated = POD_CLAIM_NAME in (claim["metadata"].get("annotations") or {})
        return annotated and bool(owners) and all(u not in pods or is_finished(pods[u]) for u in owners)

    async def _delete(self, claim: JSON) -> None:
        meta = claim["metadata"]
        try:
            await self.client.delete(CLAIMS, meta["name"], meta["namespace"], uid=meta["uid"])
        except ApiError as e:
            if e.status != 404:
                raise


def _uses(pod: JSON) -> bool:
    """Whether a pod still needs what it reserved."""
    if is_finished(pod):
        return False
    return not (pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName"))
