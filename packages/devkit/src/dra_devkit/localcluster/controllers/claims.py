"""The claim controller: creates claims from templates, removes reservations, deallocates claims, deletes generated claims.

Source: KEP-4381, "Implementation of structured parameters"; KEP-5729; kube-controller-manager's resourceclaim controller.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, TEMPLATES

from ...scheduling.framework import pod_groups
from ...scheduling.framework.claim_cache import is_allocated, reserved_for
from ...scheduling.framework.pod_info import is_finished
from ..informer import (
    FINALIZER,
    POD_CLAIM_NAME,
    Informers,
    ObjectChange,
    owned_by,
    pod_claim_names,
    server_message,
)
from .base import KINDS, Controller, Key, RetryLater, key_of
from .workloads import controller_of, controller_uids

log = logging.getLogger(__name__)
_MAX_PREFIX = 57  # characters of the prefix of a generated name, approximately
_MAX_RESERVATIONS = 256


class ClaimController(Controller):
    """Creates the claims of pods and PodGroups. Removes reservations and allocations that are no longer needed.

    Args:
        groups: the PodGroup resource; None if PodGroups cannot own claims.
    """

    name = "resource_claim"

    def __init__(self, client: KubeClient, informers: Informers, groups: Resource | None = None) -> None:
        super().__init__(client, informers, (PODS, CLAIMS, TEMPLATES, *((groups,) if groups else ())))
        self._groups = groups
        # Created claims that the informer may not have yet: (UID of the pod or group, name in its resourceClaims) → name of the claim
        self._created: dict[tuple[str, str], str] = {}
        self._deleted: set[str] = set()  # UIDs of deleted pods and groups
        self._written_versions: dict[str, int] = {}  # by UID of a claim: the version of this controller's last write
        # UIDs of claims that this controller deallocated and that still have the finalizer
        self._deallocated: set[str] = set()
        # By UID of an allocated claim without reservations: the consumers that had reserved it, for example before a failed binding
        self._unreserved: dict[str, list[JSON]] = {}
        informers.index(PODS, "claims", _claims_of)
        informers.index(PODS, "templates", _templates_of)
        informers.index(CLAIMS, "owner", controller_uids)
        self.watch(PODS, self._pod_changed)
        self.watch(CLAIMS, self._claim_changed)
        self.watch(TEMPLATES, self._template_changed)
        if groups:
            informers.index(PODS, "group", pod_groups.key_of)
            informers.index(groups, "templates", _templates_of)
            self.watch(groups, self._group_changed)

    def _pod_changed(self, change: ObjectChange) -> None:
        pod = change.object
        if change.gone:
            self._forget(pod)
        else:
            self.queue.add(key_of(PODS, pod))
        if change.gone or _is_done(pod):
            self._queue_claims_of(pod)

    def _group_changed(self, change: ObjectChange) -> None:
        group = change.object
        meta = group["metadata"]
        if change.gone:
            self._forget(group)
            self._queue_claims_of(group)
            return
        self.queue.add(key_of(self._group_resource, group))
        if change.before is None or _statuses(change.before) != _statuses(group):
            for pod in self.informers.by(PODS, "group", (meta["namespace"], meta["name"])):
                self.queue.add(key_of(PODS, pod))

    def _forget(self, owner: JSON) -> None:
        uid = owner["metadata"]["uid"]
        self._deleted.add(uid)
        self._created = {key: name for key, name in self._created.items() if key[0] != uid}
        if len(self._deleted) > 10_000:
            self._deleted.clear()  # _still_uses then asks the API server for these consumers

    def _queue_claims_of(self, owner: JSON) -> None:
        for namespace, name in _claims_of(owner):
            self.queue.add(Key(CLAIMS, namespace, name))
        for claim in self.informers.by(CLAIMS, "owner", owner["metadata"]["uid"]):
            self.queue.add(key_of(CLAIMS, claim))

    @property
    def _group_resource(self) -> Resource:
        assert self._groups is not None
        return self._groups

    def _claim_changed(self, change: ObjectChange) -> None:
        claim = change.object
        meta = claim["metadata"]
        if change.gone:
            self._deallocated.discard(meta["uid"])
            self._written_versions.pop(meta["uid"], None)
        reserved, before = reserved_for(claim), reserved_for(change.before or {})
        if change.gone or reserved or not is_allocated(claim):
            self._unreserved.pop(meta["uid"], None)
        elif before:
            self._unreserved[meta["uid"]] = before
        self.queue.add(key_of(CLAIMS, claim))
        # A deleted claim may have to be created again. An allocated claim may have to be reserved for a pod that was
        # bound without the scheduler.
        for pod in self.informers.by(PODS, "claims", (meta["namespace"], meta["name"])):
            self.queue.add(key_of(PODS, pod))
        for owner in meta.get("ownerReferences") or [] if self._groups and change.gone else ():
            if owner["kind"] == pod_groups.KIND:
                self.queue.add(Key(self._group_resource, meta["namespace"], owner["name"]))

    def _template_changed(self, change: ObjectChange) -> None:
        meta = change.object["metadata"]
        for resource in (PODS, self._groups) if self._groups else (PODS,):
            for owner in self.informers.by(resource, "templates", (meta["namespace"], meta["name"])):
                self.queue.add(key_of(resource, owner))

    async def reconcile(self, key: Key) -> None:
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is None:
            return
        if key.resource is PODS:
            await self._reconcile_pod(obj)
        elif key.resource is CLAIMS:
            await self._reconcile_claim(obj)
        elif not obj["metadata"].get("deletionTimestamp"):
            await self._make_claims(obj, self._group_resource)

    # --- pods and groups ------------------------------------------------------------------------

    async def _reconcile_pod(self, pod: JSON) -> None:
        if pod["metadata"].get("deletionTimestamp") or is_finished(pod):
            return
        if await self._make_claims(pod, PODS):
            return  # the status update queues the pod again
        if pod["spec"].get("nodeName"):
            await self._reserve(pod)

    async def _make_claims(self, owner: JSON, resource: Resource) -> bool:
        """Creates the missing claims of a pod or group. Returns whether it wrote the owner's status."""
        created: dict[str, str] = {}
        for entry in owner["spec"].get("resourceClaims") or []:
            try:
                group = self._group_of(owner)
                if pod_groups.shares(group, entry):
                    name = _group_claim_name(owner, group or {}, entry)
                else:
                    name = await self._claim_for(owner, resource, entry)
            except _ClaimCreationError as e:
                # The text for a group follows the text for a pod; it was not compared with Kubernetes.
                text = f"{KINDS[resource.plural]}ResourceClaim {entry['name']}: {e}"
                self.record_event(owner, resource, "Warning", "FailedResourceClaimCreation", text)
                raise
            if name:
                created[entry["name"]] = name
        if created:
            await self._write_claim_names(owner, resource, created)
        return bool(created)

    def _group_of(self, owner: JSON) -> JSON | None:
        """Returns the PodGroup of a pod; None if ``owner`` is a PodGroup or a pod without a PodGroup.

        Raises:
            _ClaimCreationError: The group does not exist, so the owner of the claim is unknown.
        """
        name, namespace = pod_groups.name_of(owner), owner["metadata"]["namespace"]
        if not name or self._groups is None:
            return None
        found = self.informers.find(self._groups, name, namespace)
        if found is None:
            raise _ClaimCreationError(f'podgroup.scheduling.k8s.io "{name}" not found')
        return found

    async def _claim_for(self, owner: JSON, resource: Resource, entry: JSON) -> str:
        """Creates or finds the claim for an entry of ``resourceClaims``. Returns its name; empty if the owner's status needs no change."""
        template_name = entry.get("resourceClaimTemplateName")
        if not template_name:
            return ""
        meta = owner["metadata"]
        known = next((s for s in _statuses(owner) if s["name"] == entry["name"]), None)
        if known is not None:
            if not known.get("resourceClaimName"):
                return ""  # the pod needs no claim for this entry
            claim = self.informers.find(CLAIMS, known["resourceClaimName"], meta["namespace"])
            if claim is not None and owned_by(claim, meta["uid"]):
                return ""
            if self._created.get((meta["uid"], entry["name"])) == known["resourceClaimName"] and claim is None:
                return ""  # the informer does not have the claim yet
        if found := self._find_orphan(owner, entry["name"]):
            return found
        template = self.informers.find(TEMPLATES, template_name, meta["namespace"])
        if template is None:
            missing = f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
            raise _ClaimCreationError(f'resource claim template "{template_name}": {missing}')
        try:
            body = generated_claim(owner, entry, template, resource)
            claim = await self.client.create(CLAIMS, body, meta["namespace"])
        except ApiError as e:
            if e.unreachable:
                raise
            raise _ClaimCreationError(f"create ResourceClaim : {server_message(e)}") from e
        self._created[meta["uid"], entry["name"]] = claim["metadata"]["name"]
        return str(claim["metadata"]["name"])

    def _find_orphan(self, owner: JSON, entry: str) -> str:
        """Returns the name of a claim that was created earlier but is missing in the owner's status."""
        uid = owner["metadata"]["uid"]
        for claim in self.informers.by(CLAIMS, "owner", uid):
            meta = claim["metadata"]
            if (meta.get("annotations") or {}).get(POD_CLAIM_NAME) == entry and not meta.get("deletionTimestamp"):
                return str(meta["name"])
        known = {s.get("resourceClaimName") for s in _statuses(owner)}
        created = self._created.get((uid, entry), "")
        return "" if created in known else created

    async def _write_claim_names(self, owner: JSON, resource: Resource, created: Mapping[str, str]) -> None:
        """Writes the names of created claims into the owner's status."""
        meta = owner["metadata"]
        kept = [s for s in _statuses(owner) if s["name"] not in created]
        kept += [{"name": name, "resourceClaimName": claim} for name, claim in created.items()]
        body = {"metadata": {"uid": meta["uid"]}, "status": {"resourceClaimStatuses": kept}}
        await self.client.patch(resource, meta["name"], body, meta["namespace"], "status")

    async def _reserve(self, pod: JSON) -> None:
        """Reserves the allocated claims of a pod that was bound without the scheduler. For other pods, the scheduler does this."""
        entries, names = pod["spec"].get("resourceClaims") or [], pod_claim_names(pod)
        group = self._group_of(pod) if entries else None
        shared = {names[e["name"]] for e in entries if pod_groups.shares(group, e)}
        for namespace, name in _claims_of(pod):
            claim = self.informers.find(CLAIMS, name, namespace)
            if claim is None:
                continue
            reserved = reserved_for(claim)
            consumer = pod_groups.group_reference(group) if group and name in shared else pod_groups.pod_reference(pod)
            if not is_allocated(claim) or any(r["uid"] == consumer["uid"] for r in reserved):
                continue
            if len(reserved) >= _MAX_RESERVATIONS:
                continue
            status = {**claim["status"], "reservedFor": [*reserved, consumer]}
            await self.client.update(CLAIMS, {**claim, "status": status}, "status")

    # --- claims ---------------------------------------------------------------------------------

    async def _reconcile_claim(self, claim: JSON) -> None:
        status = claim.get("status") or {}
        meta = claim["metadata"]
        if _version(claim) < self._written_versions.get(meta["uid"], 0):
            return  # The informer's copy is older than this controller's last write. The newer version will queue the claim again.
        reserved = reserved_for(claim)
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
        elif protected and (former := self._unreserved.get(meta["uid"])):
            # If a former consumer still needs the claim, the claim stays allocated, and the scheduler reserves it again. Otherwise, only
            # this controller can deallocate the claim.
            if not any([await self._still_uses(r, meta["namespace"]) for r in former]):
                await self._deallocate(claim)
        if not kept and self._owner_is_done(claim):
            await self.delete(CLAIMS, claim)

    async def _deallocate(self, claim: JSON) -> None:
        """Removes allocation, reservations, device status and finalizer in one write, as Kubernetes does.

        A server that ignores finalizers in a status update needs a second write.
        """
        status = {
            k: v for k, v in (claim.get("status") or {}).items() if k not in {"allocation", "reservedFor", "devices"}
        }
        written = claim
        if status != (claim.get("status") or {}):
            written = await self._update(_unprotected({**claim, "status": status}), "status")
        if FINALIZER in (written["metadata"].get("finalizers") or []):
            self._deallocated.add(claim["metadata"]["uid"])
            await self._update(_unprotected(written), "")
            self._deallocated.discard(claim["metadata"]["uid"])

    async def _update(self, claim: JSON, sub: str) -> JSON:
        written = await self.client.update(CLAIMS, claim, sub)
        meta = written["metadata"]
        if self.informers.by_uid(CLAIMS, meta["uid"]) is not None:
            self._written_versions[meta["uid"]] = _version(written)
        return written

    def _is_freed(self, claim: JSON) -> bool:
        """Returns whether this controller deallocated the claim but could not remove the finalizer.

        If the scheduler deallocated the claim, the finalizer must stay.
        """
        return claim["metadata"]["uid"] in self._deallocated and not is_allocated(claim)

    async def _still_uses(self, consumer: JSON, namespace: str) -> bool:
        """Returns whether a consumer still needs the claim. A group needs its claims until it is deleted, regardless of its pods.

        Raises:
            RetryLater: the consumer is neither a pod nor a PodGroup. As in Kubernetes, the claim does not change and there is no event.
        """
        resource = self._groups if pod_groups.is_group(consumer) else PODS
        if resource is None or (resource is PODS and (consumer["resource"] != "pods" or consumer.get("apiGroup"))):
            raise RetryLater(f"unsupported ReservedFor entry: {consumer}")
        if consumer["uid"] in self._deleted:
            return False
        found = await self.current(resource, consumer, namespace)
        return found is not None and not (resource is PODS and _is_done(found))

    def _owner_is_done(self, claim: JSON) -> bool:
        """Returns whether a claim was generated for a pod that no longer needs it.

        False if the informer does not have the pod, because the pod may be newer. The garbage collector deletes such a claim later.
        """
        if claim["metadata"].get("deletionTimestamp"):
            return False
        owner = controller_of(claim)
        if owner is None or owner["kind"] != "Pod" or owner["apiVersion"] != "v1":
            return False
        pod = self.informers.find(PODS, owner["name"], claim["metadata"]["namespace"])
        return pod is not None and (pod["metadata"]["uid"] != owner["uid"] or _is_done(pod))


class _ClaimCreationError(RetryLater):
    """A claim cannot be created. The text is the same as in Kubernetes."""


def generated_claim(owner: JSON, entry: JSON, template: JSON, resource: Resource) -> JSON:
    """Returns the ResourceClaim for one entry of a pod's or PodGroup's ``resourceClaims``."""
    inner = template["spec"]
    meta = owner["metadata"]
    metadata = {k: copy.deepcopy(v) for k, v in (inner.get("metadata") or {}).items() if k in {"labels", "annotations"}}
    metadata["generateName"] = _prefix(meta["name"], entry["name"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), POD_CLAIM_NAME: entry["name"]}
    metadata["namespace"] = meta["namespace"]
    reference = {"apiVersion": resource.api_version, "kind": KINDS[resource.plural], "name": meta["name"]}
    metadata["ownerReferences"] = [reference | {"uid": meta["uid"], "controller": True}]
    return {"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "metadata": metadata, "spec": inner["spec"]}


def _group_claim_name(pod: JSON, group: JSON, entry: JSON) -> str:
    """Returns the name of the group's claim; empty if the claim does not exist yet or the pod's status already has its name."""
    if not entry.get("resourceClaimTemplateName"):
        return ""
    of_group, known = ({s["name"]: s.get("resourceClaimName") for s in _statuses(o)} for o in (group, pod))
    name = of_group.get(entry["name"]) or ""
    return "" if known.get(entry["name"]) == name else name


def _statuses(owner: Mapping[str, Any]) -> list[JSON]:
    """Returns the status entries with the names of a pod's or group's claims."""
    return (owner.get("status") or {}).get("resourceClaimStatuses") or []


def _prefix(owner: str, entry: str) -> str:
    """Returns the prefix of a generated name. Shortens both names in proportion if they are too long together."""
    whole = len(owner) + len(entry) + 2
    if whole <= _MAX_PREFIX:
        return f"{owner}-{entry}-"
    return f"{owner[: len(owner) * _MAX_PREFIX // whole]}-{entry[: len(entry) * _MAX_PREFIX // whole]}-"


def _unprotected(claim: JSON) -> JSON:
    meta = dict(claim["metadata"])
    meta["finalizers"] = [f for f in meta.get("finalizers") or [] if f != FINALIZER]
    return {**claim, "metadata": meta}


def _version(claim: JSON) -> int:
    return int(claim["metadata"]["resourceVersion"])


def _is_done(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod no longer needs its claims: it finished, or it was deleted before it was bound to a node."""
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    return is_finished(pod) or (deleted and not pod["spec"].get("nodeName"))


def _claims_of(owner: JSON) -> Iterable[tuple[str, str]]:
    """Returns namespace and name of each claim of a pod or group."""
    namespace = owner["metadata"]["namespace"]
    status = owner.get("status") or {}
    names = [e.get("resourceClaimName") for e in owner["spec"].get("resourceClaims") or []]
    names += [s.get("resourceClaimName") for s in _statuses(owner)]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return dict.fromkeys((namespace, name) for name in names if name)


def _templates_of(owner: JSON) -> Iterable[tuple[str, str]]:
    for entry in owner["spec"].get("resourceClaims") or []:
        if name := entry.get("resourceClaimTemplateName"):
            yield owner["metadata"]["namespace"], name
