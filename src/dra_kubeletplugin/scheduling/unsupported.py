"""What a pod may ask for that this scheduler does not know: such a pod waits, with a sentence that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import spread
from .podinfo import PodInfo

JSON = Mapping[str, Any]
PREFIX = "not supported by the local cluster: "
_VOLUMES = {"persistentVolumeClaim", "ephemeral", "csi"}
_CLAIM_FIELDS = {"name", "resourceClaimName", "resourceClaimTemplateName"}
_GROUPS = ("schedulingGroup", "workloadRef", "podGroupName")
_TOLERATIONS = {"", "Equal", "Exists"}


def reasons(pod: PodInfo) -> list[str]:
    """One sentence for each thing; empty where all is known."""
    return [PREFIX + what for what in _found(pod.spec)]


def _found(spec: JSON) -> Iterable[str]:
    for volume in spec.get("volumes") or []:
        for kind in sorted(_VOLUMES & volume.keys()):
            yield f"volume {volume.get('name')} of kind {kind}"
    if name := spec.get("runtimeClassName"):
        yield f"runtimeClassName {name}"
    if spec.get("priorityClassName") and spec.get("priority") is None:
        yield f"priorityClassName {spec['priorityClassName']}, for which the API server set no priority"
    for group in _GROUPS:
        if spec.get(group):
            yield f"{group}: groups of pods (gates GenericWorkload, DRAWorkloadResourceClaims: off by default)"
    for claim in spec.get("resourceClaims") or []:
        for unknown in sorted(claim.keys() - _CLAIM_FIELDS):
            yield f"{unknown} of resource claim {claim.get('name')}"
    for constraint in spec.get("topologySpreadConstraints") or []:
        for unknown in sorted(constraint.keys() - spread.KNOWN):
            yield f"{unknown} of a topology spread constraint"
    for toleration in spec.get("tolerations") or []:
        if (operator := toleration.get("operator") or "") not in _TOLERATIONS:
            yield f"operator {operator} of a toleration"
