"""Validates pods and pod templates: names, claims and scheduling. :mod:`.containers` validates containers.

Source: the validation package of the core API group.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
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

from .checks import at_least, between, choice, label_selector, labels, missing, optional_choice, unique_label
from .container_resources import validate_pod_resources
from .containers import RESTART_POLICIES, validate_containers, validate_host_ports
from .pod_groups import validate_membership
from .pod_security import validate_security
from .pod_spread import validate_spread
from .pod_volumes import validate_volumes

_DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_MIRROR = "kubernetes.io/config.mirror"
_NAMES = dict.fromkeys(("nodeName", "serviceAccountName", "schedulerName", "priorityClassName"), names.subdomain)
_NAMES |= dict.fromkeys(("hostname", "subdomain"), names.label)
_REQUIRED, _PREFERRED = (f"{k}DuringSchedulingIgnoredDuringExecution" for k in ("required", "preferred"))


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
    out += missing(spec, path, "containers")
    seen: set[str] = set()
    shared = bool(spec.get("hostNetwork"))
    out += validate_host_ports(containers, f"{path}.containers")
    out += validate_containers(containers, f"{path}.containers", known, volumes, seen, host_network=shared)
    out += validate_containers(
        spec.get("initContainers") or [], f"{path}.initContainers", known, volumes, seen, host_network=shared, init=True
    )
    out += choice(spec.get("restartPolicy"), f"{path}.restartPolicy", RESTART_POLICIES)
    out += choice(spec.get("dnsPolicy"), f"{path}.dnsPolicy", _DNS)
    out += at_least(spec, path, 0, "terminationGracePeriodSeconds")
    if (deadline := spec.get("activeDeadlineSeconds")) is not None:
        out += between(deadline, f"{path}.activeDeadlineSeconds", 1, 2**31 - 1)
    out += labels(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    for field, faults_of in _NAMES.items():
        if value := spec.get(field):
            out += invalids(f"{path}.{field}", value, faults_of(value))
    out += _tolerations(spec.get("tolerations") or [], f"{path}.tolerations")
    out += _gates(spec.get("schedulingGates") or [], f"{path}.schedulingGates")
    out += validate_membership(spec, path)
    out += validate_security(spec, path)
    out += validate_pod_resources(spec, f"{path}.resources")
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        rule = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        out.append(required(f"{path}.dnsConfig.nameservers", rule))
    return out + _affinity(spec.get("affinity") or {}, f"{path}.affinity") + validate_spread(spec, path)


# --- claims, tolerations, gates, affinity -----------------------------------------------------------


def _claims(claims: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    seen: set[str] = set()
    for i, claim in enumerate(claims):
        where = f"{path}[{i}]"
        name = claim.get("name", "")
        out += unique_label(f"{where}.name", name, seen)
        sources = [f for f in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(f) is not None]
        if len(sources) != 1:
            none = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            both = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            # Error messages of Kubernetes contain the claim with the names of its Go struct.
            shown = {f"{f[0].upper()}{f[1:]}": claim.get(f) for f in ("resourceClaimName", "resourceClaimTemplateName")}
            out.append(invalid(where, {"Name": name, **shown}, both if sources else none))
        for field in sources:
            out += invalids(f"{where}.{field}", claim[field], names.subdomain(claim[field]))
    return out


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
        out += optional_choice(effect or None, f"{where}.effect", _EFFECTS)
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
    if (required_terms := node.get(_REQUIRED)) is not None:
        out += common.node_selector(required_terms, f"{where}.{_REQUIRED}")
    for i, preferred in enumerate(node.get(_PREFERRED) or []):
        at = f"{where}.{_PREFERRED}[{i}]"
        out += _weight(preferred, at)
        term = {"nodeSelectorTerms": [preferred.get("preference") or {}]}
        for fault in common.node_selector(term, at):
            out.append(replace(fault, field=fault.field.replace("nodeSelectorTerms[0]", "preference")))
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        at = f"{path}.{kind}"
        for i, term in enumerate(terms.get(_REQUIRED) or []):
            out += _pod_term(term, f"{at}.{_REQUIRED}[{i}]")
        for i, weighted in enumerate(terms.get(_PREFERRED) or []):
            here = f"{at}.{_PREFERRED}[{i}]"
            out += _weight(weighted, here) + _pod_term(weighted.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    return out


def _weight(term: ReadOnlyJSON, path: str) -> list[FieldError]:
    weight = term.get("weight", 0)
    return [] if 1 <= weight <= 100 else [invalid(f"{path}.weight", weight, "must be in the range 1-100")]


def _pod_term(term: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    out += label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
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
    resized = [f for f in ("containers", "initContainers") if len(new.get(f) or []) != len(before.get(f) or [])]
    if resized:
        return out + [forbidden(f"spec.{f}", "pod updates may not add or remove containers") for f in resized]
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
    rule = "only deletion is allowed, but found new scheduling gate '{}'"
    return [forbidden("spec.schedulingGates", rule.format(name)) for name in added[:1]]


def _check_tolerations(new: ReadOnlyJSON, before: ReadOnlyJSON) -> list[FieldError]:
    had, kept = ([_without_seconds(t) for t in s.get("tolerations") or []] for s in (before, new))
    if all(t in kept for t in had):
        return []
    return [forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")]


def _without_seconds(toleration: ReadOnlyJSON) -> ReadOnlyJSON:
    return {k: v for k, v in toleration.items() if k != "tolerationSeconds"}
