"""Watches the objects of a cluster. Returns a :class:`Snapshot` at any moment, with the kinds and objects that cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, QuestionError, describe
from dra_kubeletplugin.kube import KubeClient, Reflector, Resource
from dra_kubeletplugin.kube.errors import ForbiddenError, NotFoundError
from dra_kubeletplugin.kube.reflector import Event
from dra_kubeletplugin.kube.resource import PODS, TAINT_RULES
from dra_kubeletplugin.resourceapi.conversion import GROUP

from .encoded_objects import ObjectDecoder
from .reader import EVERYTHING, OPTIONAL, gap_of, served, served_as, server_version, unlisted
from .snapshot import Gap, Snapshot, kind_named

_MALFORMED = (QuestionError, ApiError, TypeError, KeyError, ValueError, AttributeError)
_REFUSED = (ForbiddenError, NotFoundError)
# Finished pods are not listed, because they neither have nor wait for devices. Running pods are most of the objects of a cluster.
# They are listed last, because only the reasons of waiting pods need them.
_WAITING = "status.phase!=Running,status.phase!=Succeeded,status.phase!=Failed"
_RUNNING = "status.phase=Running"
_FIRST = 60.0  # timeout in seconds for the other lists, after which running pods are listed


@dataclass
class _WatchedKind:
    """One kind of object, or a part of its objects. ``refusal`` is set if a list was refused at the start."""

    resource: Resource
    reflector: Reflector
    refusal: Gap | None = None
    is_last: bool = False
    decoder: ObjectDecoder | None = None
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
        self._server = ""  # the version of the API server
        self._lost_since = 0.0  # unix time at which the API server stopped responding; 0 while it responds

    async def start(self) -> None:
        """Checks which kinds may be read.

        Raises:
            QuestionError: the cluster has no DRA.
            ApiError: the API server failed or could not be reached.
        """
        await served(self.client)
        self._server = await server_version(self.client)
        wanted = [await served_as(self.client, r) if r in OPTIONAL else r for r in self._wanted]
        found = await asyncio.gather(*(self._kind(r) for r in wanted if r))
        self._kinds = [kind for kinds in found for kind in kinds]

    async def run(self) -> None:
        """Watches all kinds. Never ends; call :meth:`start` first."""
        async with asyncio.TaskGroup() as tasks:
            for kind in sorted(self._kinds, key=lambda k: k.is_last):
                if kind.is_last:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_FIRST):
                            await self.wait_devices()
                tasks.create_task(self._follow(kind), name=f"following {kind.resource.plural}")

    async def wait_listed(self) -> None:
        """Waits until each kind was read once, or refused."""
        await self._listed(self._kinds)

    async def wait_devices(self) -> None:
        """Waits like :meth:`wait_listed`, but not for running pods: the snapshot has all devices, claims and waiting pods."""
        await self._listed(k for k in self._kinds if not k.is_last)

    @staticmethod
    async def _listed(kinds: Iterable[_WatchedKind]) -> None:
        await asyncio.gather(*(k.listed.wait() for k in kinds if k.refusal is None or k.refusal.read))

    def snapshot(self) -> Snapshot:
        found = {r.plural: tuple(self.objects(r).values()) for r in self._wanted}
        return Snapshot.by_plural(found, self.gaps, live=True, version=self._server)

    def objects(self, resource: Resource) -> Mapping[str, JSON]:
        """Returns the current objects of one kind, by UID. A pod that has just started may be in both lists; the running one is used."""
        parts = [k.objects for k in self._kinds if k.resource.plural == resource.plural]
        return parts[0] if len(parts) == 1 else ChainMap(*reversed(parts))

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why single objects cannot be read."""
        return tuple(dict.fromkeys(why for k in self._kinds for why in k.unreadable.values()))

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
            elif not kind.listed.is_set() and (kind.reflector.fault or not kind.is_last):
                out.append(unlisted(kind.resource, kind.reflector.fault))
        return tuple(dict.fromkeys(out))

    async def _kind(self, resource: Resource) -> list[_WatchedKind]:
        """Checks access to a kind in all namespaces, or in one namespace if the list of all namespaces is refused."""
        versioned = await self.client.dra(resource.plural) if _is_of_dra(resource) else resource
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

    def _watched(self, resource: Resource, namespace: str, refusal: Gap | None) -> list[_WatchedKind]:
        followed = resource.plural if _is_of_dra(resource) else resource
        return [
            _WatchedKind(resource, Reflector(self.client, followed, namespace, fields), refusal, fields == _RUNNING)
            for fields in ((_WAITING, _RUNNING) if resource is PODS else ("",))
        ]

    async def _follow(self, kind: _WatchedKind) -> None:
        async for event in kind.reflector.events():
            if event.type == "SYNCED":
                kind.listed.set()
                self.version += 1
                continue
            uid = event.uid
            if event.type == "DELETED":
                kind.unreadable.pop(uid, None)
                kind.objects.pop(uid, None)
                self.version += 1
            else:
                self._take(kind, uid, event)

    def _take(self, kind: _WatchedKind, uid: str, event: Event) -> None:
        """Records an object. If only fields changed that are not read, such as a node's heartbeat, the stored object stays the same."""
        resource = kind.reflector.resource
        assert resource is not None  # the reflector has listed it
        if kind.decoder is None or kind.decoder.resource != resource:
            kind.decoder = ObjectDecoder(resource)
        try:
            obj = kind.decoder.decode(event.encoded)
        except _MALFORMED as e:
            name = f"{kind_named(resource)} {event.name}"
            kind.unreadable[uid] = f"{name} cannot be read, and is left out: {describe(e)}"
            kind.objects.pop(uid, None)
        else:
            if uid not in kind.unreadable and kind.objects.get(uid) == obj:
                return
            kind.unreadable.pop(uid, None)
            kind.objects[uid] = obj
        self.version += 1


def _is_of_dra(resource: Resource) -> bool:
    """Returns whether the version of a resource is the version of resource.k8s.io that the client uses."""
    return resource.group == GROUP and resource.plural != TAINT_RULES.plural
