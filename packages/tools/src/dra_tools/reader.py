"""Reads a snapshot from an API server, in pages and in the served API version. Describes each missing permission."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dra_devkit.generations import PoolKey, key_of, newest_by_pool
from dra_devkit.kubernetes_releases import API_VERSIONS, POD_GROUP_VERSIONS, all_versions
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, QuestionError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.errors import ForbiddenError, NotFoundError
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    POOL_STATUS_REQUESTS,
    QUOTAS,
    SLICES,
    TAINT_RULES,
    TEMPLATES,
)
from dra_kubeletplugin.resourceapi.conversion import GROUP

from .encoded_objects import ObjectDecoder
from .selected_attributes import selected_attributes
from .snapshot import Gap, Snapshot, kind_named, read
from .waiting_pods import is_reported_in_events, waiting_pods

_MAX_EVENTS_OF = 50  # maximum number of pods whose events are read
Progress = Callable[[str, int], None]
SelectorSource = Callable[[Snapshot], Iterable[Mapping[str, Any]] | None]
EVERYTHING: Sequence[Resource] = (PODS, NODES, NAMESPACES, CLAIMS, TEMPLATES, CLASSES, SLICES, TAINT_RULES, POD_GROUPS)
OPTIONAL = {
    TAINT_RULES: API_VERSIONS,
    POD_GROUPS: POD_GROUP_VERSIONS,
    POOL_STATUS_REQUESTS: all_versions("ResourcePoolStatusRequest"),
}
"""The kinds that not every server serves, each with the versions that are known, preferred first."""
_KINDS_WITH_SELECTORS = {CLAIMS.plural, TEMPLATES.plural, CLASSES.plural}
CONSEQUENCES = {
    PODS.plural: "pods of nodes are not known: nodes look emptier than they are",
    NODES.plural: "labels, taints and free resources of nodes are not known",
    NAMESPACES.plural: "labels of namespaces are not known",
    CLAIMS.plural: "devices that claims hold look free",
    TEMPLATES.plural: "whether a claim's template exists is not known",
    CLASSES.plural: "selectors of classes are not known: more devices seem to fit than really do",
    SLICES.plural: "no device is known",
    TAINT_RULES.plural: "devices that such a rule taints look free",
    POD_GROUPS.plural: "which claims the pods of a group share is not known",
    QUOTAS.plural: "whether a quota refuses pods and claims is not known",
    EVENTS.plural: "causes that only a kubelet or a controller reports are not known",
}


async def served(client: KubeClient) -> str:
    """Returns the version of resource.k8s.io to use.

    Raises:
        QuestionError: the cluster does not serve the group.
        ApiError: the API server failed or could not be reached.
    """
    try:
        return await client.dra_version()
    except NotFoundError as e:
        raise QuestionError(
            f"this cluster does not serve {GROUP} in a version that is known here: {e} "
            "(dynamic resource allocation is on by default from Kubernetes 1.34)"
        ) from None


async def served_as(client: KubeClient, resource: Resource) -> Resource | None:
    """Returns a resource of :data:`OPTIONAL` in the served version; None if the server does not serve it.

    A user without permission gets 403 also for a list of an unserved resource. So this reads the server's lists of resources.

    Raises:
        ApiError: the API server failed or could not be reached.
    """
    for version in OPTIONAL[resource]:
        with contextlib.suppress(ForbiddenError, NotFoundError):
            found = await client.call("GET", f"/apis/{resource.group}/{version}")
            if any(r.get("name") == resource.plural for r in found.get("resources") or []):
                return replace(resource, version=version)
    return None


async def take(
    client: KubeClient,
    namespace: str = "",
    kinds: Collection[Resource] = EVERYTHING,
    progress: Progress = lambda plural, count: None,
    find_selectors: SelectorSource | None = None,
) -> Snapshot:
    """Reads the cluster's current objects. ``gaps`` of the snapshot has the kinds that may not be read.

    Args:
        namespace: read this namespace only if a list of all namespaces is refused.
        progress: called with the plural name of a resource and the number of objects read.
        find_selectors: a function that gets a snapshot without slices, and returns the claims, templates and classes to consider.
            Only device attributes that their selectors and constraints name are read. If it is None or returns None, all attributes
            are read, which needs four times the memory.

    Raises:
        QuestionError: the cluster has no DRA.
        ApiError: the API server failed or could not be reached.
    """
    version = await served(client)
    reader = _Reader(client, version, namespace, progress)
    if find_selectors is None:
        await asyncio.gather(*map(reader.read, kinds))
    else:
        await asyncio.gather(*(reader.read(r) for r in kinds if r is not SLICES))
        without_slices = Snapshot.by_plural(reader.found, reader.gaps.values(), live=True)
        # If selectors cannot be read, any attribute may matter.
        found = None if reader.gaps.keys() & _KINDS_WITH_SELECTORS else find_selectors(without_slices)
        attributes = None if found is None else selected_attributes(found)
        if SLICES in kinds:
            await reader.read(SLICES, attributes)
    return Snapshot.by_plural(reader.found, reader.gaps.values(), live=True, version=await server_version(client))


async def slices_of_incomplete_pools(
    client: KubeClient, resource: Resource, slices: Sequence[JSON], decode: Callable[[msgspec.Raw], JSON] = as_json
) -> dict[PoolKey, list[JSON]]:
    """Returns all slices of each pool that looks incomplete in the slices of one node.

    The others may have no ``nodeName``, such as slices of counters, or may belong to other nodes.

    Raises :class:`.ApiError`.
    """
    pools = newest_by_pool(slices)
    out: dict[PoolKey, list[JSON]] = {
        key: [] for key, parts in pools.items() if len(parts) != parts[0]["spec"]["pool"]["resourceSliceCount"]
    }
    for driver in sorted({driver for driver, _ in out}):
        for sl in await read_all(client, resource, decode, fields=f"spec.driver={driver}"):
            if key_of(sl) in out:
                out[key_of(sl)].append(sl)
    return out


async def server_version(client: KubeClient) -> str:
    """Returns the version of the API server, such as ``v1.36.2``; empty if the server does not report it."""
    with contextlib.suppress(ForbiddenError, NotFoundError):
        return str((await client.call("GET", "/version")).get("gitVersion") or "")
    return ""


async def with_events(client: KubeClient, snapshot: Snapshot, namespace: str, uid: str) -> Snapshot:
    """Returns the snapshot with the events about one object."""
    try:
        events = await _read(client, EVENTS, namespace, f"involvedObject.uid={uid}")
    except (ForbiddenError, NotFoundError) as e:
        return replace(snapshot, gaps=(*snapshot.gaps, gap_of(EVENTS, namespace, e)))
    return replace(snapshot, events=tuple(events))


async def with_quotas(client: KubeClient, snapshot: Snapshot, namespaces: Iterable[str]) -> Snapshot:
    """Returns the snapshot with the ResourceQuotas of namespaces."""
    found, gaps = [], list(snapshot.gaps)
    for namespace in sorted(set(namespaces)):
        try:
            found += await _read(client, QUOTAS, namespace)
        except (ForbiddenError, NotFoundError) as e:
            gaps.append(gap_of(QUOTAS, namespace, e))
    return replace(snapshot, quotas=tuple(found), gaps=tuple(gaps))


async def _read(client: KubeClient, resource: Resource, namespace: str, fields: str = "") -> list[JSON]:
    head = {"apiVersion": resource.api_version, "kind": kind_named(resource)}
    return await read_all(
        client, resource, lambda item: read({**head, **as_json(item)}, resource), namespace, fields=fields
    )


async def with_events_of_waiting(client: KubeClient, snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot with the events of waiting pods whose cause may be only in events."""
    pods = list(filter(is_reported_in_events, waiting_pods(snapshot)))[:_MAX_EVENTS_OF]
    found = await asyncio.gather(*(with_events(client, snapshot, p.namespace, p.uid) for p in pods))
    gaps = dict.fromkeys(g for s in found for g in s.gaps) if found else snapshot.gaps
    return replace(snapshot, events=tuple(e for s in found for e in s.events), gaps=tuple(gaps))


@dataclass
class _Reader:
    """Reads kinds one by one. ``found`` has the objects by plural name, ``gaps`` the kinds that were not read completely."""

    client: KubeClient
    version: str
    namespace: str
    progress: Progress
    found: dict[str, list[JSON]] = field(default_factory=dict)
    gaps: dict[str, Gap] = field(default_factory=dict)

    async def read(self, resource: Resource, attributes: Collection[str] | None = None) -> None:
        """Lists the objects of all namespaces, or of ``namespace`` if a list of all namespaces is refused."""
        name = resource.plural
        if resource in OPTIONAL:
            served_resource = await served_as(self.client, resource)
            if served_resource is None:
                return
            resource = served_resource
        try:
            self.found[name] = await self._list(resource, "", attributes)
            return
        except (ForbiddenError, NotFoundError) as e:
            self.gaps[name] = gap_of(resource, "", e)
        if not resource.namespaced or not self.namespace:
            return
        with contextlib.suppress(ForbiddenError, NotFoundError):
            self.found[name] = await self._list(resource, self.namespace, attributes)
            self.gaps[name] = replace(self.gaps[name], read=self.namespace)

    async def _list(self, resource: Resource, namespace: str, attributes: Collection[str] | None) -> list[JSON]:
        of_dra = resource.group == GROUP and resource.plural != TAINT_RULES.plural
        versioned = replace(resource, version=self.version) if of_dra else resource
        decoder = ObjectDecoder(versioned, attributes)
        return await read_all(
            self.client,
            versioned,
            decoder.decode,
            namespace,
            checked=False,
            progress=lambda count: self.progress(resource.plural, count),
        )


def objects_with_selectors(snapshot: Snapshot) -> Iterable[JSON]:
    """Returns all objects with selectors, for :func:`take`."""
    return (*snapshot.claims, *snapshot.templates, *snapshot.classes)


def unlisted(resource: Resource, fault: str) -> Gap:
    """Returns the gap for a kind whose first list has not ended. ``fault`` is the last error; empty if there was none."""
    why = f": {fault}" if fault else ", because the list has not ended"
    return Gap(resource.plural, f"{resource.plural} are not read yet{why}: {CONSEQUENCES[resource.plural]}")


def gap_of(resource: Resource, namespace: str, error: ApiError) -> Gap:
    """Returns the gap for a list that was refused or is not served."""
    name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    consequence = CONSEQUENCES[resource.plural]
    if isinstance(error, NotFoundError):
        return Gap(resource.plural, f"this cluster does not serve {name}: {consequence}")
    where = f"in namespace {namespace}" if namespace else "in the cluster"
    role = "Role" if namespace else "ClusterRole"
    ask = f'ask for a {role} with verb "list" on "{resource.plural}" of API group "{resource.group}"'
    return Gap(resource.plural, f"cannot list {name} {where}: {consequence}; {ask}")
