"""Deletes objects, with preconditions, grace periods and finalizers; and then dependents, or the contents of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now

from . import request_decoding, strategy
from .admission import Admission
from .kinds import Registry, ServedKind
from .reading import Reader
from .requests import RequestInfo, conflict, details_of, dry_run, json_response, not_found, number, same_object, success
from .status_errors import bad_request
from .storage import Storage

_ORPHAN, _FOREGROUND, _BACKGROUND = "Orphan", "Foreground", "Background"
_NAMESPACE_WAIT = 1.0  # seconds from the deletion of a namespace to the deletion of its contents; Kubernetes waits 5 s
_FOREGROUND_FINALIZER = "foregroundDeletion"


class Deleter:
    """Deletes objects and their dependents.

    Args:
        on_removed: called with each removed object.
    """

    def __init__(
        self, storage: Storage, registry: Registry, reader: Reader, on_removed: Callable[[ServedKind, JSON], None]
    ) -> None:
        self.storage, self.registry, self.reader = storage, registry, reader
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by the namespace that the timer empties
        self._on_removed = on_removed

    async def delete(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        options = self._options(request)
        await self._run_admission(target, options, admission)
        obj, removed = self.delete_one(
            target, options, dry=dry_run(request, options), grace=number(request, "gracePeriodSeconds")
        )
        if removed and target.kind.storage not in {"pods"} and not target.kind.graceful:
            return success(details={**details_of(target), "uid": obj["metadata"]["uid"]})
        return json_response(strategy.outgoing(target.kind, target.version, obj), warnings=admission.warnings)

    async def _run_admission(self, target: RequestInfo, options: JSON, admission: Admission) -> None:
        """Runs validating admission for a deletion. Raises :class:`StatusError`."""
        old = self.storage.get(target.storage, target.namespace, target.name)
        if old is not None:
            await admission.validate(target, None, old, options=options)

    async def delete_all(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        options = self._options(request)
        matches, _ = self.reader.matching(request, target)
        dry, grace = dry_run(request, options), number(request, "gracePeriodSeconds")
        response = self.reader.list(request, target)
        for obj in self.storage.list(target.storage, target.namespace):
            if matches(obj):
                meta = obj["metadata"]
                item = RequestInfo(target.kind, target.version, meta.get("namespace", ""), meta["name"], "")
                await self._run_admission(item, options, admission)
                # The deletion of a previous object in the list may have removed this object too.
                if self.storage.get(item.storage, item.namespace, item.name) is not None:
                    self.delete_one(item, options, dry=dry, grace=grace)
        return response

    @staticmethod
    def _options(request: Request) -> JSON:
        body = request_decoding.read_object(request).value if request.body.strip() else {}
        options = request_decoding.decoded(body, "", "v1", "DeleteOptions")
        if policy := request.query.get("propagationPolicy"):
            options = {**options, "propagationPolicy": policy}
        policy = options.get("propagationPolicy")
        if policy not in (None, "", _ORPHAN, _FOREGROUND, _BACKGROUND):
            raise bad_request(
                f'propagationPolicy: Unsupported value: "{policy}": supported values: "Background", "Foreground", "Orphan"'
            )
        if (grace := options.get("gracePeriodSeconds") or 0) < 0:
            raise bad_request(f"gracePeriodSeconds: Invalid value: {grace}: must be greater than or equal to 0")
        return options

    def delete_one(self, target: RequestInfo, options: JSON, *, dry: bool, grace: int | None) -> tuple[JSON, bool]:
        """Deletes an object, or marks it as being deleted.

        Returns:
            The object, and whether it was removed.
        """
        old = self.storage.get(target.storage, target.namespace, target.name)
        if old is None:
            raise not_found(target)
        conditions = options.get("preconditions") or {}
        for key, shown in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if conditions.get(key) and conditions[key] != old["metadata"][key]:
                found = f"{shown} in precondition: {conditions[key]}, {shown} in object meta: {old['metadata'][key]}"
                raise conflict(target, f"Precondition failed: {found}")
        meta = dict(old["metadata"])
        obj = {**old, "metadata": meta}
        seconds = self._grace(target.kind, obj, options, grace)
        policy = options.get("propagationPolicy") or (_ORPHAN if options.get("orphanDependents") else _BACKGROUND)
        finalizers = self._finalizers(meta, policy)
        is_kept = bool(
            seconds or finalizers or (target.storage == "namespaces" and (obj.get("spec") or {}).get("finalizers"))
        )
        if is_kept:
            if meta.get("deletionTimestamp"):
                seconds = min(seconds, meta.get("deletionGracePeriodSeconds", seconds))
            meta.setdefault("deletionTimestamp", now())
            meta["deletionGracePeriodSeconds"] = seconds
            if finalizers:
                meta["finalizers"] = finalizers
            if target.storage == "namespaces":
                obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        if dry:
            return obj, not is_kept
        if policy == _ORPHAN:
            self._orphan_dependents(meta["uid"])
        if not is_kept:
            return self.remove(target, obj), True
        if not same_object(obj, old):
            obj = self.storage.put(target.storage, obj, fresh=True)
        return self._after_mark(target, obj, policy)

    def _after_mark(self, target: RequestInfo, obj: JSON, policy: str) -> tuple[JSON, bool]:
        """Empties a namespace, or deletes dependents, after an object was marked as being deleted."""
        if target.storage == "namespaces":
            self.empty_soon(target.name)
        if policy == _FOREGROUND:
            self._collect_dependents(obj["metadata"]["uid"])
        kept = self.storage.get(target.storage, target.namespace, target.name)
        return (kept, False) if kept is not None else (obj, True)

    @staticmethod
    def _grace(kind: ServedKind, obj: JSON, options: JSON, grace: int | None) -> int:
        if not kind.graceful or not (obj.get("spec") or {}).get("nodeName"):
            return 0
        if (obj.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            return 0
        requested = options.get("gracePeriodSeconds")
        requested = grace if requested is None else requested
        return max(0, int(requested if requested is not None else obj["spec"].get("terminationGracePeriodSeconds", 30)))

    def _finalizers(self, meta: JSON, policy: str) -> list[str]:
        found = list(meta.get("finalizers") or ())
        if policy == _FOREGROUND and _FOREGROUND_FINALIZER not in found and self.storage.owned(meta["uid"]):
            found.append(_FOREGROUND_FINALIZER)
        return found

    # --- removal --------------------------------------------------------------------------------

    def finish(self, target: RequestInfo, obj: JSON) -> JSON | None:
        """Removes an object that is marked as being deleted. Returns None if it must stay for finalizers or a grace period."""
        meta = obj["metadata"]
        if meta.get("finalizers") or (target.kind.graceful and meta.get("deletionGracePeriodSeconds")):
            return None
        if target.storage == "namespaces" and (obj.get("spec") or {}).get("finalizers"):
            return None
        return self.remove(target, obj)

    def remove(self, target: RequestInfo, obj: JSON) -> JSON:
        """Removes an object and its dependents that have no other owner.

        Then removes owners that waited for this removal (foreground deletion), and the namespace if it is terminating and now empty.
        """
        removed = self.storage.remove(target.storage, target.namespace, target.name) or obj
        self._on_removed(target.kind, removed)
        self._collect_dependents(obj["metadata"]["uid"])
        for owner in obj["metadata"].get("ownerReferences") or ():
            self._finish_waiting_owner(owner.get("uid", ""))
        if target.namespace:
            self._finish_namespace(target.namespace)
        return removed

    def _target(self, kind: str, namespace: str, name: str) -> RequestInfo | None:
        found = self.registry.by_key(kind)
        return RequestInfo(found, found.versions[0], namespace, name, "") if found else None

    def _dependents(self, owner: str) -> Iterator[tuple[RequestInfo, JSON]]:
        """Yields the objects that have an owner, each with the target of a request for it."""
        for kind, (namespace, name) in self.storage.owned(owner):
            obj, target = self.storage.get(kind, namespace, name), self._target(kind, namespace, name)
            if obj is not None and target is not None:
                yield target, obj

    def _collect_dependents(self, owner: str) -> None:
        """Deletes an owner's dependents that have no other existing owner. From other dependents, removes the reference to the owner."""
        for target, obj in self._dependents(owner):
            others = _other_owners(obj, owner)
            if any(self._exists(o) for o in others):
                self._set_owners(target, obj, others)
            elif not obj["metadata"].get("deletionTimestamp"):
                self.delete_one(target, {}, dry=False, grace=None)

    def _exists(self, owner: JSON) -> bool:
        return self.storage.with_uid(str(owner.get("uid", ""))) is not None

    def _orphan_dependents(self, owner: str) -> None:
        for target, obj in self._dependents(owner):
            self._set_owners(target, obj, _other_owners(obj, owner))

    def _set_owners(self, target: RequestInfo, obj: JSON, owners: list[JSON]) -> None:
        meta = {k: v for k, v in obj["metadata"].items() if k != "ownerReferences"}
        self.storage.put(target.storage, {**obj, "metadata": meta | ({"ownerReferences": owners} if owners else {})})

    def _finish_waiting_owner(self, uid: str) -> None:
        """Removes an owner in foreground deletion if its last dependent was removed."""
        if not uid or self.storage.owned(uid):
            return
        found = self.storage.with_uid(uid)
        if found is None:
            return
        kind, (namespace, name) = found
        obj, target = self.storage.get(kind, namespace, name), self._target(kind, namespace, name)
        if obj is None or target is None or _FOREGROUND_FINALIZER not in (obj["metadata"].get("finalizers") or ()):
            return
        remaining = [f for f in obj["metadata"]["finalizers"] if f != _FOREGROUND_FINALIZER]
        freed = {**obj, "metadata": {**obj["metadata"], "finalizers": remaining}}
        if self.finish(target, freed) is None:
            self.storage.put(kind, freed)

    # --- namespaces -----------------------------------------------------------------------------

    def empty_soon(self, namespace: str) -> None:
        """Deletes the contents of a terminating namespace after a delay.

        Kubernetes' namespace controller waits too. During the delay, a client can still delete the objects of a manifest one by one.
        """
        if namespace not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[namespace] = loop.call_later(_NAMESPACE_WAIT, self._empty, namespace)

    def close(self) -> None:
        """Cancels the timers of terminating namespaces. The next server empties these namespaces."""
        for timer in self._timers.values():
            timer.cancel()

    def _empty(self, namespace: str) -> None:
        self._timers.pop(namespace, None)
        for kind, obj in list(self.storage.in_namespace(namespace)):
            meta = obj["metadata"]
            target = self._target(kind, namespace, meta["name"])
            if target is None or meta.get("deletionTimestamp"):
                continue
            if self.storage.get(kind, namespace, meta["name"]) is not None:
                self.delete_one(target, {}, dry=False, grace=None)
        self._finish_namespace(namespace)

    def _finish_namespace(self, name: str) -> None:
        """Removes a terminating namespace if it is empty."""
        found = self.storage.get("namespaces", "", name)
        if found is None or not found["metadata"].get("deletionTimestamp"):
            return
        if next(self.storage.in_namespace(name), None) is not None:
            return
        freed = {**found, "spec": {k: v for k, v in (found.get("spec") or {}).items() if k != "finalizers"}}
        target = self._target("namespaces", "", name)
        if target is not None and self.finish(target, freed) is None:
            self.storage.put("namespaces", freed)


def _other_owners(obj: JSON, owner: str) -> list[JSON]:
    return [o for o in obj["metadata"].get("ownerReferences") or () if o.get("uid") != owner]
