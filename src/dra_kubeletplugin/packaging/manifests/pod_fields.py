"""The Kubernetes fields that an operator can set on a driver's pods, and how they change a manifest."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .source import JSON, Manifest, Source

ALL = "all"
PODS = {"node": "plugin", "controller": "controller", "webhook": "webhook"}
"""The name of a pod in the values, by its source file."""
Given = Mapping[str, Any]
"""Value by field name."""


@dataclass(frozen=True)
class Field:
    """One field.

    Args:
        of: the part of the pod that has the field: ``metadata``, ``spec`` or the only container.
        adds: whether the value is added to the manifest's value; otherwise the value replaces it, even with an empty value.
    """

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


def of_pods(values: Mapping[str, Given]) -> dict[str, Given]:
    """Returns the fields of each pod by source file, from the value ``pods``.

    A field of the pod itself overrides the same field of ``all``.
    """

    def fields_of(pod: str) -> Given:
        return {name: value for name, value in (values.get(pod) or {}).items() if value is not None}

    return {file: {**fields_of(ALL), **fields_of(pod)} for file, pod in PODS.items()}


def workloads(source: Source) -> Iterator[tuple[str, Manifest]]:
    """Yields the manifests that have a pod template, each with its source file."""
    for file, manifests in source.manifests.items():
        yield from ((file, m) for m in manifests if m.kind in {"DaemonSet", "Deployment"})


def template_with(template: JSON, values: Given) -> JSON:
    """Returns a pod's template with these fields set."""
    out = copy.deepcopy(template)
    for name, value in values.items():
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


def patch(template: JSON, values: Given) -> JSON:
    """Returns the strategic merge patch that turns a workload's template into :func:`template_with`.

    The patch matches list items by name.
    """
    out: JSON = {"metadata": {}, "spec": {"containers": [{"name": template["spec"]["containers"][0]["name"]}]}}
    for name, value in values.items():
        field = FIELDS[name]
        whole = isinstance(value, dict) and not field.adds
        _owner(out, field.of)[name] = {"$patch": "replace", **value} if whole else value
    return {"spec": {"template": {key: part for key, part in out.items() if part}}}


def _owner(template: JSON, of: str) -> JSON:
    owner: JSON = template["spec"]["containers"][0] if of == CONTAINER else template.setdefault(of, {})
    return owner
