"""Checks the pod fields in a driver's values: sets them in the pod, and validates the pod with the API server's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from ...near_names import nearest_or_all
from ...yaml.manifests import PlacedText
from . import pod_fields
from .source_reader import PODS, ManifestSource

_KNOWN = (pod_fields.ALL, *PODS)
REPLACES_NODE_LABEL = (
    "this affinity would replace the affinity of the feature nodeLabel: add the label here, or switch nodeLabel off"
)
OWN_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component")
# The path of an error has these parts: metadata, first container or spec; the name of the field; the index, if the field is a list.
_PLACE = re.compile(r"(?:metadata|spec\.containers\[0\]|spec)\.(\w+)(?:\[(\d+)\])?(.*)", re.DOTALL)


def pod_value_errors(source: ManifestSource, pods: Mapping[str, Any], on: Set[str]) -> Iterator[PlacedText]:
    """Yields the errors in the value ``pods``.

    Args:
        on: the features that are on.
    """
    valid: dict[str, pod_fields.FieldValues] = {}
    for pod, fields in pods.items():
        if pod not in _KNOWN:
            yield PlacedText(f"pods.{pod}", f"no such pod{nearest_or_all(pod, _KNOWN)}")
        elif isinstance(fields, dict):
            for name in fields:
                if name not in source.pod_fields:
                    yield PlacedText(f"pods.{pod}.{name}", f"no such field{nearest_or_all(name, source.pod_fields)}")
            valid[pod] = {name: value for name, value in fields.items() if name in source.pod_fields}
            yield from _reserved_names(source, pod, fields)
        elif fields is not None:
            yield PlacedText(f"pods.{pod}", "not a mapping of fields to values")
    if "nodeLabel" in on and (where := _origin(valid, "plugin", "affinity")):
        yield PlacedText(f"pods.{where}.affinity", REPLACES_NODE_LABEL)
    yield from dict.fromkeys(fault for pod in PODS for fault in _errors_of_pod(source, pod, valid, on))


def pod_value_warnings(pods: Mapping[str, Any], on: Set[str]) -> Iterator[PlacedText]:
    """Yields a warning for each pod with fields that is not deployed, because its feature is off."""
    for pod in ("supervisor", "controller", "webhook"):
        if pods.get(pod) and pod not in on:
            yield PlacedText(f"pods.{pod}", f"features.{pod} is off, so there is no such pod")


def _origin(valid: Mapping[str, pod_fields.FieldValues], pod: str, name: str) -> str:
    return next((p for p in (pod, pod_fields.ALL) if valid.get(p, {}).get(name) is not None), "")


def _reserved_names(source: ManifestSource, pod: str, own: pod_fields.FieldValues) -> Iterator[PlacedText]:
    """Yields errors about labels and variables that the manifests set themselves. The API server would not report these."""
    labels, env = own.get("labels"), own.get("env")
    for label in OWN_LABELS:
        if isinstance(labels, dict) and label in labels:
            yield PlacedText(f"pods.{pod}.labels.{label}", "this label selects the driver's pods: choose another")
    for i, variable in enumerate(env if isinstance(env, list) else ()):
        if isinstance(variable, dict) and variable.get("name") in source.variables:
            yield PlacedText(f"pods.{pod}.env[{i}].name", f"{variable['name']} is set by the manifests themselves")


def _errors_of_pod(
    source: ManifestSource, pod: str, valid: Mapping[str, pod_fields.FieldValues], on: Set[str]
) -> Iterator[PlacedText]:
    fields = pod_fields.fields_by_pod(valid)[pod]
    if not fields:
        return
    from ...localcluster.apiserver import manifest_validation  # imported only if pod fields are set

    (manifest,) = (m for name, m in pod_fields.workloads(source) if name == pod)
    examples = {p.name: "x" if p.default is None else p.default for p in source.parameters.values()}
    template = manifest.render(on, examples)["spec"]["template"]
    changed = pod_fields.template_with(source, template, fields)
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {**changed["metadata"], "name": "pod"}}
    for fault in manifest_validation.object_errors(head | {"spec": changed["spec"]}):
        place = _PLACE.fullmatch(fault.path)
        assert place is not None, fault  # about one of the fields, because the pod of the manifest is valid
        name, index, below = place.groups()
        if index:  # the index in the error also counts the items of the manifest, which come first
            added = len(fields[name])
            index = f"[{int(index) - len(pod_fields.part_of(changed, source.pod_fields[name].of)[name]) + added}]"
        yield PlacedText(f"pods.{_origin(valid, pod, name)}.{name}{index or ''}{below}", fault.text)
