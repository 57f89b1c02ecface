"""The objects of a cluster as they are now, kept by watches: a :class:`Snapshot` at any moment, and what is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ApiError, QuestionError, describe
from ..kube import KubeClient, Reflector, Resource
from ..kube.resource import PODS
from ..resourceapi.conversion import GROUP
from .reader import EVERYTHING, gap_of, served
from .snapshot import Gap, Snapshot, kind_named, read

JSON = dict[str, Any]
_ODD = (QuestionError, TypeError, KeyError, ValueError, AttributeError)
_REFUSED = {403, 404}
# Finished pods hold nothing and wait for nothing, and a cluster may keep thousands of them.
_SELECTED = {PODS.plural: "status.phase!=Succeeded,status.phase!=Failed"}


@dataclass
class _Kind:
    """One kind of object. ``refusal`` is why a list was refused at the start, where it was."""

    resource: Resource
    reflector: Reflector
    refusal: Gap | None = None
    objects: dict[str, JSON] = field(default_factory=dict)  # by UID
    odd: dict[str, str] = field(default_factory=dict)  # what cannot be read, by UID
    listed: asyncio.Event = field(default_factory=asyncio.Event)


class ClusterWatcher:
    """Follows while :meth:`run` runs. ``version`` grows with whatever changes.

    Args:
        namespace: what is tried alone where a list of all namespaces is refused.
    """

    def __init__(self, client: KubeClient, namespace: str = "", kinds: Collection[Resource] = EVERYTHING) -> None:
        self.client = client
        self.version = 0
        self._namespace = namespace
        self._wanted = kinds
        self._kinds: list[_Kind] = []
        self._lost = 0.0  # unix seconds; 0 while the server answers

    async def start(self) -> None:
        """Asks what may be read.

        Raises :class:`QuestionError` where the cluster has no DRA, :class:`ApiError` where it does not answer.
        """
        await served(self.client)
        self._kinds = list(await asyncio.gather(*map(self._kind, self._wanted)))

    async def run(self) -> None:
        """Never ends; :meth:`start` comes before it."""
        async with asyncio.TaskGroup() as tasks:
            for kind in self._kinds:
                tasks.create_task(self._follow(kind), name=f"following {kind.resource.plural}")

    async def looked(self) -> None:
        """Waits until each kind was read once, or refused."""
        await asyncio.gather(*(k.listed.wait() for k in self._kinds if k.refusal is None or k.refusal.read))

    def snapshot(self) -> Snapshot:
        found = {k.resource.plural: tuple(k.objects.values()) for k in self._kinds}
        return Snapshot.by_plural(found, self.gaps, live=True)

    def objects(self, resource: Resource) -> Mapping[str, JSON]:
        """Of one kind, by UID, as they are now."""
        return next(k.objects for k in self._kinds if k.resource.plural == resource.plural)

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be read though it may be."""
        return tuple(why for k in self._kinds for why in k.odd.values())

    @property
    def away(self) -> tuple[str, float]:
        """Why the API server is not heard now, and since when (unix seconds); empty and 0 while it is."""
        faults = [k.reflector for k in self._kinds if k.reflector.fault and k.reflector.fault_status not in _REFUSED]
        if not faults:
            self._lost = 0.0
            return "", 0.0
        if not self._lost:
            self._lost = time.time()
        return faults[0].fault, self._lost

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What may not be read now. Permissions come and go without a change of any object."""
        out = []
        for kind in self._kinds:
            if kind.reflector.fault and kind.reflector.fault_status in _REFUSED:
                if kind.reflector.heard:
                    name = kind.resource.plural
                    why = (
                        f'cannot list {name} any more: they are shown as they last were; ask for the verb "list" on them'
                        if kind.reflector.fault_of_list
                        else f'cannot watch {name}: they are read anew every 30 s at most; ask for the verb "watch" on them'
                    )
                    out.append(Gap(name, why, kind.reflector.namespace or "all"))
                else:
                    error = ApiError(kind.reflector.fault, status=kind.reflector.fault_status)
                    out.append(kind.refusal or gap_of(kind.resource, kind.reflector.namespace, error))
            elif kind.refusal and kind.refusal.read:
                out.append(kind.refusal)
        return tuple(out)

    async def _kind(self, resource: Resource) -> _Kind:
        """Of all namespaces, or of one where that is all that may be read."""
        asked = replace(resource, version=await self.client.dra_version()) if resource.group == GROUP else resource
        try:
            await self.client.page(asked, limit=1)
        except ApiError as e:
            if e.status not in _REFUSED:
                raise
            gap = gap_of(resource, "", e)
            if resource.namespaced and self._namespace:
                with contextlib.suppress(ApiError):
                    await self.client.page(asked, self._namespace, limit=1)
                    return self._made(resource, self._namespace, replace(gap, read=self._namespace))
            return self._made(resource, "", gap)
        return self._made(resource, "", None)

    def _made(self, resource: Resource, namespace: str, refusal: Gap | None) -> _Kind:
        followed = resource.plural if resource.group == GROUP else resource
        return _Kind(resource, Reflector(self.client, followed, namespace, _SELECTED.get(resource.plural, "")), refusal)

    async def _follow(self, kind: _Kind) -> None:
        async for event in kind.reflector.events():
            self.version += 1
            if event.type == "SYNCED":
                kind.listed.set()
                # One copy of each object: the one that was read.
                kind.reflector.items.update({u: o for u, o in kind.objects.items() if u in kind.reflector.items})
                continue
            uid = event.object["metadata"]["uid"]
            kind.odd.pop(uid, None)
            kind.objects.pop(uid, None)
            if event.type != "DELETED":
                self._take(kind, uid, event.object)

    def _take(self, kind: _Kind, uid: str, obj: JSON) -> None:
        head = {"kind": kind_named(kind.resource)}
        if kind.reflector.resource is not None:
            head["apiVersion"] = kind.reflector.resource.api_version
        try:
            kind.objects[uid] = kind.reflector.items[uid] = read({**head, **obj}, kind.resource)
        except _ODD as e:
            kind.odd[uid] = f"{head['kind']} {obj['metadata']['name']} cannot be read, and is left out: {describe(e)}"


__all__ = ["ClusterWatcher"]
