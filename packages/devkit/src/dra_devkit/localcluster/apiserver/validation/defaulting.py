"""Sets the defaults of all kinds except the four main kinds of resource.k8s.io: defaults of the schemas, and defaults by code."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from ....schemas import shapes
from ....schemas.shapes import ListShape, MapShape, Struct
from ..kinds import ServedKind
from .pod_defaults import pod_defaults, qos_class, spec_defaults


def fill(kind: ServedKind, version: str, obj: JSON) -> None:
    """Sets the defaults of an object in place."""
    shape = shapes.kind_shape(kind.group, version, kind.kind)
    if shape is not None:
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


def _template(spec: JSON) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template["spec"] = template.get("spec") or {}
        spec_defaults(template["spec"])


def _selector_from_template(obj: JSON) -> None:
    meta, labels = obj["metadata"], ((_spec(obj).get("template") or {}).get("metadata") or {}).get("labels")
    if labels and not meta.get("labels"):
        meta["labels"] = dict(labels)


def _deployment(obj: JSON) -> None:
    spec = _spec(obj)
    _template(spec)
    if spec.get("replicas") is None:
        spec["replicas"] = 1
    strategy = spec["strategy"] = spec.get("strategy") or {}
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy["rollingUpdate"] = strategy.get("rollingUpdate") or {}
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _replica_set(obj: JSON) -> None:
    spec = _spec(obj)
    _template(spec)
    if spec.get("replicas") is None:
        spec["replicas"] = 1
    _selector_from_template(obj)


def _daemon_set(obj: JSON) -> None:
    spec = _spec(obj)
    _template(spec)
    strategy = spec["updateStrategy"] = spec.get("updateStrategy") or {}
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy["rollingUpdate"] = strategy.get("rollingUpdate") or {}
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)


def _job(obj: JSON) -> None:
    spec = _spec(obj)
    _template(spec)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    limit = 6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1
    for name, value in (
        ("parallelism", 1),
        ("backoffLimit", limit),
        ("completionMode", "NonIndexed"),
        ("suspend", False),
    ):
        if spec.get(name) is None:
            spec[name] = value
    if spec.get("podReplacementPolicy") is None:
        spec["podReplacementPolicy"] = "TerminatingOrFailed" if not spec.get("podFailurePolicy") else "Failed"


def _service(obj: JSON) -> None:
    spec = _spec(obj)
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in (None, "", 0):
            port["targetPort"] = port.get("port", 0)
    if spec["type"] != "ExternalName":
        spec.setdefault("clusterIP", f"10.96.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")


def _network_policy(obj: JSON) -> None:
    spec = _spec(obj)
    ingress, egress = spec.get("ingress") or [], spec.get("egress") or []
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if egress else ["Ingress"]
    for port in [port for rule in (*ingress, *egress) for port in rule.get("ports") or ()]:
        port.setdefault("protocol", "TCP")


def _secret(obj: JSON) -> None:
    import base64

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


def _priority_class(obj: JSON) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _binding(obj: JSON) -> None:
    reference = obj.get("roleRef")
    if isinstance(reference, dict):
        reference["apiGroup"] = reference.get("apiGroup") or "rbac.authorization.k8s.io"
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in {"User", "Group"}:
            subject["apiGroup"] = "rbac.authorization.k8s.io"


def _policy(obj: JSON) -> None:
    spec = _spec(obj)
    spec.setdefault("failurePolicy", "Fail")
    constraints = spec.get("matchConstraints")
    if isinstance(constraints, dict):
        _match_resources(constraints)


def _policy_binding(obj: JSON) -> None:
    resources = _spec(obj).get("matchResources")
    if isinstance(resources, dict):
        _match_resources(resources)


def _match_resources(found: JSON) -> None:
    for name, value in (("namespaceSelector", {}), ("objectSelector", {}), ("matchPolicy", "Equivalent")):
        if found.get(name) is None:
            found[name] = value
    for field in ("resourceRules", "excludeResourceRules"):
        for rule in found.get(field) or ():
            rule.setdefault("scope", "*")


def _webhooks(obj: JSON) -> None:
    for hook in obj.get("webhooks") or ():
        for name, value in (
            ("failurePolicy", "Fail"),
            ("matchPolicy", "Equivalent"),
            ("namespaceSelector", {}),
            ("objectSelector", {}),
            ("timeoutSeconds", 10),
        ):
            if hook.get(name) is None:
                hook[name] = value
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")


def _mutating(obj: JSON) -> None:
    _webhooks(obj)
    for hook in obj.get("webhooks") or ():
        hook.setdefault("reinvocationPolicy", "Never")


def _definition(obj: JSON) -> None:
    spec = _spec(obj)
    spec.setdefault("conversion", {"strategy": "None"})
    names = spec.get("names")
    if isinstance(names, dict) and names.get("kind"):
        names["singular"] = names.get("singular") or str(names["kind"]).lower()
        names["listKind"] = names.get("listKind") or f"{names['kind']}List"


def _taint_rule(obj: JSON) -> None:
    from dra_kubeletplugin.resourceapi.defaulting import now

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
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
    "validatingadmissionpolicies.admissionregistration.k8s.io": _policy,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": _policy_binding,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _webhooks,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _mutating,
    "customresourcedefinitions.apiextensions.k8s.io": _definition,
    "devicetaintrules.resource.k8s.io": _taint_rule,
}
