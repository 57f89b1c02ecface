"""Validates pods and pod templates: names, claims and scheduling. :mod:`.containers` validates containers.

Source: the validation package of the core API group.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import common, names
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalids,
    required,
    unsupported,
)

from .container_resources import validate_pod_resources
from .containers import RESTART_POLICIES, choice_error, validate_containers, validate_host_ports
from .label_selectors import label_selector
from .pod_groups import validate_membership
from .pod_security import validate_security
from .pod_spread import validate_spread
from .pod_volumes import validate_volumes
from .unique_names import unique_label

_DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_MIRROR = "kubernetes.io/config.mirror"


def validate_pod(pod: ReadOnlyJSON) -> list[FieldError]:
    """Returns all errors of a new pod, except those of its metadata."""
    spec = pod.get("spec") or {}
    out = validate_spec(spec, "spec")
    if spec.get("ephemeralContainers"):
        out.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if _MIRROR in annotations and not spec.get("nodeName"):
        rule = "must set spec.nodeName if mirror pod annotation is set"
        out.append(invalid(f"metadata.annotations[{_MIRROR}]", "", rule))
    gates = spec.get("schedulingGates") or []
    if gates and spec.get("nodeName"):
        out.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return out


def validate_template(template: Any, path: str, restart: Sequence[str] = ("Always",)) -> list[FieldError]:
    """Returns all errors of a workload's pod template. ``restart`` lists the restart policies that the workload allows."""
    spec = (template or {}).get("spec") or {}
    out = validate_spec(spec, f"{path}.spec")
    if spec.get("containers") and spec.get("restartPolicy") not in restart:
        out.append(unsupported(f"{path}.spec.restartPolicy", spec.get("restartPolicy", ""), restart))
    return out


def validate_spec(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = validate_volumes(spec.get("volumes") or [], f"{path}.volumes")
    volumes = {v.get("name", ""): v for v in spec.get("volumes") or []}
    claims = spec.get("resourceClaims") or []
    out += _claims(claims, f"{path}.resourceClaims")
    known = {c.get("name") for c in claims}
    containers = spec.get("containers") or []
    if not containers:
        out.append(required(f"{path}.containers"))
    seen: set[str] = set()
    shared = bool(spec.get("hostNetwork"))
    out += validate_host_ports(containers, f"{path}.containers")
    out += validate_containers(containers, f"{path}.containers", known, volumes, seen, host_network=shared)
    out += validate_containers(
        spec.get("initContainers") or [], f"{path}.initContainers", known, volumes, seen, host_network=shared, init=True
    )
    if spec.get("restartPolicy") not in RESTART_POLICIES:
        out.append(choice_error(f"{path}.restartPolicy", spec.get("restartPolicy"), RESTART_POLICIES))
    if spec.get("dnsPolicy") not in _DNS:
        out.append(choice_error(f"{path}.dnsPolicy", spec.get("dnsPolicy"), _DNS))
    out += _numbers(spec, path)
    for key, value in (spec.get("nodeSelector") or {}).items():
        out += invalids(f"{path}.nodeSelector", key, names.qualified(key))
        out += invalids(f"{path}.nodeSelector", value, names.label_value(value))
    out += _names(spec, path)
    out += _tolerations(spec.get("tolerations") or [], f"{path}.tolerations")
    out += _gates(spec.get("schedulingGates") or [], f"{path}.schedulingGates")
    out += validate_membership(spec, path)
    out += validate_security(spec, path) + validate_pod_resources(spec, f"{path}.resources")
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        rule = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        out.append(required(f"{path}.dnsConfig.nameservers", rule))
    return out + _affinity(spec.get("affinity") or {}, f"{path}.affinity") + validate_spread(spec, path)


def _numbers(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = []
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        out.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline < 2**31:
        out.append(invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))
    return out


def _names(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for field in ("nodeName", "serviceAccountName", "schedulerName", "priorityClassName"):
        if value := spec.get(field):
            out += invalids(f"{path}.{field}", value, names.subdomain(value))
    for field in ("hostname", "subdomain"):
        if value := spec.get(field):
            out += invalids(f"{path}.{field}", value, names.label(value))
    return out


# --- claims, tolerations, gates, affinity -----------------------------------------------------------


def _claims(claims: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    seen: set[str] = set()
    for i, claim in enumerate(claims):
        where = f"{path}[{i}]"
        name = claim.get("name", "")
        out += unique_label(f"{where}.name", name, seen)
        sources = [f for f in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(f) is not None]
        if not sources:
            rule = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            out.append(invalid(where, _shown_claim(claim), rule))
        elif len(sources) > 1:
            rule = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            out.append(invalid(where, _shown_claim(claim), rule))
        for field in sources:
            out += invalids(f"{where}.{field}", claim[field], names.subdomain(claim[field]))
    return out


def _shown_claim(claim: ReadOnlyJSON) -> ReadOnlyJSON:
    """Returns the claim with the names of its Go struct, as error messages of Kubernetes contain it."""
    return {
        "Name": claim.get("name", ""),
        "ResourceClaimName": claim.get("resourceClaimName"),
        "ResourceClaimTemplateName": claim.get("resourceClaimTemplateName"),
    }


def _tolerations(tolerations: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, toleration in enumerate(tolerations):
        where = f"{path}[{i}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "")
        effect = toleration.get("effect", "")
        if key:
            out += invalids(f"{where}.key", key, names.qualified(key))
        elif operator != "Exists":
            rule = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            out.append(invalid(f"{where}.operator", operator, rule))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            rule = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            out.append(invalid(f"{where}.effect", effect, rule))
        value = toleration.get("value", "")
        if operator in {"", "Equal"}:
            out += invalids(f"{where}.operator", value, names.label_value(value))
        elif operator == "Exists":
            if value:
                out.append(invalid(f"{where}.operator", toleration, "value must be empty when `operator` is 'Exists'"))
        elif operator not in {"Gt", "Lt"}:
            out.append(unsupported(f"{where}.operator", operator, ("Equal", "Exists", "Lt", "Gt")))
        if effect and effect not in _EFFECTS:
            out.append(unsupported(f"{where}.effect", effect, _EFFECTS))
    return out


def _gates(gates: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    seen: set[str] = set()
    for i, gate in enumerate(gates):
        name = gate.get("name", "")
        out += invalids(f"{path}[{i}]", name, names.qualified(name))
        if name in seen:
            out.append(duplicate(f"{path}[{i}]", name))
        seen.add(name)
    return out


def _affinity(affinity: ReadOnlyJSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    node = affinity.get("nodeAffinity") or {}
    where = f"{path}.nodeAffinity"
    if (required_terms := node.get("requiredDuringSchedulingIgnoredDuringExecution")) is not None:
        out += common.node_selector(required_terms, f"{where}.requiredDuringSchedulingIgnoredDuringExecution")
    for i, preferred in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or []):
        at = f"{where}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        out += _weight(preferred, at)
        term = {"nodeSelectorTerms": [preferred.get("preference") or {}]}
        for fault in common.node_selector(term, at):
            out.append(
                FieldError(fault.reason, fault.field.replace("nodeSelectorTerms[0]", "preference"), fault.message)
            )
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        at = f"{path}.{kind}"
        for i, term in enumerate(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or []):
            out += _pod_term(term, f"{at}.requiredDuringSchedulingIgnoredDuringExecution[{i}]")
        for i, weighted in enumerate(terms.get("preferredDuringSchedulingIgnoredDuringExecution") or []):
            here = f"{at}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
            out += _weight(weighted, here) + _pod_term(weighted.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    return out


def _weight(term: ReadOnlyJSON, path: str) -> list[FieldError]:
    weight = term.get("weight", 0)
    return [] if 1 <= weight <= 100 else [invalid(f"{path}.weight", weight, "must be in the range 1-100")]


def _pod_term(term: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = label_selector(term.get("labelSelector") or {}, f"{path}.labelSelector")
    out += label_selector(term.get("namespaceSelector") or {}, f"{path}.namespaceSelector")
    for i, namespace in enumerate(term.get("namespaces") or []):
        out += invalids(f"{path}.namespaces[{i}]", namespace, names.label(namespace))
    if term.get("labelSelector") is None:
        unselected = [f for f in ("matchLabelKeys", "mismatchLabelKeys") if term.get(f)]
        out += [forbidden(f"{path}.{f}", "must not be specified when labelSelector is not set") for f in unselected]
    key = term.get("topologyKey", "")
    if not key:
        return [*out, required(f"{path}.topologyKey", "can not be empty")]
    return out + invalids(f"{path}.topologyKey", key, names.qualified(key))


# --- updates ----------------------------------------------------------------------------------------

_CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_update(pod: ReadOnlyJSON, old: ReadOnlyJSON) -> list[FieldError]:
    """Returns all errors of an updated pod. Only a few fields of a pod's spec may change."""
    new, before = pod.get("spec") or {}, old.get("spec") or {}
    out = validate_spec(new, "spec")
    out += _deadline(new, before)
    out += _check_gates(new, before)
    out += _check_tolerations(new, before)
    counts = [len(s.get(f) or []) for s in (new, before) for f in ("containers", "initContainers")]
    if counts[:2] != counts[2:]:
        if counts[0] != counts[2]:
            out.append(forbidden("spec.containers", "pod updates may not add or remove containers"))
        if counts[1] != counts[3]:
            out.append(forbidden("spec.initContainers", "pod updates may not add or remove containers"))
        return out
    if _comparable(new, before) != _comparable(before, before):
        out.append(forbidden("spec", _CHANGEABLE))
    return out


def _comparable(spec: ReadOnlyJSON, before: ReadOnlyJSON) -> ReadOnlyJSON:
    """Returns ``spec`` with the old values of the fields that may change. If it then differs from ``before``, the update is invalid."""
    out = copy.deepcopy(dict(spec))
    for field in ("containers", "initContainers"):
        for container, was in zip(out.get(field) or (), before.get(field) or (), strict=False):
            container["image"] = was.get("image")
    changeable = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    # Kubernetes allows only narrower selectors for a pod with scheduling gates. This check accepts any change of the selectors.
    if before.get("schedulingGates"):
        changeable += ["nodeSelector", "affinity"]
    if before.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        changeable.append("terminationGracePeriodSeconds")
    for field in changeable:
        out[field] = before.get(field)
    return out


def _deadline(new: ReadOnlyJSON, before: ReadOnlyJSON) -> list[FieldError]:
    was, now = before.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if was is None or was == now:
        return []
    if now is None:
        return [invalid("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")]
    if now > was:
        return [invalid("spec.activeDeadlineSeconds", now, "must be less than or equal to previous value")]
    return []


def _check_gates(new: ReadOnlyJSON, before: ReadOnlyJSON) -> list[FieldError]:
    had = {g.get("name") for g in before.get("schedulingGates") or []}
    added = [g.get("name") for g in new.get("schedulingGates") or [] if g.get("name") not in had]
    if added:
        return [
            forbidden("spec.schedulingGates", f"only deletion is allowed, but found new scheduling gate '{added[0]}'")
        ]
    return []


def _check_tolerations(new: ReadOnlyJSON, before: ReadOnlyJSON) -> list[FieldError]:
    kept: Iterable[ReadOnlyJSON] = new.get("tolerations") or []
    if all(any(t == k for k in kept) or _is_kept(t, kept) for t in before.get("tolerations") or []):
        return []
    return [forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")]


def _is_kept(toleration: ReadOnlyJSON, kept: Iterable[ReadOnlyJSON]) -> bool:
    bare = {k: v for k, v in toleration.items() if k != "tolerationSeconds"}
    return any({k: v for k, v in t.items() if k != "tolerationSeconds"} == bare for t in kept)
