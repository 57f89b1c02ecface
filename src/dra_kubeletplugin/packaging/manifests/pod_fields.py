"""Fields of Kubernetes' own that whoever runs a cluster gives to the pods of a driver: what there are, and what they make of a manifest."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .source import JSON, Manifest, Source

ALL = "all"
PODS = {"node": "plugin", "controller": "controller", "webhook": "webhook"}
"""The name of a pod in values, by the file of the source that has it."""
Given = Mapping[str, Any]
"""Value by the name of its field."""


@dataclass(frozen=True)
class Field:
    """``of`` is what has it: a pod's ``metadata`` or ``spec``, or its only container. ``adds``: what is given comes beside what the
    manifest has; else in its place, also where it is empty."""

    name: str
    of: str
    adds: bool = False


METADATA, SPEC, CONTAINER = "metadata", "spec", "container"
FIELDS = {
    field.name: field
    for field in (
        Field("annotations", METADATA, adds=True),
        Field("labels", METADATA, adds=True),
        Field("nodeSelector", SPEC),
        Field("tolerations", SPEC),
        Field("affinity", SPEC),
        Field("topologySpreadConstraints", SPEC),
        Field("priorityClassName", SPEC),
        Field("imagePullSecrets", SPEC),
        Field("volumes", SPEC, adds=True),
        Field("imagePullPolicy", CONTAINER),
        Field("resources", CONTAINER),
        Field("env", CONTAINER, adds=True),
        Field("volumeMounts", CONTAINER, adds=True),
    )
}


def of_pods(given: Mapping[str, Given]) -> dict[str, Given]:
    """The fields of each pod, by the file of the source, of the value ``pods``: its own, else those of all."""

    def said(pod: str) -> Given:
        return {name: value for name, value in (given.get(pod) or {}).items() if value is not None}

    return {file: {**said(ALL), **said(pod)} for file, pod in PODS.items()}


def workloads(source: Source) -> Iterator[tuple[str, Manifest]]:
    """The manifest that has a pod, and the file of the source where it stands."""
    for file, manifests in source.manifests.items():
        yield from ((file, m) for m in manifests if m.kind in {"DaemonSet", "Deployment"})


def template_with(template: JSON, given: Given) -> JSON:
    """A pod's template with these fields."""
    out = copy.deepcopy(template)
    for name, value in given.items():
        field = FIELDS[name]
        owner = _owner(out, field.of)
        old = owner.get(name)
        if field.adds and isinstance(old, dict) and isinstance(value, dict):
            owner[name] = old | value
        elif field.adds and isinstance(old, list) and isinstance(value, list):
            owner[name] = old + value
        else:
            owner[name] = value
    return out


def patch(template: JSON, given: Given) -> JSON:
    """What makes :func:`template_with` of a workload's template: a strategic merge patch, which tells items by their names."""
    out: JSON = {"metadata": {}, "spec": {"containers": [{"name": template["spec"]["containers"][0]["name"]}]}}
    for name, value in given.items():
        field = FIELDS[name]
        whole = isinstance(value, dict) and not field.adds
        _owner(out, field.of)[name] = {"$patch": "replace", **value} if whole else value
    return {"spec": {"template": {key: part for key, part in out.items() if part}}}


def _owner(template: JSON, of: str) -> JSON:
    owner: JSON = template["spec"]["containers"][0] if of == CONTAINER else template.setdefault(of, {})
    return owner
