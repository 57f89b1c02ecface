"""Converts manifests to pods and claims, as the controllers of workloads and of claims do."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import QuestionError, describe
from ...resourceapi.defaulting import apply, now
from ...resourceapi.schemas import decoding, shapes
from ...scheduling import cel
from ...scheduling.framework import filters, pod_info
from ...scheduling.framework.node_info import NodeInfo
from ...scheduling.framework.pod_info import PodInfo
from ..object_shapes import FAULTS, RULES, validated
from ..snapshot import KINDS as READ
from ..snapshot import kind_of, read

JSON = dict[str, Any]
_COMPILE = functools.partial(cel.compile_selector, list_attributes=True)  # the cluster's feature gates are not known
# Tolerations that the DaemonSet controller adds to pods.
_DAEMON = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists"}
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
]


@dataclass(frozen=True)
class SimulatedWorkload:
    """A number of pods of one template. A DaemonSet has one pod for each node that matches."""

    kind: str
    namespace: str
    name: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    count: int
    per_node: bool = False

    @property
    def shown(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

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
        name = self.name if self.kind == "Pod" and not number else f"{self.name}-{number}"
        return self._made(name, copy.deepcopy(dict(self.spec)))

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
        made = self._made(f"{self.name}-{node.name}", spec)
        info = pod_info.read(made)
        return None if filters.node_affinity(info, node) or filters.taints(info, node) else made


MAX_PODS = 100_000  # pods of one workload
# Values of the PriorityClasses that every cluster has.
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def workloads(objects: Sequence[JSON], namespace: str = "default") -> list[SimulatedWorkload]:
    """Returns a workload for each object that creates pods.

    The pods have the priority of their PriorityClass, if it is in the manifests or built in.

    Raises:
        QuestionError: an object of a workload's kind is malformed.
    """
    priorities = {o["metadata"].get("name"): o.get("value") for o in objects if kind_of(o) == "PriorityClass"}
    out = []
    for obj in objects:
        found = _template(obj)
        if found is None:
            continue
        kind, meta = kind_of(obj), obj["metadata"]
        count, template = found
        if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
            raise QuestionError(f"{kind} {meta.get('name')}: its template has no spec")
        if not 0 <= count <= MAX_PODS:
            raise QuestionError(f"{kind} {meta.get('name')}: {count} pods cannot be simulated: use 0 to {MAX_PODS}")
        where = str(meta.get("namespace") or namespace)
        name = str(meta.get("name") or f"{meta.get('generateName', '')}0")
        priority = {**_PRIORITIES, **priorities}.get(template["spec"].get("priorityClassName"))
        spec = {**({} if priority is None else {"priority": priority}), **template["spec"]}
        made = SimulatedWorkload(kind, where, name, template.get("metadata") or {}, spec, count, kind == "DaemonSet")
        try:
            out.append(replace(made, spec=validated(made.pod(0))["spec"]))
        except FAULTS as e:
            raise QuestionError(f"{kind} {where}/{name}: its pods cannot be read: {describe(e)}") from None
    return out


def _template(obj: JSON) -> tuple[int, Any] | None:
    """Returns the number of pods that run at once, and their template; None if the object creates no pods."""
    spec = obj.get("spec")
    kind = kind_of(obj)
    if not isinstance(spec, Mapping):
        return None
    try:
        match kind:
            case "Pod":
                return 1, obj
            case "Job":
                return _at_once(spec), spec.get("template")
            case "CronJob":
                job = spec["jobTemplate"]["spec"]
                return _at_once(job), job.get("template")
            case _ if isinstance(spec.get("template"), Mapping) and "containers" in (
                spec["template"].get("spec") or {}
            ):
                replicas = spec.get("replicas")
                return 1 if replicas is None else int(replicas), spec["template"]
    except (TypeError, KeyError, ValueError, AttributeError) as e:
        raise QuestionError(f"{kind} {obj['metadata'].get('name')} cannot be read: {describe(e)}") from None
    return None


def _at_once(job: Mapping[str, Any]) -> int:
    parallelism, completions = job.get("parallelism"), job.get("completions")
    at_once = 1 if parallelism is None else int(parallelism)
    return at_once if completions is None else min(at_once, int(completions))


# --- claims ---------------------------------------------------------------------------------------


def claim_for(pod: JSON, entry: Mapping[str, Any], template: JSON) -> JSON:
    """Returns the claim that the claim controller creates from a template for an entry of a pod's ``resourceClaims``."""
    meta = pod["metadata"]
    name = f"{meta['name']}-{entry['name']}"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    made = {
        "name": name,
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
    """Returns the claim with its allocation and its reservation for the pod, as the scheduler writes them."""
    consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
    reserved = [*((claim.get("status") or {}).get("reservedFor") or []), consumer]
    return {**claim, "status": {"allocation": {"allocationTimestamp": now(), **allocation}, "reservedFor": reserved}}


def checked(objects: Sequence[JSON], namespace: str = "default") -> list[JSON]:
    """Validates and defaults claims, templates and classes. Returns all objects of known kinds as a server would store them.

    Raises:
        QuestionError: an object is invalid; the text contains the object, the field and the server's error.
    """
    out = []
    for obj in objects:
        kind = kind_of(obj)
        if kind not in READ:
            continue
        placed = {**obj, "metadata": {**obj["metadata"]}}
        if READ[kind].namespaced:
            placed["metadata"]["namespace"] = obj["metadata"].get("namespace") or namespace
        if kind in RULES:
            placed = _validated(placed, kind)
        out.append(read(placed, READ[kind]))
    return out


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
