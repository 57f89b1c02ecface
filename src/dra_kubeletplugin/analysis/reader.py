"""Reads a snapshot from an API server, in pages and in the served API version. Describes each missing permission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ApiError, QuestionError
from ..kube import KubeClient, Resource
from ..kube.errors import ForbiddenError, NotFoundError
from ..kube.paging import as_json, read_all
from ..kube.resource import CLAIMS, CLASSES, EVENTS, NAMESPACES, NODES, PODS, SLICES, TEMPLATES
from ..resourceapi.conversion import GROUP
from .snapshot import Gap, Snapshot, kind_named, read

JSON = dict[str, Any]
Progress = Callable[[str, int], None]
EVERYTHING: Sequence[Resource] = (PODS, NODES, NAMESPACES, CLAIMS, TEMPLATES, CLASSES, SLICES)
_CONSEQUENCES = {
    PODS: "pods of nodes are not known: nodes look emptier than they are",
    NODES: "labels, taints and free resources of nodes are not known",
    NAMESPACES: "labels of namespaces are not known",
    CLAIMS: "devices that claims hold look free",
    TEMPLATES: "whether a claim's template exists is not known",
    CLASSES: "selectors of classes are not known: more devices seem to fit than really do",
    SLICES: "no device is known",
    EVENTS: "events of the cluster are not known",
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


async def take(
    client: KubeClient,
    namespace: str = "",
    kinds: Collection[Resource] = EVERYTHING,
    progress: Progress = lambda plural, count: None,
) -> Snapshot:
    """Reads the cluster's current objects. ``gaps`` of the snapshot has the kinds that may not be read.

    Args:
        namespace: read this namespace only if a list of all namespaces is refused. Templates are always read
                from this namespace only.
        progress: called with the plural name of a resource and the number of objects read.

    Raises:
        QuestionError: the cluster has no DRA.
        ApiError: the API server failed or could not be reached.
    """
    version = await served(client)
    reading = [_all(client, r, version, namespace, progress) for r in kinds]
    found = await asyncio.gather(*reading)
    parts = {r.plural: objects for r, (objects, _) in zip(kinds, found, strict=True)}
    return Snapshot.by_plural(parts, (gap for _, gap in found if gap), live=True)


async def with_events(client: KubeClient, snapshot: Snapshot, namespace: str, uid: str) -> Snapshot:
    """Returns the snapshot with the events about one object."""
    try:
        events = await _list(client, EVENTS, "v1", namespace, lambda plural, count: None, f"involvedObject.uid={uid}")
    except (ForbiddenError, NotFoundError) as e:
        return replace(snapshot, gaps=(*snapshot.gaps, gap_of(EVENTS, namespace, e)))
    return replace(snapshot, events=tuple(events))


async def _all(
    client: KubeClient, resource: Resource, version: str, namespace: str, progress: Progress
) -> tuple[list[JSON], Gap | None]:
    """Lists the objects of all namespaces, or of ``namespace`` if a list of all namespaces is refused."""
    scope = namespace if resource is TEMPLATES else ""
    try:
        return await _list(client, resource, version, scope, progress), None
    except (ForbiddenError, NotFoundError) as e:
        gap = gap_of(resource, scope, e)
    if not resource.namespaced or scope or not namespace:
        return [], gap
    try:
        return await _list(client, resource, version, namespace, progress), replace(gap, read=namespace)
    except (ForbiddenError, NotFoundError):
        return [], gap


async def _list(
    client: KubeClient, resource: Resource, version: str, namespace: str, progress: Progress, fields: str = ""
) -> list[JSON]:
    versioned = replace(resource, version=version) if resource.group == GROUP else resource
    head = {"apiVersion": versioned.api_version, "kind": kind_named(resource)}
    return await read_all(
        client,
        versioned,
        lambda item: read({**head, **as_json(item)}, resource),
        namespace,
        fields=fields,
        progress=lambda count: progress(resource.plural, count),
    )


def unlisted(resource: Resource, fault: str) -> Gap:
    """Returns the gap for a kind whose first list has not ended. ``fault`` is the last error; empty if there was none."""
    why = f": {fault}" if fault else ", because the list has not ended"
    return Gap(resource.plural, f"{resource.plural} are not read yet{why}: {_CONSEQUENCES[resource]}")


def gap_of(resource: Resource, namespace: str, error: ApiError) -> Gap:
    """Returns the gap for a list that was refused or is not served."""
    name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    consequence = _CONSEQUENCES[resource]
    if isinstance(error, NotFoundError):
        return Gap(resource.plural, f"this cluster does not serve {name}: {consequence}")
    where = f"in namespace {namespace}" if namespace else "in the cluster"
    role = "Role" if namespace else "ClusterRole"
    ask = f'ask for a {role} with verb "list" on "{resource.plural}" of API group "{resource.group}"'
    return Gap(resource.plural, f"cannot list {name} {where}: {consequence}; {ask}")
