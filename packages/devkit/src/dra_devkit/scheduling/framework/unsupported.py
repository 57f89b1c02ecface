"""Finds features of a pod that the local scheduler does not support.

``localcluster/scheduler/loop.py`` leaves such a pod pending, with a message for each feature. ``dra explain`` and ``dra simulate``
name the features in notes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from . import spread
from .pod_info import PodInfo

PREFIX = "not supported by the local cluster: "
_VOLUMES = {"persistentVolumeClaim", "ephemeral", "csi"}
_CLAIM_FIELDS = {"name", "resourceClaimName", "resourceClaimTemplateName"}
_GROUPS = ("workloadRef", "podGroupName")  # fields of 1.35
_GROUP_FIELDS = {"schedulingPolicy", "resourceClaims", "podGroupTemplateRef", "workloadRef"}
# The default disruption mode, in the forms of 1.36 and 1.37.
_DEFAULT_DISRUPTION_MODES: tuple[Any, ...] = ("Pod", {"single": {}})
_TOLERATION_OPERATORS = {"", "Equal", "Exists"}


def reasons(pod: PodInfo, group: ReadOnlyJSON | None = None) -> list[str]:
    """Returns one sentence per unsupported feature; empty if there is none. ``group`` is the pod's PodGroup."""
    found = [*_found(pod.spec), *(_of_group(group) if group is not None else ())]
    return [PREFIX + feature for feature in found]


def _of_group(group: ReadOnlyJSON) -> Iterable[str]:
    name, spec = group["metadata"]["name"], group["spec"]
    if (spec.get("schedulingPolicy") or {}).get("gang") is not None:
        yield f"schedulingPolicy gang of PodGroup {name}: pods are placed one by one; use the policy basic"
    for unknown in sorted(spec.keys() - _GROUP_FIELDS):
        if unknown != "disruptionMode" or spec[unknown] not in _DEFAULT_DISRUPTION_MODES:
            yield f"{unknown} of PodGroup {name}"


def _found(spec: ReadOnlyJSON) -> Iterable[str]:
    for volume in spec.get("volumes") or []:
        for kind in sorted(_VOLUMES & volume.keys()):
            yield f"volume {volume.get('name')} of kind {kind}"
    if name := spec.get("runtimeClassName"):
        yield f"runtimeClassName {name}"
    if spec.get("priorityClassName") and spec.get("priority") is None:
        yield f"priorityClassName {spec['priorityClassName']}: the API server has not set the pod's priority"
    for group in _GROUPS:
        if spec.get(group):
            yield f"{group}: use schedulingGroup to add a pod to a PodGroup (gate GenericWorkload)"
    for claim in spec.get("resourceClaims") or []:
        for unknown in sorted(claim.keys() - _CLAIM_FIELDS):
            yield f"{unknown} of resource claim {claim.get('name')}"
    for constraint in spec.get("topologySpreadConstraints") or []:
        for unknown in sorted(constraint.keys() - spread.KNOWN):
            yield f"{unknown} of a topology spread constraint"
    for toleration in spec.get("tolerations") or []:
        if (operator := toleration.get("operator") or "") not in _TOLERATION_OPERATORS:
            yield f"operator {operator} of a toleration"
