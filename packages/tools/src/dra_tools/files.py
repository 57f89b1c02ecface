"""Reads objects from files as kubectl does: YAML or JSON, several documents, lists split into items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
    TEMPLATES,
    Resource,
)

from .reader import CONSEQUENCES
from .scheduler_view import named_requests
from .snapshot import Gap, Snapshot
from .waiting_pods import asks, is_reported_in_events, waiting_pods, waits_for_claims


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """Returns the objects of all files. In a directory, it reads the files that end in .yaml, .yml or .json.

    Raises:
        QuestionError: a file is invalid; ``faults`` has a sentence for each fault, with file and line.
    """
    from dra_devkit.yaml import manifests  # imports YAML, which questions about a live cluster do not need

    return [m.value for m in manifests.objects(paths)]


def snapshot_of(objects: Iterable[JSON], version: str = "") -> Snapshot:
    """Returns the snapshot of objects that `kubectl get` wrote.

    Args:
        version: the version of the API server, if it is known.

    It has a gap for each kind that decides a result and that the objects do not contain, because the kind was probably not exported:
    an object that is absent from the files is not absent from the cluster.

    Raises:
        QuestionError: an object has no kind or no name.
    """
    found = Snapshot.of(objects)
    specs = [*(c["spec"] for c in found.claims), *(t["spec"]["spec"] for t in found.templates)]
    requests = [one for spec in specs for _, one in named_requests(spec)]
    waiting = waiting_pods(found)
    needed = {
        PODS: True,
        NODES: True,
        SLICES: True,
        CLAIMS: True,
        CLASSES: bool(requests or any(map(asks, waiting))),
        NAMESPACES: any(one.get("adminAccess") for one in requests) or any(map(_selects_namespaces, waiting)),
        TEMPLATES: any(map(waits_for_claims, waiting)),
        EVENTS: any(map(is_reported_in_events, waiting)),
    }
    return replace(
        found,
        version=version,
        gaps=tuple(_absent(found, r) for r, is_needed in needed.items() if is_needed and not found.objects[r.plural]),
    )


def _absent(found: Snapshot, resource: Resource) -> Gap:
    """Returns the gap for a kind without a readable object in the files."""
    name = resource.plural
    has = "no" if found.is_complete(resource) else "no readable"
    return Gap(name, f"the files contain {has} {name}: {CONSEQUENCES[name]}")


def _selects_namespaces(pod: PodInfo) -> bool:
    return any("namespaceSelector" in term for kind in ("podAffinity", "podAntiAffinity") for term in pod.terms(kind))
