"""Converts manifests to pods and claims, as the controllers of workloads and of claims do."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_devkit.scheduling import cel
from dra_devkit.scheduling.framework import filters, pod_groups, pod_info
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_devkit.schemas import decoding, shapes
from dra_devkit.validation.defaulting import apply
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import QuestionError, describe
from dra_kubeletplugin.resourceapi.defaulting import now

from ..object_shapes import FAULTS, RULES, validated
from ..snapshot import KINDS as READ
from ..snapshot import is_read, kind_of, read
from ..unevaluated.parts import UnevaluatedPart, is_builtin, subject_of
from .pod_templates import FoundTemplates, PodTemplate, at_once, pod_templates, suspension

_COMPILE = functools.partial(cel.compile_selector, list_attributes=True)  # the cluster's feature gates are not known
# Tolerations that the DaemonSet controller adds to pods.
_DAEMON = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists"}
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
]


@dataclass(frozen=True)
class SimulatedWorkload:
    """A number of pods of one template. A DaemonSet has one pod for each node that matches.

    Args:
        part: the place of the template in an object with several templates; else empty.
    """

    kind: str
    namespace: str
    name: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    count: int
    per_node: bool = False
    part: str = ""

    @property
    def shown(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}{f' {self.part}' if self.part else ''}"

    def pods(self, nodes: Iterable[NodeInfo]) -> Iterator[JSON]:
        """Yields the pods.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: a DaemonSet's pod is malformed, see :func:`pod_info.read`.
        """
        if self.per_node:
            yield from (p for p in (self._on(n) for n in nodes) if p)
        else:
            yield from (self.pod(i) for i in range(self.count))

    def pod(self, number: int) -> JSON:
        name = self.name if self.kind == "Pod" and not number else f"{self._prefix}-{number}"
        return self._made(name, copy.deepcopy(dict(self.spec)))

    @property
    def _prefix(self) -> str:
        part = re.sub(r"[^a-z0-9]+", "-", self.part.lower()).strip("-")
        return f"{self.name}-{part}" if part else self.name

    def _made(self, name: str, spec: JSON) -> JSON:
        labels = dict(self.metadata.get("labels") or {})
        meta = {
            "name": name,
            "namespace": self.namespace,
            "uid": f"simulated/{self.kind}/{self.namespace}/{name}",
            "labels": labels,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}

    def _on(self, node: NodeInfo) -> JSON | None:
        """Returns the DaemonSet's pod for a node; None if the node does not match."""
        spec = copy.deepcopy(dict(self.spec))
        spec["tolerations"] = [*(spec.get("tolerations") or []), *_DAEMON]
        required = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        terms = (required.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        place = {"key": "metadata.name", "operator": "In", "values": [node.name]}
        required[_REQUIRED] = {"nodeSelectorTerms": [{**t, "matchFields": [place]} for t in terms]}
        made = self._made(f"{self._prefix}-{node.name}", spec)
        info = pod_info.read(made)
        return None if filters.node_affinity(info, node) or filters.taints(info, node) else made


MAX_PODS = 100_000  # pods of one workload
# Values of the PriorityClasses that every cluster has.
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


# Kinds of Kubernetes that create no pods and may change the result, each with the part that is not evaluated.
_INFLUENCES = {
    "LimitRange": "the simulation does not set its defaults or check its limits",
    "HorizontalPodAutoscaler": "the simulation uses the number of pods in the workload, which the autoscaler changes",
    "RuntimeClass": "the simulation does not add its overhead or its node selector to pods",
    "Workload": "the simulation does not evaluate policies for groups of pods",
    "PodTemplate": "other objects decide how many pods are created from its pod template",
    **dict.fromkeys(
        (
            "MutatingAdmissionPolicy",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingWebhookConfiguration",
        ),
        "the simulation does not call it, and it may change or reject pods",
    ),
}
_WORKLOADS = {"Pod", "Job", "CronJob", "DaemonSet", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"}


def workloads(
    objects: Sequence[JSON], namespace: str = "default"
) -> tuple[list[SimulatedWorkload], list[UnevaluatedPart]]:
    """Returns a workload for each pod template, and the objects whose pods are not all counted.

    The pods have the priority of their PriorityClass, if it is in the manifests or built in.

    Raises:
        QuestionError: an object of a workload's kind is malformed.
    """
    priorities = {o["metadata"].get("name"): o.get("value") for o in objects if kind_of(o) == "PriorityClass"}
    out: list[SimulatedWorkload] = []
    omitted: list[UnevaluatedPart] = []
    for obj in objects:
        found = _templates(obj)
        out += (_workload(obj, t, namespace, priorities, whole=len(found.templates) == 1) for t in found.templates)
        if found.faults:
            omitted.append(UnevaluatedPart(subject_of(obj, namespace), "; ".join(found.faults)))
    return out, omitted


def _workload(
    obj: JSON, found: PodTemplate, namespace: str, priorities: Mapping[Any, Any], *, whole: bool
) -> SimulatedWorkload:
    kind, meta, count, template = kind_of(obj), obj["metadata"], found.count, found.template
    if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        raise QuestionError(f"{kind} {meta.get('name')}: its template has no spec")
    if not 0 <= count <= MAX_PODS:
        raise QuestionError(f"{kind} {meta.get('name')}: {count} pods cannot be simulated: use 0 to {MAX_PODS}")
    where = str(meta.get("namespace") or namespace)
    name = str(meta.get("name") or f"{meta.get('generateName', '')}0")
    priority = {**_PRIORITIES, **priorities}.get(template["spec"].get("priorityClassName"))
    spec = {**({} if priority is None else {"priority": priority}), **template["spec"]}
    labels, part = template.get("metadata") or {}, "" if whole else found.part
    made = SimulatedWorkload(kind, where, name, labels, spec, count, kind == "DaemonSet", part)
    try:
        return replace(made, spec=validated(made.pod(0))["spec"])
    except FAULTS as e:
        raise QuestionError(f"{kind} {where}/{name}: its pods cannot be read: {describe(e)}") from None


def _templates(obj: JSON) -> FoundTemplates:
    """Returns the pod templates of an object with the number of pods that run at once, and why some pods are not counted."""
    kind = kind_of(obj)
    if not is_builtin(obj):
        return pod_templates(obj)
    spec = obj.get("spec")
    if kind in _INFLUENCES:
        return FoundTemplates((), (_INFLUENCES[kind],))
    if kind not in _WORKLOADS:
        return FoundTemplates((), ())
    if not isinstance(spec, Mapping):
        raise QuestionError(f"{kind} {obj['metadata'].get('name')} has no spec")
    try:
        found = _of_workload(obj, kind, spec)
        suspended = suspension(spec, "spec")
        if kind == "CronJob":
            suspended += suspension(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")
    except (TypeError, KeyError, ValueError, AttributeError) as e:
        raise QuestionError(f"{kind} {obj['metadata'].get('name')} cannot be read: {describe(e)}") from None
    return FoundTemplates((found,), tuple(suspended))


def _of_workload(obj: JSON, kind: str, spec: Mapping[str, Any]) -> PodTemplate:
    match kind:
        case "Pod":
            return PodTemplate("", obj, 1)
        case "Job":
            return PodTemplate("", spec.get("template"), at_once(spec))
        case "CronJob":
            job = spec["jobTemplate"]["spec"]
            return PodTemplate("", job.get("template"), at_once(job))
    replicas = spec.get("replicas")
    return PodTemplate("", spec.get("template"), 1 if replicas is None else int(replicas))


# --- claims ---------------------------------------------------------------------------------------


def claim_name(owner: JSON, entry: Mapping[str, Any]) -> str:
    """Returns the name of a claim that the simulation creates."""
    return f"{owner['metadata']['name']}-{entry['name']}"


def claim_for(creator: JSON, entry: Mapping[str, Any], template: JSON) -> JSON:
    """Returns the claim that the claim controller creates from a template for an entry of ``resourceClaims``.

    Args:
        creator: the pod, or the PodGroup whose pods share the claim.
    """
    meta = creator["metadata"]
    head = {"apiVersion": creator["apiVersion"], "kind": creator["kind"]}
    owner = {**head, "name": meta["name"], "uid": meta["uid"], "controller": True}
    made = {
        "name": claim_name(creator, entry),
        "namespace": meta["namespace"],
        "uid": f"{meta['uid']}/{entry['name']}",
        "ownerReferences": [owner],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": made,
        "spec": template["spec"]["spec"],
    }


def allocated(claim: JSON, allocation: JSON, pod: PodInfo) -> JSON:
    """Returns the claim with its allocation and its reservation for the pod or its PodGroup, as the scheduler writes them."""
    owner = next((o for o in claim["metadata"].get("ownerReferences") or [] if o.get("kind") == pod_groups.KIND), None)
    consumer = pod_groups.group_reference({"metadata": owner}) if owner else pod_groups.pod_reference(pod.pod)
    reserved = list((claim.get("status") or {}).get("reservedFor") or [])
    reserved += [] if consumer in reserved else [consumer]
    return {**claim, "status": {"allocation": {"allocationTimestamp": now(), **allocation}, "reservedFor": reserved}}


def checked(objects: Sequence[JSON], namespace: str = "default") -> list[JSON]:
    """Validates and defaults claims, templates and classes. Returns all objects of known kinds as a server would store them.

    Raises:
        QuestionError: an object is invalid; the text contains the object, the field and the server's error.
    """
    out = []
    for obj in objects:
        kind = kind_of(obj)
        if not is_read(obj):
            continue
        placed = {**obj, "metadata": {**obj["metadata"]}}
        if READ[kind].namespaced:
            placed["metadata"]["namespace"] = obj["metadata"].get("namespace") or namespace
        if kind in RULES:
            placed = _validated(placed, kind)
        elif kind == "ResourceQuota":
            placed = _decoded(placed, kind)
        out.append(read(placed, READ[kind]))
    return out


def _decoded(obj: JSON, kind: str) -> JSON:
    try:
        return validated(obj)
    except FAULTS as e:
        raise QuestionError(f"{kind} {obj['metadata'].get('name')}: {describe(e)}") from None


def _validated(obj: JSON, kind: str) -> JSON:
    name = obj["metadata"].get("name")
    try:
        decoded = decoding.decode_strictly(read(obj, READ[kind]), shapes.dra_shape(kind))
        faults = RULES[kind](apply(decoded, kind), _COMPILE)
    except (ValueError, KeyError, TypeError) as e:
        raise QuestionError(f"{kind} {name}: {describe(e)}") from None
    if faults:
        raise QuestionError(f"{kind} {name}: {'; '.join(map(str, faults))}")
    return decoded
