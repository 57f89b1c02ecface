"""Sets the defaults of all kinds except the four main kinds of resource.k8s.io: defaults of the schemas, and defaults by code."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now

from ....schemas import shapes
from ....schemas.shapes import ListShape, MapShape, Struct
from ..kinds import ServedKind
from .pod_defaults import pod_defaults, qos_class, set_defaults, spec_defaults


def fill(kind: ServedKind, shape: Struct, obj: JSON) -> None:
    """Sets the defaults of an object in place."""
    _from_schema(obj, shape)
    if found := _KINDS.get(kind.storage):
        found(obj)


def _from_schema(obj: Any, shape: shapes.Shape) -> None:
    if isinstance(shape, Struct) and isinstance(obj, dict):
        for name, field in shape.fields.items():
            if name in obj:
                if isinstance(obj[name], (dict, list)):
                    _from_schema(obj[name], field.shape)
            elif field.default not in (None, "", 0, False, {}) and not isinstance(field.default, dict):
                obj[name] = field.default
    elif isinstance(shape, ListShape) and isinstance(obj, list) and not isinstance(shape.item.shape, shapes.Form):
        for item in obj:
            _from_schema(item, shape.item.shape)
    elif isinstance(shape, MapShape) and isinstance(obj, dict) and not isinstance(shape.value.shape, shapes.Form):
        for item in obj.values():
            _from_schema(item, shape.value.shape)


_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
    "lastProbeTime": None,
    "lastTransitionTime": None,
}


def initial_status(kind: ServedKind, obj: JSON) -> JSON | None:
    """Returns the status of a new object, whatever status the client sent; None for a kind without an initial status."""
    match kind.storage:
        case "pods":
            gated = {"conditions": [dict(_GATED)]} if (obj.get("spec") or {}).get("schedulingGates") else {}
            return {"phase": "Pending", "qosClass": qos_class(obj.get("spec") or {}), **gated}
        case "namespaces":
            return {"phase": "Active"}
        case "services":
            return {"loadBalancer": {}}
    return None


def _pod(pod: JSON) -> None:
    pod_defaults(_spec(pod))


def _spec(obj: JSON) -> JSON:
    spec: JSON = obj.get("spec") or {}
    obj["spec"] = spec
    return spec


def _workload(obj: JSON) -> JSON:
    """Sets the defaults of a workload's pod template. Returns the workload's spec."""
    spec = _spec(obj)
    if isinstance(template := spec.get("template"), dict):
        spec_defaults(_spec(template))
    return spec


def _rolling_update(spec: JSON, field: str, **limits: Any) -> None:
    strategy = spec[field] = spec.get(field) or {}
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy["rollingUpdate"] = strategy.get("rollingUpdate") or {}
        set_defaults(rolling, **limits)


def _deployment(obj: JSON) -> None:
    spec = _workload(obj)
    set_defaults(spec, replicas=1)
    _rolling_update(spec, "strategy", maxUnavailable="25%", maxSurge="25%")
    set_defaults(spec, revisionHistoryLimit=10, progressDeadlineSeconds=600)


def _replica_set(obj: JSON) -> None:
    spec = _workload(obj)
    set_defaults(spec, replicas=1)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _daemon_set(obj: JSON) -> None:
    spec = _workload(obj)
    _rolling_update(spec, "updateStrategy", maxUnavailable=1, maxSurge=0)
    set_defaults(spec, revisionHistoryLimit=10)


def _job(obj: JSON) -> None:
    spec = _workload(obj)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    limit = 6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1
    set_defaults(spec, parallelism=1, backoffLimit=limit, completionMode="NonIndexed", suspend=False)
    set_defaults(spec, podReplacementPolicy="Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")


def _service(obj: JSON) -> None:
    spec = _spec(obj)
    set_defaults(spec, sessionAffinity="None", type="ClusterIP", internalTrafficPolicy="Cluster")
    for port in spec.get("ports") or ():
        set_defaults(port, protocol="TCP")
        if port.get("targetPort") in (None, "", 0):
            port["targetPort"] = port.get("port", 0)
    if spec["type"] != "ExternalName":
        set_defaults(spec, clusterIP=f"10.96.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}")
        set_defaults(spec, clusterIPs=[spec["clusterIP"]], ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")


def _network_policy(obj: JSON) -> None:
    spec = _spec(obj)
    ingress, egress = spec.get("ingress") or [], spec.get("egress") or []
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if egress else ["Ingress"]
    for port in [port for rule in (*ingress, *egress) for port in rule.get("ports") or ()]:
        set_defaults(port, protocol="TCP")


def _secret(obj: JSON) -> None:
    obj.setdefault("type", "Opaque")
    if string_data := obj.pop("stringData", None):
        added = {k: base64.b64encode(v.encode()).decode() for k, v in string_data.items()}
        obj["data"] = {**(obj.get("data") or {}), **added}


def _namespace(obj: JSON) -> None:
    spec = _spec(obj)
    spec.setdefault("finalizers", ["kubernetes"])
    meta = obj["metadata"]
    if name := meta.get("name"):
        meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": name}


def _binding(obj: JSON) -> None:
    reference = obj.get("roleRef")
    if isinstance(reference, dict):
        reference["apiGroup"] = reference.get("apiGroup") or "rbac.authorization.k8s.io"
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in {"User", "Group"}:
            subject["apiGroup"] = "rbac.authorization.k8s.io"


def _policy(obj: JSON) -> None:
    spec = _spec(obj)
    set_defaults(spec, failurePolicy="Fail")
    if isinstance(constraints := spec.get("matchConstraints"), dict):
        _match_resources(constraints)


def _policy_binding(obj: JSON) -> None:
    if isinstance(resources := _spec(obj).get("matchResources"), dict):
        _match_resources(resources)


def _match_resources(found: JSON) -> None:
    set_defaults(found, namespaceSelector={}, objectSelector={}, matchPolicy="Equivalent")
    for field in ("resourceRules", "excludeResourceRules", "rules"):
        for rule in found.get(field) or ():
            set_defaults(rule, scope="*")


def _webhooks(obj: JSON) -> None:
    for hook in obj.get("webhooks") or ():
        _match_resources(hook)
        set_defaults(hook, failurePolicy="Fail", timeoutSeconds=10)


def _mutating(obj: JSON) -> None:
    _webhooks(obj)
    for hook in obj.get("webhooks") or ():
        set_defaults(hook, reinvocationPolicy="Never")


def _definition(obj: JSON) -> None:
    spec = _spec(obj)
    spec.setdefault("conversion", {"strategy": "None"})
    names = spec.get("names")
    if isinstance(names, dict) and names.get("kind"):
        names["singular"] = names.get("singular") or str(names["kind"]).lower()
        names["listKind"] = names.get("listKind") or f"{names['kind']}List"


def _taint_rule(obj: JSON) -> None:
    taint = _spec(obj).get("taint")
    if isinstance(taint, dict) and not taint.get("timeAdded"):
        taint["timeAdded"] = now()


def _node(obj: JSON) -> None:
    status = obj.get("status")
    if isinstance(status, dict) and status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


_KINDS: Mapping[str, Callable[[JSON], None]] = {
    "pods": _pod,
    "nodes": _node,
    "namespaces": _namespace,
    "secrets": _secret,
    "services": _service,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "networkpolicies.networking.k8s.io": _network_policy,
    "priorityclasses.scheduling.k8s.io": lambda obj: set_defaults(obj, preemptionPolicy="PreemptLowerPriority"),
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
    "validatingadmissionpolicies.admissionregistration.k8s.io": _policy,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": _policy_binding,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _mutating,
    "customresourcedefinitions.apiextensions.k8s.io": _definition,
    "devicetaintrules.resource.k8s.io": _taint_rule,
}
