"""What a pod, and the template of one, must fulfil: names, containers, claims, scheduling, resources.

Source: the validation package of the core API group.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....resources import names, rules
from ....resources.fields import FieldError, duplicate, forbidden, invalid, invalids, required, unsupported
from ....resources.quantity import Quantity, QuantityError
from .label_selectors import label_selector
from .pod_probes import validate_life
from .pod_security import validate_container_security, validate_security
from .pod_spread import validate_spread
from .pod_volumes import validate_uses, validate_volumes
from .unique_names import unique_label

JSON = Mapping[str, Any]
_RESTART = ("Always", "Never", "OnFailure")
_DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_PULL = ("Always", "IfNotPresent", "Never")
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_MIRROR = "kubernetes.io/config.mirror"
_NOTHING = Quantity(0)
_NATIVE = ("cpu", "memory", "ephemeral-storage")
_OF_PODS = ("cpu", "hugepages-", "memory")
_ENV = re.compile(r"[ -<>-~]+")
_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_ENV_KEYED = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]")
_ENV_RESOURCES = tuple(f"{kind}.{name}" for kind in ("limits", "requests") for name in _NATIVE)
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def validate_pod(pod: JSON) -> list[FieldError]:
    """Every fault of a new pod, beside those of its metadata."""
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
    """Every fault of a pod template of a workload whose pods restart in one of the ways of ``restart``."""
    spec = (template or {}).get("spec") or {}
    out = validate_spec(spec, f"{path}.spec")
    if spec.get("containers") and spec.get("restartPolicy") not in restart:
        out.append(unsupported(f"{path}.spec.restartPolicy", spec.get("restartPolicy", ""), restart))
    return out


def validate_spec(spec: JSON, path: str) -> list[FieldError]:
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
    out += _host_ports(containers, f"{path}.containers")
    out += _containers(containers, f"{path}.containers", known, volumes, seen, host_network=shared)
    out += _containers(
        spec.get("initContainers") or [], f"{path}.initContainers", known, volumes, seen, host_network=shared, init=True
    )
    if spec.get("restartPolicy") not in _RESTART:
        out.append(_choice(f"{path}.restartPolicy", spec.get("restartPolicy"), _RESTART))
    if spec.get("dnsPolicy") not in _DNS:
        out.append(_choice(f"{path}.dnsPolicy", spec.get("dnsPolicy"), _DNS))
    out += _numbers(spec, path)
    for key, value in (spec.get("nodeSelector") or {}).items():
        out += invalids(f"{path}.nodeSelector", key, names.qualified(key))
        out += invalids(f"{path}.nodeSelector", value, names.label_value(value))
    out += _names(spec, path)
    out += _tolerations(spec.get("tolerations") or [], f"{path}.tolerations")
    out += _gates(spec.get("schedulingGates") or [], f"{path}.schedulingGates")
    out += validate_security(spec, path) + _of_pod(spec, f"{path}.resources")
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        rule = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        out.append(required(f"{path}.dnsConfig.nameservers", rule))
    return out + _affinity(spec.get("affinity") or {}, f"{path}.affinity") + validate_spread(spec, path)


def _choice(path: str, value: Any, allowed: Sequence[str]) -> FieldError:
    return unsupported(path, value, allowed) if value else required(path)


def _numbers(spec: JSON, path: str) -> list[FieldError]:
    out = []
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        out.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline < 2**31:
        out.append(invalid(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))
    return out


def _names(spec: JSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for field in ("nodeName", "serviceAccountName", "schedulerName", "priorityClassName"):
        if value := spec.get(field):
            out += invalids(f"{path}.{field}", value, names.subdomain(value))
    for field in ("hostname", "subdomain"):
        if value := spec.get(field):
            out += invalids(f"{path}.{field}", value, names.label(value))
    return out


# --- containers -------------------------------------------------------------------------------------


def _containers(
    containers: Sequence[JSON],
    path: str,
    claims: set[Any],
    volumes: Mapping[str, JSON],
    seen: set[str],
    *,
    host_network: bool,
    init: bool = False,
) -> list[FieldError]:
    out: list[FieldError] = []
    for i, container in enumerate(containers):
        where = f"{path}[{i}]"
        name = container.get("name", "")
        out += unique_label(f"{where}.name", name, seen)
        image = container.get("image", "")
        if not image:
            out.append(required(f"{where}.image"))
        elif image != image.strip():
            out.append(invalid(f"{where}.image", image, "must not have leading or trailing whitespace"))
        if container.get("imagePullPolicy") not in _PULL:
            out.append(_choice(f"{where}.imagePullPolicy", container.get("imagePullPolicy"), _PULL))
        out += _ports(container.get("ports") or [], f"{where}.ports", host_network=host_network)
        out += _environment(container.get("env") or [], f"{where}.env")
        out += _environment_from(container.get("envFrom") or [], f"{where}.envFrom")
        out += validate_uses(container, where, volumes)
        out += validate_container_security(container, where) + validate_life(container, where)
        out += _resources(container.get("resources") or {}, f"{where}.resources", claims)
        out += _restart(container, where, init=init)
    return out


def _restart(container: JSON, where: str, *, init: bool) -> list[FieldError]:
    out: list[FieldError] = []
    policy = container.get("restartPolicy")
    if init and policy is not None and policy not in _RESTART:
        out.append(unsupported(f"{where}.restartPolicy", policy, _RESTART))
    if init and policy != "Always":
        for probe in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(probe) is not None:
                out.append(
                    forbidden(f"{where}.{probe}", "may not be set for init containers without restartPolicy=Always")
                )
    return out


def _ports(ports: Sequence[JSON], path: str, *, host_network: bool) -> list[FieldError]:
    out: list[FieldError] = []
    known: set[str] = set()
    for i, port in enumerate(ports):
        where = f"{path}[{i}]"
        if name := port.get("name"):
            if len(name) > 15 or not _PORT_NAME.fullmatch(name) or not any(c.isalpha() for c in name) or "--" in name:
                rule = "must be a valid port name of at most 15 characters (e.g. http or http-2)"
                out.append(invalid(f"{where}.name", name, rule))
            elif name in known:
                out.append(duplicate(f"{where}.name", name))
            known.add(name)
        number = port.get("containerPort", 0)
        if not number:
            out.append(required(f"{where}.containerPort"))
        elif not 1 <= number <= 65535:
            out.append(invalid(f"{where}.containerPort", number, "must be between 1 and 65535, inclusive"))
        host = port.get("hostPort")
        if host and not 1 <= host <= 65535:
            out.append(invalid(f"{where}.hostPort", host, "must be between 1 and 65535, inclusive"))
        elif host and host_network and host != number:
            out.append(invalid(f"{where}.containerPort", number, "must match `hostPort` when `hostNetwork` is true"))
        if port.get("protocol") not in {"TCP", "UDP", "SCTP"}:
            out.append(_choice(f"{where}.protocol", port.get("protocol"), ("TCP", "UDP", "SCTP")))
    return out


def _host_ports(containers: Sequence[JSON], path: str) -> list[FieldError]:
    """No two containers have one port of the host."""
    out: list[FieldError] = []
    taken: set[str] = set()
    for i, container in enumerate(containers):
        for j, port in enumerate(container.get("ports") or []):
            if not port.get("hostPort"):
                continue
            key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if key in taken:
                out.append(duplicate(f"{path}[{i}].ports[{j}].hostPort", key))
            taken.add(key)
    return out


def _environment(env: Sequence[JSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, entry in enumerate(env):
        name = entry.get("name", "")
        if not name:
            out.append(required(f"{path}[{i}].name"))
        elif not _ENV.fullmatch(name):
            rule = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            out.append(invalid(f"{path}[{i}].name", name, rule))
        source = entry.get("valueFrom")
        if source is not None and entry.get("value"):
            out.append(invalid(f"{path}[{i}].valueFrom", "", "may not be specified when `value` is not empty"))
        elif source is not None and len(source) != 1:
            rule = (
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            )
            out.append(
                invalid(
                    f"{path}[{i}].valueFrom",
                    "",
                    rule if not source else "may not have more than one field specified at a time",
                )
            )
        elif source:
            out += _env_source(source, f"{path}[{i}].valueFrom")
    return out


def _env_source(source: JSON, path: str) -> Iterable[FieldError]:
    if (ref := source.get("fieldRef")) is not None:
        field = ref.get("fieldPath") or ""
        if not field:
            yield required(f"{path}.fieldRef.fieldPath")
        elif field not in _ENV_FIELDS and not _ENV_KEYED.fullmatch(field):
            yield unsupported(f"{path}.fieldRef.fieldPath", field, _ENV_FIELDS)
    if (ref := source.get("resourceFieldRef")) is not None:
        name = ref.get("resource") or ""
        if not name:
            yield required(f"{path}.resourceFieldRef.resource")
        elif name not in _ENV_RESOURCES and not name.startswith(("limits.hugepages-", "requests.hugepages-")):
            yield unsupported(f"{path}.resourceFieldRef.resource", name, _ENV_RESOURCES)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if (ref := source.get(kind)) is not None:
            for field in ("name", "key"):
                if not ref.get(field):
                    yield required(f"{path}.{kind}.{field}")


def _environment_from(sources: Sequence[JSON], path: str) -> Iterable[FieldError]:
    for i, source in enumerate(sources):
        given = [k for k in ("configMapRef", "secretRef") if source.get(k) is not None]
        if not given:
            yield invalid(f"{path}[{i}]", "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            yield invalid(f"{path}[{i}]", "", "may not have more than one field specified at a time")
        for kind in given:
            if not source[kind].get("name"):
                yield required(f"{path}[{i}].{kind}.name")


def _resources(resources: JSON, path: str, claims: set[Any]) -> list[FieldError]:
    out: list[FieldError] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            where = f"{path}.{field}[{name}]"
            out += _resource_name(name, where)
            value = _amount(amount)
            if value is not None and value < _NOTHING:
                out.append(invalid(where, amount, "must be greater than or equal to 0"))
            elif value is not None and name not in _NATIVE and not _is_huge(name) and not value.is_integer:
                out.append(invalid(where, amount, "must be an integer"))
    for name, amount in requests.items():
        where = f"{path}.requests"
        limit = limits.get(name)
        if limit is None:
            if _is_extended(name) or _is_huge(name):
                out.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            continue
        asked, most = _amount(amount), _amount(limit)
        if asked is None or most is None:
            continue
        if (_is_extended(name) or _is_huge(name)) and asked != most:
            out.append(invalid(where, amount, f"must be equal to {name} limit of {limit}"))
        elif asked > most:
            out.append(invalid(where, amount, f"must be less than or equal to {name} limit of {limit}"))
    given = limits.keys() | requests.keys()
    if any(_is_huge(name) for name in given) and not given & {"cpu", "memory"}:
        out.append(forbidden(path, "HugePages require cpu or memory"))
    return out + _container_claims(resources.get("claims") or [], f"{path}.claims", claims)


def _of_pod(spec: JSON, path: str) -> list[FieldError]:
    """``spec.resources``: of the pod as a whole, so no less than what its containers ask for together."""
    out: list[FieldError] = []
    whole = spec.get("resources") or {}
    for field in ("limits", "requests"):
        for name in whole.get(field) or {}:
            if name not in _OF_PODS and not _is_huge(name):
                out.append(unsupported(f"{path}.{field}[{name}]", name, _OF_PODS))
    for name, amount in (whole.get("requests") or {}).items():
        asked = [((c.get("resources") or {}).get("requests") or {}).get(name) for c in spec.get("containers") or []]
        together = sum((a for text in asked if (a := _amount(text))), _NOTHING)
        if (own := _amount(amount)) is not None and own < together:
            rule = f"must be greater than or equal to aggregate container requests of {together}"
            out.append(invalid(f"{path}.requests[{name}]", amount, rule))
    return out


def _resource_name(name: str, where: str) -> list[FieldError]:
    if "/" in name:
        return invalids(where, name, names.qualified(name))
    if name in _NATIVE or _is_huge(name):
        return []
    return [invalid(where, name, "must be a standard resource type or fully qualified")]


def _is_huge(name: str) -> bool:
    return name.startswith("hugepages-")


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def _amount(text: Any) -> Quantity | None:
    try:
        return Quantity(str(text))
    except QuantityError:
        return None


def _container_claims(given: Sequence[JSON], path: str, known: set[Any]) -> list[FieldError]:
    out: list[FieldError] = []
    whole: set[str] = set()
    requests: set[tuple[str, str]] = set()
    for i, claim in enumerate(given):
        name, request = claim.get("name", ""), claim.get("request", "")
        if not name:
            out.append(required(f"{path}[{i}]"))
            continue
        if name in whole or (name, request) in requests:
            out.append(duplicate(f"{path}[{i}]", name if not request else f"{name}/{request}"))
        elif not request and any(n == name for n, _ in requests):
            out.append(duplicate(f"{path}[{i}]", name))
        if request:
            requests.add((name, request))
        else:
            whole.add(name)
        if name not in known:
            out.append(FieldError("FieldValueNotFound", f"{path}[{i}]", f'Not found: "{name}"'))
    return out


# --- what belongs to the pod ------------------------------------------------------------------------


def _claims(claims: Sequence[JSON], path: str) -> list[FieldError]:
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


def _shown_claim(claim: JSON) -> JSON:
    """As a Go struct is printed."""
    return {
        "Name": claim.get("name", ""),
        "ResourceClaimName": claim.get("resourceClaimName"),
        "ResourceClaimTemplateName": claim.get("resourceClaimTemplateName"),
    }


def _tolerations(tolerations: Sequence[JSON], path: str) -> list[FieldError]:
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


def _gates(gates: Sequence[JSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    seen: set[str] = set()
    for i, gate in enumerate(gates):
        name = gate.get("name", "")
        out += invalids(f"{path}[{i}]", name, names.qualified(name))
        if name in seen:
            out.append(duplicate(f"{path}[{i}]", name))
        seen.add(name)
    return out


def _affinity(affinity: JSON, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    node = affinity.get("nodeAffinity") or {}
    where = f"{path}.nodeAffinity"
    if (must := node.get("requiredDuringSchedulingIgnoredDuringExecution")) is not None:
        out += rules.node_selector(must, f"{where}.requiredDuringSchedulingIgnoredDuringExecution")
    for i, preferred in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or []):
        at = f"{where}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        out += _weight(preferred, at)
        term = {"nodeSelectorTerms": [preferred.get("preference") or {}]}
        for fault in rules.node_selector(term, at):
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


def _weight(term: JSON, path: str) -> list[FieldError]:
    weight = term.get("weight", 0)
    return [] if 1 <= weight <= 100 else [invalid(f"{path}.weight", weight, "must be in the range 1-100")]


def _pod_term(term: JSON, path: str) -> list[FieldError]:
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


def validate_update(pod: JSON, old: JSON) -> list[FieldError]:
    """Every fault of a new spec: hardly anything of a pod can be changed."""
    new, before = pod.get("spec") or {}, old.get("spec") or {}
    out = validate_spec(new, "spec")
    out += _deadline(new, before)
    out += _gates_only_go(new, before)
    out += _tolerations_only_grow(new, before)
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


def _comparable(spec: JSON, before: JSON) -> JSON:
    """``spec`` with what may change taken from ``before``."""
    out = copy.deepcopy(dict(spec))
    for field in ("containers", "initContainers"):
        for container, was in zip(out.get(field) or (), before.get(field) or (), strict=False):
            container["image"] = was.get("image")
    free = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if before.get("schedulingGates"):  # a gated pod may be given more narrow selectors
        free += ["nodeSelector", "affinity"]
    if before.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        free.append("terminationGracePeriodSeconds")
    for field in free:
        out[field] = before.get(field)
    return out


def _deadline(new: JSON, before: JSON) -> list[FieldError]:
    was, now = before.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if was is None or was == now:
        return []
    if now is None:
        return [invalid("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")]
    if now > was:
        return [invalid("spec.activeDeadlineSeconds", now, "must be less than or equal to previous value")]
    return []


def _gates_only_go(new: JSON, before: JSON) -> list[FieldError]:
    had = {g.get("name") for g in before.get("schedulingGates") or []}
    added = [g.get("name") for g in new.get("schedulingGates") or [] if g.get("name") not in had]
    if added:
        return [
            forbidden("spec.schedulingGates", f"only deletion is allowed, but found new scheduling gate '{added[0]}'")
        ]
    return []


def _tolerations_only_grow(new: JSON, before: JSON) -> list[FieldError]:
    kept: Iterable[JSON] = new.get("tolerations") or []
    if all(any(t == k for k in kept) or _longer(t, kept) for t in before.get("tolerations") or []):
        return []
    return [forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")]


def _longer(toleration: JSON, kept: Iterable[JSON]) -> bool:
    bare = {k: v for k, v in toleration.items() if k != "tolerationSeconds"}
    return any({k: v for k, v in t.items() if k != "tolerationSeconds"} == bare for t in kept)
