"""A snapshot from an API server: in pages, in whichever version it serves, with a name for each permission that is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ApiError, QuestionError
from ..kube import KubeClient, Resource
from ..kube.paging import as_json, read_all
from ..kube.resource import CLAIMS, CLASSES, EVENTS, NAMESPACES, NODES, PODS, SLICES, TEMPLATES
from ..resourceapi.conversion import GROUP
from .snapshot import Gap, Snapshot, kind_named, read

JSON = dict[str, Any]
Progress = Callable[[str, int], None]
EVERYTHING: Sequence[Resource] = (PODS, NODES, NAMESPACES, CLAIMS, TEMPLATES, CLASSES, SLICES)
_WHAT_FOR = {
    PODS: "what runs where is not known: nodes look emptier than they are",
    NODES: "labels, taints and free resources of nodes are not known",
    NAMESPACES: "labels of namespaces are not known",
    CLAIMS: "devices that claims hold look free",
    TEMPLATES: "whether a claim's template exists is not known",
    CLASSES: "selectors of classes are not known: more devices seem to fit than do",
    SLICES: "no device is known",
    EVENTS: "what the cluster said is not known",
}


async def served(client: KubeClient) -> str:
    """The version of resource.k8s.io that is asked for.

    Raises :class:`QuestionError` where the cluster does not serve the group, :class:`ApiError` where it does not answer.
    """
    try:
        return await client.dra_version()
    except ApiError as e:
        if e.status != 404:
            raise
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
    """What the cluster has now. What may not be read is in ``gaps``.

    Args:
        namespace: what is tried alone where a list of all namespaces is refused; templates are read of it alone.
        progress: hears how many objects of a resource were read.

    Raises :class:`QuestionError` where the cluster has no DRA, :class:`ApiError` where it does not answer.
    """
    version = await served(client)
    reading = [_all(client, r, version, namespace, progress) for r in kinds]
    found = await asyncio.gather(*reading)
    parts = {r.plural: objects for r, (objects, _) in zip(kinds, found, strict=True)}
    return Snapshot.by_plural(parts, (gap for _, gap in found if gap), live=True)


async def with_events(client: KubeClient, snapshot: Snapshot, namespace: str, uid: str) -> Snapshot:
    """The snapshot with what the cluster said of one object."""
    try:
        events = await _list(client, EVENTS, "v1", namespace, lambda plural, count: None, f"involvedObject.uid={uid}")
    except ApiError as e:
        if e.status not in {403, 404}:
            raise
        return replace(snapshot, gaps=(*snapshot.gaps, gap_of(EVENTS, namespace, e)))
    return replace(snapshot, events=tuple(events))


async def _all(
    client: KubeClient, resource: Resource, version: str, namespace: str, progress: Progress
) -> tuple[list[JSON], Gap | None]:
    """Of all namespaces, or of one where that is all that may be read."""
    scope = namespace if resource is TEMPLATES else ""
    try:
        return await _list(client, resource, version, scope, progress), None
    except ApiError as e:
        if e.status not in {403, 404}:
            raise
        gap = gap_of(resource, scope, e)
    if not resource.namespaced or scope or not namespace:
        return [], gap
    try:
        return await _list(client, resource, version, namespace, progress), replace(gap, read=namespace)
    except ApiError as e:
        if e.status not in {403, 404}:
            raise
        return [], gap


async def _list(
    client: KubeClient, resource: Resource, version: str, namespace: str, progress: Progress, fields: str = ""
) -> list[JSON]:
    asked = replace(resource, version=version) if resource.group == GROUP else resource
    head = {"apiVersion": asked.api_version, "kind": kind_named(resource)}
    return await read_all(
        client,
        asked,
        lambda item: read({**head, **as_json(item)}, resource),
        namespace,
        fields=fields,
        progress=lambda count: progress(resource.plural, count),
    )


def gap_of(resource: Resource, namespace: str, error: ApiError) -> Gap:
    """What it means that a list was refused, or is not served."""
    name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    consequence = _WHAT_FOR[resource]
    if error.status == 404:
        return Gap(resource.plural, f"this cluster does not serve {name}: {consequence}")
    where = f"in namespace {namespace}" if namespace else "in the cluster"
    role = "Role" if namespace else "ClusterRole"
    ask = f'ask for a {role} with verb "list" on "{resource.plural}" of API group "{resource.group}"'
    return Gap(resource.plural, f"cannot list {name} {where}: {consequence}; {ask}")
