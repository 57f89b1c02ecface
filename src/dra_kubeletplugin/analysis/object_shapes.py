"""Validates the fields on which the analysis relies, in objects from files or other programs.

Objects from an API server are not checked here, because the server has validated them. Objects of resource.k8s.io are
decoded with their own types, other objects with the types of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..resourceapi import schema
from ..resourceapi.conversion import GROUP
from ..resourceapi.quantity import parse
from ..resourceapi.validation import claims
from ..resourceapi.validation.field_errors import FieldError
from ..scheduling import cel
from ..scheduling.allocator.pools import key_of
from ..scheduling.framework import node_info, pod_info

JSON = dict[str, Any]
Texts = dict[str, str] | None
Amounts = dict[str, str | int | float] | None
FAULTS = (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError, cel.CelError)


class _Owner(msgspec.Struct):
    uid: str
    controller: bool | None = None


class _Metadata(msgspec.Struct):
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: Texts = None
    annotations: Texts = None
    ownerReferences: list[_Owner] | None = None
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None


class _Requirement(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _LabelSelector(msgspec.Struct):
    matchLabels: Texts = None
    matchExpressions: list[_Requirement] | None = None


class _NodeTerm(msgspec.Struct):
    matchExpressions: list[_Requirement] | None = None
    matchFields: list[_Requirement] | None = None


class _NodeSelector(msgspec.Struct):
    nodeSelectorTerms: list[_NodeTerm]


class _PreferredNode(msgspec.Struct):
    weight: int
    preference: _NodeTerm


class _NodeAffinity(msgspec.Struct):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None
    preferredDuringSchedulingIgnoredDuringExecution: list[_PreferredNode] | None = None


class _PodTerm(msgspec.Struct):
    topologyKey: str
    labelSelector: _LabelSelector | None = None
    namespaceSelector: _LabelSelector | None = None
    namespaces: list[str] | None = None
    matchLabelKeys: list[str] | None = None
    mismatchLabelKeys: list[str] | None = None


class _PreferredPods(msgspec.Struct):
    weight: int
    podAffinityTerm: _PodTerm


class _PodAffinity(msgspec.Struct):
    requiredDuringSchedulingIgnoredDuringExecution: list[_PodTerm] | None = None
    preferredDuringSchedulingIgnoredDuringExecution: list[_PreferredPods] | None = None


class _Affinity(msgspec.Struct):
    nodeAffinity: _NodeAffinity | None = None
    podAffinity: _PodAffinity | None = None
    podAntiAffinity: _PodAffinity | None = None


class _Spread(msgspec.Struct):
    maxSkew: int
    topologyKey: str
    whenUnsatisfiable: str | None = None
    minDomains: int | None = None
    labelSelector: _LabelSelector | None = None
    matchLabelKeys: list[str] | None = None
    nodeAffinityPolicy: str | None = None
    nodeTaintsPolicy: str | None = None


class _Resources(msgspec.Struct):
    limits: Amounts = None
    requests: Amounts = None


class _Port(msgspec.Struct):
    containerPort: int
    hostPort: int | None = None
    hostIP: str | None = None
    protocol: str | None = None


class _Container(msgspec.Struct):
    name: str
    resources: _Resources | None = None
    ports: list[_Port] | None = None
    restartPolicy: str | None = None


class _ClaimEntry(msgspec.Struct):
    name: str
    resourceClaimName: str | None = None
    resourceClaimTemplateName: str | None = None


class _Named(msgspec.Struct):
    name: str


class _Toleration(msgspec.Struct):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _PodSpec(msgspec.Struct):
    containers: list[_Container]
    initContainers: list[_Container] | None = None
    resourceClaims: list[_ClaimEntry] | None = None
    schedulingGates: list[_Named] | None = None
    tolerations: list[_Toleration] | None = None
    nodeSelector: Texts = None
    affinity: _Affinity | None = None
    topologySpreadConstraints: list[_Spread] | None = None
    volumes: list[_Named] | None = None
    overhead: Amounts = None
    resources: _Resources | None = None
    priority: int | None = None
    priorityClassName: str | None = None
    schedulerName: str | None = None
    nodeName: str | None = None
    runtimeClassName: str | None = None
    hostNetwork: bool | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class _PodStatus(msgspec.Struct):
    phase: str | None = None
    nominatedNodeName: str | None = None
    conditions: list[_Condition] | None = None
    resourceClaimStatuses: list[_ClaimEntry] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: str | None = None


class _NodeSpec(msgspec.Struct):
    taints: list[_Taint] | None = None
    unschedulable: bool | None = None


class _NodeStatus(msgspec.Struct):
    allocatable: Amounts = None
    capacity: Amounts = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _About(msgspec.Struct):
    uid: str | None = None


class _Event(msgspec.Struct):
    metadata: _Metadata
    involvedObject: _About | None = None
    reason: str | None = None
    message: str | None = None
    type: str | None = None
    lastTimestamp: str | None = None
    eventTime: str | None = None


class _Other(msgspec.Struct):
    metadata: _Metadata


RULES: Mapping[str, Callable[..., list[FieldError]]] = {
    "ResourceClaim": claims.validate_claim,
    "ResourceClaimTemplate": claims.validate_template,
    "DeviceClass": claims.validate_class,
}
_FORMS: Mapping[str, Any] = {"Pod": _Pod, "Node": _Node, "Event": _Event}


def validated(obj: JSON) -> JSON:
    """Returns the object in the form that the analysis relies on.

    Raises:
        one of :data:`FAULTS`: the object does not have this form.
    """
    kind = str(obj["kind"])
    if not str(obj["apiVersion"]).startswith(f"{GROUP}/"):
        msgspec.convert(obj, _FORMS.get(kind, _Other))
        if kind == "Pod":
            pod_info.read(obj)
        if kind == "Node":
            node_info.read(obj)
        return obj
    msgspec.convert(obj, _Other)
    decoded = schema.decode(obj, kind, strict=False)
    if kind == "ResourceSlice":
        _check_amounts(decoded)
    elif missing := [str(f) for f in RULES[kind](decoded) if f.reason == "FieldValueRequired"]:
        raise ValueError("; ".join(missing))
    return decoded


def _check_amounts(sl: JSON) -> None:
    """Checks that all amounts and versions in a slice can be parsed.

    Raises:
        ValueError: an amount or a version cannot be parsed.
    """
    driver, _ = key_of(sl)
    for device in sl["spec"].get("devices") or []:
        cel.Device(driver, device)
        for consumed in device.get("consumesCounters") or []:
            for amount in consumed["counters"].values():
                parse(amount["value"])
    for counter_set in sl["spec"].get("sharedCounters") or []:
        for amount in counter_set["counters"].values():
            parse(amount["value"])
