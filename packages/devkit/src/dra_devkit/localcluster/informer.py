"""Watches resources for the cluster's components: keeps copies of the objects, indexes them, and calls handlers after changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.wakeup import is_set_within
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Reflector, Resource
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.reflector import Event
from dra_kubeletplugin.resourceapi.conversion import GROUP

from ..kubernetes_releases import POD_GROUP_VERSIONS, Features
from ..scheduling.framework import pod_groups as podgroups

log = logging.getLogger(__name__)


def taint_rules(features: Features) -> Resource | None:
    """Returns the resource of DeviceTaintRules, or None if the release does not support them."""
    version = features.enforced_taint_rules
    return Resource(GROUP, version, "devicetaintrules") if version else None


def pool_requests(features: Features) -> Resource | None:
    """Returns the resource of ResourcePoolStatusRequests, or None if the server does not serve them."""
    version = next((v for v in features.pool_status_requests if v in features.served), "")
    return Resource(GROUP, version, "resourcepoolstatusrequests") if version else None


POD_GROUPS = {v: Resource(podgroups.GROUP, v, podgroups.RESOURCE, namespaced=True) for v in POD_GROUP_VERSIONS}


def pod_groups(features: Features) -> Resource | None:
    """Returns the resource of PodGroups, or None if the release does not have them."""
    return POD_GROUPS.get(features.pod_groups)


FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


@dataclass(frozen=True)
class ObjectChange:
    """A change of an object. ``before`` is None for a new object; ``gone`` is True for a deleted one."""

    object: JSON
    before: JSON | None
    gone: bool = False


Handler = Callable[[ObjectChange], None]
Index = Callable[[JSON], Iterable[Hashable]]


class Informers:
    """Caches of some resources. After each change, handlers are called and ``changed`` is set."""

    def __init__(self, client: KubeClient, resources: Mapping[Resource, str]) -> None:
        self.client = client
        self.changed = asyncio.Event()
        self._copies = {r: _Copies(Reflector(client, r, fields=fields)) for r, fields in resources.items()}

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        for resource, copies in self._copies.items():
            tasks.create_task(copies.follow(self.changed), name=f"informer {resource.plural}")

    @property
    def synced(self) -> bool:
        return all(c.synced.is_set() for c in self._copies.values())

    async def wait_synced(self, *resources: Resource) -> None:
        """Waits until these resources have been listed once. Without arguments, waits for all resources."""
        for resource in resources or self._copies:
            await self._copies[resource].synced.wait()

    async def wait_watching(self) -> None:
        """Waits until all watches are open. After that, changes arrive approximately in the order of the writes."""
        for copies in self._copies.values():
            while not copies.reflector.last_message:  # noqa: ASYNC110 - a reflector has no event for it
                await asyncio.sleep(0.005)

    def on(self, resource: Resource, handler: Handler) -> None:
        """Calls ``handler`` for each later change. Its exceptions are logged and do not affect other handlers."""
        self._copies[resource].handlers.append(handler)

    def index(self, resource: Resource, name: str, keys: Index) -> None:
        """Indexes objects by the result of ``keys``, for :meth:`by`. An object for which ``keys`` fails is not indexed."""
        self._copies[resource].add_index(name, keys)

    def by(self, resource: Resource, index: str, key: Hashable) -> list[JSON]:
        return list(self._copies[resource].indexes[index].by_key.get(key, {}).values())

    def all(self, resource: Resource) -> list[JSON]:
        return list(self._copies[resource].by_uid.values())

    def by_uid(self, resource: Resource, uid: str) -> JSON | None:
        return self._copies[resource].by_uid.get(uid)

    def find(self, resource: Resource, name: str, namespace: str = "") -> JSON | None:
        return self._copies[resource].by_name.get((namespace if resource.namespaced else "", name))

    async def loop(self, reconcile: Callable[[], Any], resync: float = 5.0) -> None:
        """Calls ``reconcile`` after changes, and every ``resync`` seconds. Never returns."""
        while True:
            await is_set_within(self.changed, resync)
            self.changed.clear()
            if not self.synced:
                continue
            try:
                await reconcile()
            except ApiError as e:
                # After a conflict, the next event or resync brings the newer object.
                log.debug("an informer retries after an error: %s", e)
                await asyncio.sleep(0.02)
                self.changed.set()
            except Exception:
                log.exception("unexpected exception in an informer; it retries")
                await asyncio.sleep(1.0)
                self.changed.set()


class _IndexOf:
    def __init__(self, keys: Index) -> None:
        self.keys = keys
        self.by_key: dict[Hashable, dict[str, JSON]] = {}
        self._of: dict[str, list[Hashable]] = {}

    def put(self, uid: str, obj: JSON | None) -> None:
        for key in self._of.pop(uid, ()):
            found = self.by_key[key]
            found.pop(uid, None)
            if not found:
                del self.by_key[key]
        if obj is None:
            return
        try:
            keys = list(dict.fromkeys(self.keys(obj)))
        except Exception as e:
            log.debug("cannot index an object: %r", e)
            return
        for key in keys:
            self.by_key.setdefault(key, {})[uid] = obj
        self._of[uid] = keys


class _Copies:
    """The cached objects of one resource, by UID, by name and by indexes."""

    def __init__(self, reflector: Reflector) -> None:
        self.reflector = reflector
        self.synced = asyncio.Event()
        self.handlers: list[Handler] = []
        self.by_uid: dict[str, JSON] = {}
        self.by_name: dict[tuple[str, str], JSON] = {}
        self.indexes: dict[str, _IndexOf] = {}

    def add_index(self, name: str, keys: Index) -> None:
        made = self.indexes[name] = _IndexOf(keys)
        for uid, obj in self.by_uid.items():
            made.put(uid, obj)

    async def follow(self, changed: asyncio.Event) -> None:
        async for event in self.reflector.events():
            if event.type == "SYNCED":
                self.synced.set()
            else:
                self._take(event)
            changed.set()

    def _take(self, event: Event) -> None:
        uid, gone = event.uid, event.type == "DELETED"
        before = self.by_uid.pop(uid, None)
        # A deletion that was found by a list has no content: only the cache has it.
        obj = as_json(event.encoded) if event.name else before or {"metadata": {"uid": uid}}
        meta = obj["metadata"]
        name = (meta.get("namespace") or "", meta.get("name", ""))
        if not gone:
            self.by_uid[uid] = self.by_name[name] = obj
        elif name in self.by_name and self.by_name[name]["metadata"]["uid"] == uid:
            del self.by_name[name]
        for index in self.indexes.values():
            index.put(uid, None if gone else obj)
        change = ObjectChange(obj, before, gone)
        for handler in self.handlers:
            try:
                handler(change)
            except Exception:
                log.exception("a change handler failed for an object: %s %s", self.reflector.plural, "/".join(name))


def pod_claim_names(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the names of the ResourceClaims of a pod, by the name in ``spec.resourceClaims``.

    A value is None if the claim is not created yet, and empty if the pod needs no claim for this name.
    """
    made = {s["name"]: s.get("resourceClaimName") for s in (pod.get("status") or {}).get("resourceClaimStatuses") or []}
    out: dict[str, str | None] = {}
    for entry in pod["spec"].get("resourceClaims") or []:
        if direct := entry.get("resourceClaimName"):
            out[entry["name"]] = direct
        elif entry["name"] in made:
            out[entry["name"]] = made[entry["name"]] or ""
        else:
            out[entry["name"]] = None
    return out


def conditions_of(obj: Mapping[str, Any] | None) -> dict[str, JSON]:
    """Returns the conditions in the status of an object, by type."""
    return {str(c.get("type")): c for c in ((obj or {}).get("status") or {}).get("conditions") or []}


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    """Returns whether the object with this UID is the controlling owner. Other owners do not count."""
    return any(o["uid"] == uid and o.get("controller") for o in obj["metadata"].get("ownerReferences") or [])


def server_message(e: ApiError) -> str:
    """Returns the API server's message without this package's prefix."""
    return str(e.details.get("message") or e)
