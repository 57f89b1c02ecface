"""Sets the Kubernetes fields that an operator chose for a driver's pods.

For Helm, the template ``dra.workload`` in ``_helpers.tpl`` does the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from .source_reader import PODS, ManifestSource, SourceManifest

ALL = "all"
"""The key in the values under which fields for all pods are."""
FieldValues = Mapping[str, Any]
"""Kubernetes fields of a pod: name → value."""


def fields_by_pod(values: Mapping[str, FieldValues]) -> dict[str, FieldValues]:
    """Returns the fields of each pod from the value ``pods``. A field under the pod's name overrides the same field under ``all``."""

    def fields_of(pod: str) -> FieldValues:
        return {name: value for name, value in (values.get(pod) or {}).items() if value is not None}

    return {pod: {**fields_of(ALL), **fields_of(pod)} for pod in PODS}


def workloads(source: ManifestSource) -> Iterator[tuple[str, SourceManifest]]:
    """Yields the manifests that have a pod template, each after the name of its pod."""
    for pod in PODS:
        yield from ((pod, m) for m in source.manifests[pod] if m.kind in {"DaemonSet", "Deployment"})


def template_with(source: ManifestSource, template: JSON, values: FieldValues) -> JSON:
    """Returns a pod's template with these fields set."""
    out = copy.deepcopy(template)
    for name, value in values.items():
        field = source.pod_fields[name]
        part = part_of(out, field.of)
        old = part.get(name)
        if field.adds and isinstance(old, dict) and isinstance(value, dict):
            part[name] = old | value
        elif field.adds and isinstance(old, list) and isinstance(value, list):
            part[name] = old + value
        else:
            part[name] = value
    return out


def template_patch(source: ManifestSource, template: JSON, values: FieldValues) -> JSON:
    """Returns the strategic merge patch that changes a workload's template to the result of :func:`template_with`."""
    out: JSON = {"metadata": {}, "spec": {"containers": [{"name": template["spec"]["containers"][0]["name"]}]}}
    for name, value in values.items():
        field = source.pod_fields[name]
        whole = isinstance(value, dict) and not field.adds
        part_of(out, field.of)[name] = {"$patch": "replace", **value} if whole else value
    return {"spec": {"template": {key: part for key, part in out.items() if part}}}


def part_of(template: JSON, of: str) -> JSON:
    """Returns the part ``of`` of a pod's template: ``metadata``, ``spec``, or ``container`` for the first container."""
    part: JSON = template["spec"]["containers"][0] if of == "container" else template.setdefault(of, {})
    return part
