"""The claim controller: claims from templates, reservations that end, deallocation, deletion of what was generated.

Source: KEP-4381, "Implementation of structured parameters"; kube-controller-manager's resourceclaim controller.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ...errors import ApiError
from ...kube import KubeClient
from ..informer import (
    CLAIMS,
    FINALIZER,
    POD_CLAIM_NAME,
    PODS,
    TEMPLATES,
    Change,
    Informers,
    is_finished,
    owned_by,
    words_of,
)
from .base import Controller, Key, Waiting, key_of

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_NAME = 57  # characters of a generated name before the hyphen and five random ones
_RESERVATIONS = 256


class ClaimController(Controller):
    """One key a pod, for its claims, and one a claim, for its reservations."""

    name = "resource_claim"
    kinds: ClassVar = {PODS: "Pod", CLAIMS: "ResourceClaim"}

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers, (PODS, CLAIMS, TEMPLATES))
        # (pod UID, name in the pod) → claim that we made, which our copies may not show yet
        self._made: dict[tuple[str, str], str] = {}
        self._gone: set[str] = set()  # UIDs of pods of whose deletion we heard
        self._wrote: dict[str, int] = {}  # version of claims that we wrote last, by UID
        self._freed: set[str] = set()  # UIDs of claims that we deallocated and that are still protected
        # Consumers of allocated claims, by the claim's UID, that lost their reservation: by the scheduler, say, which gave up.
        self._unreserved: dict[str, list[JSON]] = {}
        informers.index(PODS, "claims", _claims_of)
        informers.index(PODS, "templates", _templates_of)
        informers.index(CLAIMS, "owner", _owners_of)
        self.watch(PODS, self._pod_changed)
        self.watch(CLAIMS, self._claim_changed)
        self.watch(TEMPLATES, self._template_changed)

    def _pod_changed(self, change: Change) -> None:
        pod = change.object
        meta = pod["metadata"]
        if change.gone:
            self._gone.add(meta["uid"])
            self._made = {key: name for key, name in self._made.items() if key[0] != meta["uid"]}
            if len(self._gone) > 10_000:
                self._gone.clear()  # the server is asked then
        else:
            self.queue.add(key_of(PODS, pod))
        if change.gone or _is_done(pod):
            for namespace, name in _claims_of(pod):
                self.queue.add(Key(CLAIMS, namespace, name))
            for claim in self.informers.by(CLAIMS, "owner", meta["uid"]):
                self.queue.add(key_of(CLAIMS, claim))

    def _claim_changed(self, change: Change) -> None:
        claim = change.object
        meta = claim["metadata"]
        if change.gone:
            self._freed.discard(meta["uid"])
            self._wrote.pop(meta["uid"], None)
        reserved, before = _reserved(claim), _reserved(change.before or {})
        if change.gone or reserved or not _is_allocated(claim):
            self._unreserved.pop(meta["uid"], None)
        elif before:
            self._unreserved[meta["uid"]] = before
        self.queue.add(key_of(CLAIMS, claim))
        # A claim that was deleted may have to be made again, and an allocated one reserved for a pod bound by hand.
        for pod in self.informers.by(PODS, "claims", (meta["namespace"], meta["name"])):
            self.queue.add(key_of(PODS, pod))

    def _template_changed(self, change: Change) -> None:
        meta = change.object["metadata"]
        for pod in self.informers.by(PODS, "templates", (meta["namespace"], meta["name"])):
            self.queue.add(key_of(PODS, pod))

    async def reconcile(self, key: Key) -> None:
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is None:
            return
        if key.resource is PODS:
            await self._look_at_pod(obj)
        else:
            await self._look_at_claim(obj)

    # --- pods -----------------------------------------------------------------------------------

    async def _look_at_pod(self, pod: JSON) -> None:
        if pod["metadata"].get("deletionTimestamp") or is_finished(pod):
            return
        made: dict[str, str] = {}
        for entry in pod["spec"].get("resourceClaims") or []:
            try:
                if name := await self._claim_for(pod, entry):
                    made[entry["name"]] = name
            except _Refused as e:
                text = f"PodResourceClaim {entry['name']}: {e}"
                self.events.warn(pod, "Pod", "FailedResourceClaimCreation", text)
                raise
        if made:
            await self._tell(pod, made)
            return  # the pod comes back with its claims
        if pod["spec"].get("nodeName"):
            await self._reserve(pod)

    async def _claim_for(self, pod: JSON, entry: JSON) -> str:
        """The name of a claim that was made for ``entry``; empty where none had to be."""
        template_name = entry.get("resourceClaimTemplateName")
        if not template_name:
            return ""
        meta = pod["metadata"]
        statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
        known = next((s for s in statuses if s["name"] == entry["name"]), None)
        if known is not None:
            if not known.get("resourceClaimName"):
                return ""  # the pod needs none
            claim = self.informers.find(CLAIMS, known["resourceClaimName"], meta["namespace"])
            if claim is not None and owned_by(claim, meta["uid"]):
                return ""
            if self._made.get((meta["uid"], entry["name"])) == known["resourceClaimName"] and claim is None:
                return ""  # our copies do not have it yet
        if found := self._orphan(pod, entry["name"]):
            return found
        template = self.informers.find(TEMPLATES, template_name, meta["namespace"])
        if template is None:
            missing = f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
            raise _Refused(f'resource claim template "{template_name}": {missing}')
        try:
            claim = await self.client.create(CLAIMS, generated_claim(pod, entry, template), meta["namespace"])
        except ApiError as e:
            if e.unreachable:
                raise
            raise _Refused(f"create ResourceClaim : {words_of(e)}") from e
        self._made[meta["uid"], entry["name"]] = claim["metadata"]["name"]
        return str(claim["metadata"]["name"])

    def _orphan(self, pod: JSON, entry: str) -> str:
        """A claim that was made before, where the pod's status was not written."""
        uid = pod["metadata"]["uid"]
        for claim in self.informers.by(CLAIMS, "owner", uid):
            meta = claim["metadata"]
            if (meta.get("annotations") or {}).get(POD_CLAIM_NAME) == entry and not meta.get("deletionTimestamp"):
                return str(meta["name"])
        known = {s.get("resourceClaimName") for s in (pod.get("status") or {}).get("resourceClaimStatuses") or []}
        made = self._made.get((uid, entry), "")
        return "" if made in known else made

    async def _tell(self, pod: JSON, made: Mapping[str, str]) -> None:
        """Writes the names of claims into the pod's status."""
        meta = pod["metadata"]
        statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
        kept = [s for s in statuses if s["name"] not in made]
        kept += [{"name": name, "resourceClaimName": claim} for name, claim in made.items()]
        body = {"metadata": {"uid": meta["uid"]}, "status": {"resourceClaimStatuses": kept}}
        await self.client.patch(PODS, meta["name"], body, meta["namespace"], "status")

    async def _reserve(self, pod: JSON) -> None:
        """What the scheduler would have done: reserves allocated claims for a pod that somebody bound by hand."""
        meta = pod["metadata"]
        for namespace, name in _claims_of(pod):
            claim = self.informers.find(CLAIMS, name, namespace)
            if claim is None:
                continue
            status = claim.get("status") or {}
            reserved = status.get("reservedFor") or []
            if status.get("allocation") is None or any(r["uid"] == meta["uid"] for r in reserved):
                continue
            if len(reserved) >= _RESERVATIONS:
                continue
            consumer = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
            await self.client.update(
                CLAIMS, {**claim, "status": {**status, "reservedFor": [*reserved, consumer]}}, "status"
            )

    # --- claims ---------------------------------------------------------------------------------

    async def _look_at_claim(self, claim: JSON) -> None:
        status = claim.get("status") or {}
        meta = claim["metadata"]
        if _version(claim) < self._wrote.get(meta["uid"], 0):
            return  # our copy is older than what we wrote, which brings the claim back
        reserved = status.get("reservedFor") or []
        kept = [r for r in reserved if await self._still_uses(r, meta["namespace"])]
        protected = FINALIZER in (meta.get("finalizers") or [])
        if len(kept) < len(reserved):
            fresh = {**status, "reservedFor": kept}
            if not kept:
                del fresh["reservedFor"]
            if not kept and protected:
                await self._deallocate(claim)
            else:
                await self._update({**claim, "status": fresh}, "status")
        elif protected and not kept and (meta.get("deletionTimestamp") or self._is_freed(claim)):
            await self._deallocate(claim)
        elif protected and (lost := self._unreserved.get(meta["uid"])):
            # A pod that is still there will be scheduled with what is allocated; for one that has gone nobody else lets it go.
            if not any([await self._still_uses(r, meta["namespace"]) for r in lost]):
                await self._deallocate(claim)
        if not kept and self._owner_is_done(claim):
            await self._delete(claim)

    async def _deallocate(self, claim: JSON) -> None:
        """One write, as seen: allocation, reservations, device status and finalizer go. A server that keeps finalizers where a
        status is written is asked once more."""
        status = {
            k: v for k, v in (claim.get("status") or {}).items() if k not in {"allocation", "reservedFor", "devices"}
        }
        written = claim
        if status != (claim.get("status") or {}):
            written = await self._update(_unprotected({**claim, "status": status}), "status")
        if FINALIZER in (written["metadata"].get("finalizers") or []):
            self._freed.add(claim["metadata"]["uid"])
            await self._update(_unprotected(written), "")
            self._freed.discard(claim["metadata"]["uid"])

    async def _update(self, claim: JSON, sub: str) -> JSON:
        written = await self.client.update(CLAIMS, claim, sub)
        meta = written["metadata"]
        if self.informers.by_uid(CLAIMS, meta["uid"]) is not None:
            self._wrote[meta["uid"]] = _version(written)
        return written

    def _is_freed(self, claim: JSON) -> bool:
        """Whether we deallocated it and were kept from the second write. What the scheduler deallocates stays protected."""
        return claim["metadata"]["uid"] in self._freed and not _is_allocated(claim)

    async def _still_uses(self, consumer: JSON, namespace: str) -> bool:
        """A pod that our copy does not have may be newer than the copy, so the server is asked.

        Raises :class:`Waiting` for a consumer that is no pod: the claim stays as it is, as in Kubernetes without a word.
        """
        if consumer["resource"] != "pods" or consumer.get("apiGroup"):
            raise Waiting(f"unsupported ReservedFor entry: {consumer}")
        if consumer["uid"] in self._gone:
            return False
        pod = self.informers.find(PODS, consumer["name"], namespace)
        if pod is None or pod["metadata"]["uid"] != consumer["uid"]:
            try:
                pod = await self.client.get(PODS, consumer["name"], namespace)
            except ApiError as e:
                if e.status != 404:
                    raise
                return False
        return pod["metadata"]["uid"] == consumer["uid"] and not _is_done(pod)

    def _owner_is_done(self, claim: JSON) -> bool:
        """Whether a claim was made for a pod that will not run any more. One that we do not know is left to the garbage
        collector: it may be newer than our copy."""
        if claim["metadata"].get("deletionTimestamp"):
            return False
        owner = next((o for o in claim["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
        if owner is None or owner["kind"] != "Pod" or owner["apiVersion"] != "v1":
            return False
        pod = self.informers.find(PODS, owner["name"], claim["metadata"]["namespace"])
        return pod is not None and (pod["metadata"]["uid"] != owner["uid"] or _is_done(pod))

    async def _delete(self, claim: JSON) -> None:
        meta = claim["metadata"]
        try:
            await self.client.delete(CLAIMS, meta["name"], meta["namespace"], uid=meta["uid"])
        except ApiError as e:
            if e.status not in {404, 409}:  # gone, or another one of its name
                raise


class _Refused(Waiting):
    """A claim cannot be made; the text is Kubernetes'."""


def generated_claim(pod: JSON, entry: JSON, template: JSON) -> JSON:
    """The ResourceClaim of one entry of a pod's ``resourceClaims``."""
    inner = template["spec"]
    meta = pod["metadata"]
    made = {k: copy.deepcopy(v) for k, v in (inner.get("metadata") or {}).items() if k in {"labels", "annotations"}}
    made["generateName"] = _prefix(meta["name"], entry["name"])
    made["annotations"] = {**(made.get("annotations") or {}), POD_CLAIM_NAME: entry["name"]}
    made["namespace"] = meta["namespace"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    made["ownerReferences"] = [owner]
    return {"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "metadata": made, "spec": inner["spec"]}


def _prefix(pod: str, entry: str) -> str:
    """Both names shortened in proportion, where they are too long together."""
    whole = len(pod) + len(entry) + 2
    if whole <= _NAME:
        return f"{pod}-{entry}-"
    return f"{pod[: len(pod) * _NAME // whole]}-{entry[: len(entry) * _NAME // whole]}-"


def _unprotected(claim: JSON) -> JSON:
    meta = dict(claim["metadata"])
    meta["finalizers"] = [f for f in meta.get("finalizers") or [] if f != FINALIZER]
    return {**claim, "metadata": meta}


def _version(claim: JSON) -> int:
    return int(claim["metadata"]["resourceVersion"])


def _reserved(claim: Mapping[str, Any]) -> list[JSON]:
    return (claim.get("status") or {}).get("reservedFor") or []


def _is_allocated(claim: Mapping[str, Any]) -> bool:
    return (claim.get("status") or {}).get("allocation") is not None


def _is_done(pod: Mapping[str, Any]) -> bool:
    """Finished, or deleted before it had a node: it needs no claim any more."""
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    return is_finished(pod) or (deleted and not pod["spec"].get("nodeName"))


def _claims_of(pod: JSON) -> Iterable[tuple[str, str]]:
    """Namespace and name of each claim that a pod has."""
    namespace = pod["metadata"]["namespace"]
    status = pod.get("status") or {}
    names = [e.get("resourceClaimName") for e in pod["spec"].get("resourceClaims") or []]
    names += [s.get("resourceClaimName") for s in status.get("resourceClaimStatuses") or []]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return dict.fromkeys((namespace, name) for name in names if name)


def _templates_of(pod: JSON) -> Iterable[tuple[str, str]]:
    for entry in pod["spec"].get("resourceClaims") or []:
        if name := entry.get("resourceClaimTemplateName"):
            yield pod["metadata"]["namespace"], name


def _owners_of(claim: JSON) -> Iterable[str]:
    return [o["uid"] for o in claim["metadata"].get("ownerReferences") or []]


__all__ = ["ClaimController", "generated_claim"]
