"""Reads objects from files as kubectl does: YAML or JSON, several documents, lists split into items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..kube.resource import TEMPLATES
from .snapshot import Gap, Snapshot
from .waiting_pods import waiting_pods

JSON = dict[str, Any]
_WITHOUT_TEMPLATES = Gap(
    TEMPLATES.plural, "the files contain no resourceclaimtemplates: whether a claim's template exists is not known"
)


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """Returns the objects of all files. In a directory, it reads the files that end in .yaml, .yml or .json.

    Raises:
        QuestionError: a file is invalid; ``faults`` has a sentence for each fault, with file and line.
    """
    from ..base.yaml import manifests  # imports YAML, which questions about a live cluster do not need

    return [m.value for m in manifests.objects(paths)]


def snapshot_of(objects: Iterable[JSON]) -> Snapshot:
    """Returns the snapshot of objects that `kubectl get` wrote.

    It has a gap if a pod waits for a claim from a template and the objects contain no template: probably, templates were not exported.

    Raises:
        QuestionError: an object has no kind or no name.
    """
    found = Snapshot.of(objects)
    lacks = not found.templates and any(_waits_for_template(pod.pod) for pod in waiting_pods(found))
    return replace(found, gaps=(_WITHOUT_TEMPLATES,)) if lacks else found


def _waits_for_template(pod: Mapping[str, Any]) -> bool:
    made = {s["name"] for s in (pod.get("status") or {}).get("resourceClaimStatuses") or []}
    entries = pod["spec"].get("resourceClaims") or []
    return any(e.get("resourceClaimTemplateName") and e["name"] not in made for e in entries)
