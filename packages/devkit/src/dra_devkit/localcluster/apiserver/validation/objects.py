"""Validates objects by kind. :mod:`.pods` validates pods, and ``resourceapi/validation`` the main kinds of resource.k8s.io."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity
from dra_kubeletplugin.resourceapi.validation import common, names
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalids,
    required,
    too_long,
)

from ....validation import metadata
from ..kinds import ServedKind
from . import policies
from .checks import (
    IMMUTABLE,
    at_least,
    at_most_100_percent,
    choice,
    label_selector,
    missing,
    number_or_percent,
    optional_choice,
    port,
    positive,
    quantity,
)
from .network_policies import validate_network_policy
from .pod_groups import validate_group, validate_group_status
from .pods import validate_pod, validate_template, validate_update
from .pool_status_requests import validate_request, validate_request_status

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MAX_DATA = 1024 * 1024
_NOT_ZERO = re.compile(r"-?[0-9]*[1-9][0-9]*%?")
_RBAC_GROUP = "rbac.authorization.k8s.io"
_POD_GROUPS = "podgroups.scheduling.k8s.io"
_POOL_STATUS_REQUESTS = "resourcepoolstatusrequests.resource.k8s.io"


def validate(kind: ServedKind, obj: ReadOnlyJSON, old: ReadOnlyJSON | None, *, status: bool) -> list[FieldError]:
    """Returns all errors of an object of any kind except the four main kinds of resource.k8s.io."""
    out = _metadata(kind, obj, old)
    if status:
        return out + (_STATUS_RULES[kind.storage](obj, old) if kind.storage in _STATUS_RULES else [])
    if found := _RULES.get(kind.storage):
        out += found(obj, old)
    return out


def _metadata(kind: ServedKind, obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    meta = obj["metadata"]
    if old is not None:
        return metadata.updated_metadata(meta, wholly=False)
    found = metadata.metadata(meta)
    name = meta.get("name") or meta.get("generateName", "")
    match kind.storage:
        case "namespaces" | "services":
            if name and not any(f.field == "metadata.name" for f in found):
                found += invalids("metadata.name", name, _label_name(kind, name))
        case _ if kind.group == _RBAC_GROUP or kind.storage == "events":
            found = [f for f in found if f.field not in {"metadata.name", "metadata.generateName"} or not name]
            found += invalids("metadata.name", name, _path_segment(name)) if name else []
    return found


def _label_name(kind: ServedKind, name: str) -> list[str]:
    if kind.kind == "Namespace" or _DNS_1035.fullmatch(name):
        return names.label(name)
    return [
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and "
        "end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
        "'[a-z]([-a-z0-9]*[a-z0-9])?')"
    ]


def _path_segment(name: str) -> list[str]:
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{c}'" for c in ("/", "%") if c in name]


def _spec(obj: ReadOnlyJSON) -> ReadOnlyJSON:
    return obj.get("spec") or {}


# --- core -------------------------------------------------------------------------------------------


def _pod(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    return validate_pod(obj) if old is None else validate_update(obj, old)


def _node(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(_spec(obj).get("taints") or []):
        where = f"spec.taints[{i}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        out += invalids(f"{where}.key", key, names.qualified(key))
        out += invalids(f"{where}.value", taint.get("value", ""), names.label_value(taint.get("value", "")))
        out += choice(effect, f"{where}.effect", ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        if (key, effect) in seen:
            out.append(duplicate(where, f"{key}:{effect}"))
        seen.add((key, effect))
    return out


def _data(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out: list[FieldError] = []
    size = 0
    plain, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    for field, values in (("data", plain), ("binaryData", binary)):
        for key, value in values.items():
            if len(key) > names.MAX_SUBDOMAIN or not _DATA_KEY.fullmatch(key) or key in {".", ".."}:
                rule = (
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
                    "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                )
                out.append(invalid(f"{field}[{key}]", key, rule))
            elif field == "data" and key in binary:
                out.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
            size += len(str(value).encode())
    if size > _MAX_DATA:
        out.append(too_long("", _MAX_DATA))
    if old is not None and old.get("immutable"):
        if not obj.get("immutable"):
            out.append(forbidden("immutable", f"{IMMUTABLE} when `immutable` is set"))
        changed = [f for f in ("data", "binaryData") if (obj.get(f) or {}) != (old.get(f) or {})]
        out += [forbidden(field, f"{IMMUTABLE} when `immutable` is set") for field in changed]
    return out


def _secret(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out = _data(obj, old)
    if old is not None and obj.get("type") != old.get("type"):
        out.append(invalid("type", obj.get("type"), IMMUTABLE))
    return out


def _service(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    spec = _spec(obj)
    kind = spec.get("type")
    out: list[FieldError] = []
    out += optional_choice(kind, "spec.type", ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"))
    ports = spec.get("ports") or []
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        out.append(required("spec.ports"))
    for i, item in enumerate(ports):
        out += port(item.get("port", 0), f"spec.ports[{i}].port")
        out += missing(item, f"spec.ports[{i}]", "name") if len(ports) > 1 else []
    return out + (missing(spec, "spec", "externalName") if kind == "ExternalName" else [])


def _event(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    regarding = obj.get("involvedObject") or {}
    namespace = obj["metadata"].get("namespace", "")
    wanted = regarding.get("namespace") or "default"
    if wanted != namespace and not (not regarding.get("namespace") and namespace in {"default", "kube-system"}):
        return [invalid("involvedObject.namespace", regarding.get("namespace", ""), "does not match event.namespace")]
    return []


def _quota(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out: list[FieldError] = []
    for name, amount in (_spec(obj).get("hard") or {}).items():
        where = f"spec.hard[{name}]"
        if "/" in name:
            out += invalids(where, name, names.qualified(name))
        elif "." not in name and name not in _QUOTAS:
            out.append(invalid(where, name, "must be a standard resource for quota"))
        if (value := quantity(amount)) is None:
            out.append(invalid(where, amount, "must be a quantity"))
        elif value < Quantity(0):
            out.append(invalid(where, amount, "must be greater than or equal to 0"))
    return out


_QUOTAS = {"cpu", "memory", "ephemeral-storage", "storage", "pods", "services", "replicationcontrollers"}
_QUOTAS |= {"resourcequotas", "secrets", "configmaps", "persistentvolumeclaims"}


# --- workloads --------------------------------------------------------------------------------------


def _workload(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    spec = _spec(obj)
    out: list[FieldError] = []
    selector = spec.get("selector")
    template = spec.get("template") or {}
    if selector is None:
        out.append(required("spec.selector"))
    else:
        out += label_selector(selector, "spec.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            out.append(invalid("spec.selector", selector, "empty selector is invalid for deployment"))
        labels = (template.get("metadata") or {}).get("labels") or {}
        if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
            rule = "`selector` does not match template `labels`"
            out.append(invalid("spec.template.metadata.labels", labels or None, rule))
    out += at_least(spec, "spec", 0, "replicas")
    if old is not None and _spec(old).get("selector") != selector:
        out.append(invalid("spec.selector", selector, IMMUTABLE))
    return out + validate_template(template, "spec.template")


def _deployment(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out = _workload(obj, old)
    strategy = _spec(obj).get("strategy") or {}
    if strategy.get("type") != "RollingUpdate":
        return out
    unavailable, surge, where = _rolling_update(strategy, "spec.strategy")
    out += number_or_percent(unavailable, f"{where}.maxUnavailable") + number_or_percent(surge, f"{where}.maxSurge")
    if not _is_not_zero(unavailable) and not _is_not_zero(surge):
        out.append(invalid(f"{where}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0"))
    return out + at_most_100_percent(unavailable, f"{where}.maxUnavailable")


def _daemon_set(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out = _workload(obj, old)
    strategy = _spec(obj).get("updateStrategy") or {}
    if strategy.get("type") != "RollingUpdate":
        return out
    unavailable, surge, where = _rolling_update(strategy, "spec.updateStrategy")
    for check in (number_or_percent, at_most_100_percent):
        out += check(unavailable, f"{where}.maxUnavailable") + check(surge, f"{where}.maxSurge")
    if _is_not_zero(unavailable) and _is_not_zero(surge):
        out.append(invalid(f"{where}.maxSurge", surge, "may not be set when maxUnavailable is non-zero"))
    elif not _is_not_zero(unavailable) and not _is_not_zero(surge):
        out.append(required(f"{where}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return out


def _rolling_update(strategy: ReadOnlyJSON, path: str) -> tuple[int | str, int | str, str]:
    """Returns ``maxUnavailable`` and ``maxSurge`` of a strategy with defaults, and the path of their mapping."""
    rolling = strategy.get("rollingUpdate") or {}
    return rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0), f"{path}.rollingUpdate"


def _is_not_zero(value: int | str) -> bool:
    """Returns whether a number or a percentage is not 0. Text without a number counts as 0, as in Kubernetes."""
    return bool(_NOT_ZERO.fullmatch(str(value)))


def _job(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    spec = _spec(obj)
    limits = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
    out = at_least(spec, "spec", 0, "parallelism", "completions", *limits)
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        out.append(required("spec.completions", "when completion mode is Indexed"))
    out += validate_template(spec.get("template"), "spec.template", ("OnFailure", "Never"))
    if old is None and spec.get("selector") and not spec.get("manualSelector"):
        out.append(invalid("spec.selector", spec["selector"], "`selector` not auto-generated"))
    if old is not None:
        before = _spec(old)
        for field in ("selector", "completionMode"):
            if spec.get(field) != before.get(field):
                out.append(invalid(f"spec.{field}", spec.get(field), IMMUTABLE))
        if spec.get("template") != before.get("template") and not before.get("suspend"):
            out.append(invalid("spec.template", "<value omitted>", IMMUTABLE))
    return out


# --- other kinds ------------------------------------------------------------------------------------


def _lease(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    spec = _spec(obj)
    return positive(spec, "spec", "leaseDurationSeconds") + at_least(spec, "spec", 0, "leaseTransitions")


def _role(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out: list[FieldError] = []
    for i, rule in enumerate(obj.get("rules") or []):
        where = f"rules[{i}]"
        if not rule.get("verbs"):
            out.append(required(f"{where}.verbs", "verbs must contain at least one value"))
        if rule.get("nonResourceURLs"):
            if any(rule.get(f) for f in ("apiGroups", "resources", "resourceNames")):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                out.append(invalid(f"{where}.nonResourceURLs", rule["nonResourceURLs"], detail))
            continue
        if not rule.get("apiGroups"):
            out.append(required(f"{where}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            out.append(required(f"{where}.resources", "resource rules must supply at least one resource"))
    return out


def _role_binding(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    reference = obj.get("roleRef") or {}
    out = optional_choice(reference.get("apiGroup", ""), "roleRef.apiGroup", (_RBAC_GROUP,))
    out += optional_choice(reference.get("kind", ""), "roleRef.kind", ("Role", "ClusterRole"))
    out += missing(reference, "roleRef", "name")
    for i, subject in enumerate(obj.get("subjects") or []):
        where = f"subjects[{i}]"
        out += missing(subject, where, "name")
        out += optional_choice(subject.get("kind", ""), f"{where}.kind", ("ServiceAccount", "User", "Group"))
        out += missing(subject, where, "namespace") if subject.get("kind") == "ServiceAccount" else []
    if old is not None and (old.get("roleRef") or {}) != reference:
        out.append(invalid("roleRef", reference, "cannot change roleRef"))
    return out


_MAX_PRIORITY = 1_000_000_000


def _priority(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    out: list[FieldError] = []
    value, name = obj.get("value", 0), obj["metadata"].get("name", "")
    if value > _MAX_PRIORITY and not name.startswith("system-"):
        out.append(forbidden("value", f"maximum allowed value of a user defined priority is {_MAX_PRIORITY}"))
    if old is not None and old.get("value", 0) != value:
        out.append(forbidden("value", "may not be changed in an update."))
    return out


def _budget(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    spec = _spec(obj)
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    return label_selector(spec.get("selector"), "spec.selector")


def _taint_rule(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    taint = _spec(obj).get("taint") or {}
    out = invalids("spec.taint.key", taint.get("key", ""), names.qualified(taint.get("key", "")))
    out += invalids("spec.taint.value", taint.get("value", ""), names.label_value(taint.get("value", "")))
    return out + common.taint_effect(taint.get("effect", ""), "spec.taint.effect")


_RULES: Mapping[str, Callable[[ReadOnlyJSON, ReadOnlyJSON | None], list[FieldError]]] = {
    "pods": _pod,
    "nodes": _node,
    "configmaps": _data,
    "secrets": _secret,
    "services": _service,
    "events": _event,
    "resourcequotas": _quota,
    "deployments.apps": _deployment,
    "replicasets.apps": _workload,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "leases.coordination.k8s.io": _lease,
    f"roles.{_RBAC_GROUP}": _role,
    f"clusterroles.{_RBAC_GROUP}": _role,
    f"rolebindings.{_RBAC_GROUP}": _role_binding,
    f"clusterrolebindings.{_RBAC_GROUP}": _role_binding,
    "priorityclasses.scheduling.k8s.io": _priority,
    _POD_GROUPS: validate_group,
    "networkpolicies.networking.k8s.io": validate_network_policy,
    "poddisruptionbudgets.policy": _budget,
    "validatingadmissionpolicies.admissionregistration.k8s.io": policies.policy,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": policies.policy_binding,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": policies.webhooks,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": policies.webhooks,
    "devicetaintrules.resource.k8s.io": _taint_rule,
    _POOL_STATUS_REQUESTS: validate_request,
}
_STATUS_RULES: Mapping[str, Callable[[ReadOnlyJSON, ReadOnlyJSON | None], list[FieldError]]] = {
    _POD_GROUPS: validate_group_status,
    _POOL_STATUS_REQUESTS: validate_request_status,
}
