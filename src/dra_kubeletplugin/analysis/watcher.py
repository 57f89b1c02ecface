"""Watches the objects of a cluster. Returns a :class:`Snapshot` at any moment, with the kinds and objects that cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ApiError, QuestionError, describe
from ..kube import KubeClient, Reflector, Resource
from ..kube.errors import ForbiddenError, NotFoundError
from ..kube.resource import PODS
from ..resourceapi.conversion import GROUP
from .reader import EVERYTHING, gap_of, served, unlisted
from .snapshot import Gap, Snapshot, kind_named, read

JSON = dict[str, Any]
_MALFORMED = (QuestionError, TypeError, KeyError, ValueError, AttributeError)
_REFUSED = (ForbiddenError, NotFoundError)
# Finished pods have no devices and wait for none, and a cluster may keep thousands of them.
_SELECTED = {PODS.plural: "status.phase!=Succeeded,status.phase!=Failed"}


@dataclass
class _WatchedKind:
    """One kind of object. ``refusal`` is set if a list was refused at the start."""

    resource: Resource
    reflector: Reflector
    refusal: Gap | None = None
    objects: dict[str, JSON] = field(default_factory=dict)  # by UID
    unreadable: dict[str, str] = field(default_factory=dict)  # reasons why objects cannot be read, by UID
    listed: asyncio.Event = field(default_factory=asyncio.Event)


class ClusterWatcher:
    """Watches the cluster while :meth:`run` runs. ``version`` grows with each change.

    Args:
        namespace: read this namespace only if a list of all namespaces is refused.
        kinds: the resources to watch.
    """

    def __init__(self, client: KubeClient, namespace: str = "", kinds: Collection[Resource] = EVERYTHING) -> None:
        self.client = client
        self.version = 0
        self._namespace = namespace
        self._wanted = kinds
        self._kinds: list[_WatchedKind] = []
        self._lost_since = 0.0  # unix time at which the API server stopped responding; 0 while it responds

    async def start(self) -> None:
        """Checks which kinds may be read.

        Raises:
            QuestionError: the cluster has no DRA.
            ApiError: the API server failed or could not be reached.
        """
        await served(self.client)
        self._kinds = list(await asyncio.gather(*map(self._kind, self._wanted)))

    async def run(self) -> None:
        """Watches all kinds. Never ends; call :meth:`start` first."""
        async with asyncio.TaskGroup() as tasks:
            for kind in self._kinds:
                tasks.create_task(self._follow(kind), name=f"following {kind.resource.plural}")

    async def wait_listed(self) -> None:
        """Waits until each kind was read once, or refused."""
        await asyncio.gather(*(k.listed.wait() for k in self._kinds if k.refusal is None or k.refusal.read))

    def snapshot(self) -> Snapshot:
        found = {k.resource.plural: tuple(k.objects.values()) for k in self._kinds}
        return Snapshot.by_plural(found, self.gaps, live=True)

    def objects(self, resource: Resource) -> Mapping[str, JSON]:
        """Returns the current objects of one kind, by UID."""
        return next(k.objects for k in self._kinds if k.resource.plural == resource.plural)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why single objects cannot be read."""
        return tuple(why for k in self._kinds for why in k.unreadable.values())

    @property
    def unavailable(self) -> tuple[str, float]:
        """The error if the API server cannot be reached now, and the unix time of its first failure; empty and 0 if it responds."""
        faults = [k.reflector for k in self._kinds if k.reflector.error and not isinstance(k.reflector.error, _REFUSED)]
        if not faults:
            self._lost_since = 0.0
            return "", 0.0
        if not self._lost_since:
            self._lost_since = time.time()
        return faults[0].fault, self._lost_since

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Kinds that may not be read now, or that were not read yet. Permissions may change without a change of any object."""
        out = []
        for kind in self._kinds:
            if isinstance(kind.reflector.error, _REFUSED):
                if kind.reflector.last_message:
                    name = kind.resource.plural
                    why = (
                        f'can no longer list {name}: their last known state is shown; ask for the verb "list" on them'
                        if kind.reflector.fault_of_list
                        else f'cannot watch {name}: they are listed again every 30 s at most; ask for the verb "watch" on them'
                    )
                    out.append(Gap(name, why, kind.reflector.namespace or "all"))
                else:
                    out.append(kind.refusal or gap_of(kind.resource, kind.reflector.namespace, kind.reflector.error))
            elif kind.refusal and (kind.refusal.read or not kind.listed.is_set()):
                out.append(kind.refusal)
            elif not kind.listed.is_set():
                out.append(unlisted(kind.resource, kind.reflector.fault))
        return tuple(out)

    async def _kind(self, resource: Resource) -> _WatchedKind:
        """Checks access to a kind in all namespaces, or in one namespace if the list of all namespaces is refused."""
        versioned = replace(resource, version=await self.client.dra_version()) if resource.group == GROUP else resource
        try:
            await self.client.page(versioned, limit=1)
        except _REFUSED as e:
            gap = gap_of(resource, "", e)
            if resource.namespaced and self._namespace:
                with contextlib.suppress(ApiError):
                    await self.client.page(versioned, self._namespace, limit=1)
                    return self._watched(resource, self._namespace, replace(gap, read=self._namespace))
            return self._watched(resource, "", gap)
        return self._watched(resource, "", None)

    def _watched(self, resource: Resource, namespace: str, refusal: Gap | None) -> _WatchedKind:
        followed = resource.plural if resource.group == GROUP else resource
        return _WatchedKind(
            resource, Reflector(self.client, followed, namespace, _SELECTED.get(resource.plural, "")), refusal
        )

    async def _follow(self, kind: _WatchedKind) -> None:
        async for event in kind.reflector.events():
            self.version += 1
            if event.type == "SYNCED":
                kind.listed.set()
                # The reflector then keeps the converted objects, so that there is one copy of each.
                kind.reflector.items.update({u: o for u, o in kind.objects.items() if u in kind.reflector.items})
                continue
            uid = event.object["metadata"]["uid"]
            kind.unreadable.pop(uid, None)
            kind.objects.pop(uid, None)
            if event.type != "DELETED":
                self._take(kind, uid, event.object)

    def _take(self, kind: _WatchedKind, uid: str, obj: JSON) -> None:
        head = {"kind": kind_named(kind.resource)}
        if kind.reflector.resource is not None:
            head["apiVersion"] = kind.reflector.resource.api_version
        try:
            kind.objects[uid] = kind.reflector.items[uid] = read({**head, **obj}, kind.resource)
        except _MALFORMED as e:
            kind.unreadable[uid] = (
                f"{head['kind']} {obj['metadata']['name']} cannot be read, and is left out: {describe(e)}"
            )


__all__ = ["ClusterWatcher"]
