"""The arithmetic of ResourceQuotas: what objects use, and which resources of a quota an object would exceed.

A claim uses quota by device class (KEP-4381, KEP-5004). If a request has alternatives, the largest number of devices of a class counts.
A device of a class with an extended resource name also counts under that name. Source: the quota evaluators of Kubernetes.
Kinds have the names of quotas: ``pods``, ``resourceclaims.resource.k8s.io``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, QuantityError

Amounts = dict[str, Quantity]
ExtendedName = Callable[[str], str]
"""Returns the extended resource name of a DeviceClass; empty if it has none."""
PODS, CLAIMS = "pods", "resourceclaims.resource.k8s.io"
# The number that counts for a request with the mode "All": the maximum number of results in an allocation.
_ALL_DEVICES = 32
_EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
# Kinds that count under their plural name, in addition to the name with the prefix count/.
_COUNTED = ("pods", "services", "secrets", "configmaps", "resourcequotas")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_OF_QOS_CLASS = {"requests.cpu", "requests.memory", "limits.cpu", "limits.memory"}


class Excess(NamedTuple):
    """A resource of a quota that an object would exceed."""

    resource: str
    wanted: Quantity
    used: Quantity
    hard: Quantity


class QuotaUse:
    """How much of their quotas the namespaces use, and whether a further pod or claim can be created.

    The use is in the quotas' status; if the status is empty, it is counted from the pods and claims.

    Args:
        quotas: the ResourceQuotas of all namespaces.
        classes: the DeviceClasses.
        objects: the pods and claims, each with its kind.
    """

    def __init__(
        self,
        quotas: Iterable[ReadOnlyJSON],
        classes: Iterable[ReadOnlyJSON],
        objects: Sequence[tuple[str, ReadOnlyJSON]],
    ) -> None:
        self._extended = {
            str(c["metadata"]["name"]): str((c.get("spec") or {}).get("extendedResourceName") or "") for c in classes
        }
        self._quotas: dict[str, list[tuple[ReadOnlyJSON, Amounts]]] = {}
        for quota in quotas:
            namespace = str(quota["metadata"]["namespace"])
            used = amounts_of((quota.get("status") or {}).get("used"))
            if not used:
                here = ((kind, obj) for kind, obj in objects if obj["metadata"]["namespace"] == namespace)
                used = used_of(quota, here, self._extended_name)
            self._quotas.setdefault(namespace, []).append((quota, used))

    def exceeded(self, kind: str, obj: ReadOnlyJSON) -> Iterator[tuple[ReadOnlyJSON, list[Excess]]]:
        """Yields each quota that refuses a new object, with the resources that it would exceed."""
        for quota, used in self._applying(kind, obj):
            if over := exceeded(quota, used, charges(kind, obj, self._extended_name)):
                yield quota, over

    def unspecified(self, pod: ReadOnlyJSON) -> Iterator[tuple[ReadOnlyJSON, str]]:
        """Yields each quota that requires amounts which a pod does not specify, with these amounts."""
        for quota, _ in self._applying(PODS, pod):
            if missing := missing_resources(pod, hard_of(quota)):
                yield quota, missing

    def add(self, kind: str, obj: ReadOnlyJSON) -> None:
        """Counts a new object."""
        for _, used in self._applying(kind, obj):
            _add(used, charges(kind, obj, self._extended_name))

    def remove(self, kind: str, obj: ReadOnlyJSON) -> None:
        """Undoes :meth:`add`."""
        for _, used in self._applying(kind, obj):
            for name, amount in charges(kind, obj, self._extended_name).items():
                used[name] -= amount

    def _applying(self, kind: str, obj: ReadOnlyJSON) -> Iterator[tuple[ReadOnlyJSON, Amounts]]:
        for quota, used in self._quotas.get(str(obj["metadata"]["namespace"]), ()):
            if applies(quota, kind, obj):
                yield quota, used

    def _extended_name(self, device_class: str) -> str:
        return self._extended.get(device_class, "")


def hard_of(quota: ReadOnlyJSON) -> Amounts:
    return amounts_of((quota.get("spec") or {}).get("hard"))


def used_of(quota: ReadOnlyJSON, objects: Iterable[tuple[str, ReadOnlyJSON]], extended_name: ExtendedName) -> Amounts:
    """Returns how much objects of the quota's namespace use of each of its resources.

    Args:
        objects: each object with its kind.
    """
    out = {name: Quantity(0) for name in hard_of(quota)}
    for kind, obj in objects:
        if applies(quota, kind, obj):
            for name, amount in charges(kind, obj, extended_name).items():
                if name in out:
                    out[name] += amount
    return out


def exceeded(quota: ReadOnlyJSON, used: Amounts, additional: Amounts) -> list[Excess]:
    """Returns the resources of a quota that are not enough for additional amounts."""
    hard = hard_of(quota)
    found = (Excess(k, v, used.get(k, Quantity(0)), hard[k]) for k, v in sorted(additional.items()) if k in hard)
    return [e for e in found if e.used + e.wanted > e.hard]


def charges(kind: str, obj: ReadOnlyJSON, extended_name: ExtendedName) -> Amounts:
    """Returns the amounts that an object uses of quotas."""
    out: Amounts = {f"count/{kind}": Quantity(1)}
    if kind == PODS and (obj.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return out
    if kind in _COUNTED:
        out[kind] = Quantity(1)
    if kind == PODS:
        _add(out, _pod(obj.get("spec") or {}))
    elif kind == CLAIMS:
        _add(out, _claim(obj, extended_name))
    elif kind == "services":
        service = (obj.get("spec") or {}).get("type")
        if service in {"NodePort", "LoadBalancer"}:
            out["services.nodeports"] = Quantity(len((obj.get("spec") or {}).get("ports") or ()))
        if service == "LoadBalancer":
            out["services.loadbalancers"] = Quantity(1)
    return out


def _claim(claim: ReadOnlyJSON, extended_name: ExtendedName) -> Amounts:
    out: Amounts = {}
    for_extended = ((claim["metadata"].get("annotations") or {}).get(_EXTENDED_ANNOTATION)) == "true"
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        highest: dict[str, int] = {}
        for alternative in [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ():
            name = alternative.get("deviceClassName", "")
            count = _ALL_DEVICES if alternative.get("allocationMode") == "All" else int(alternative.get("count") or 1)
            highest[name] = max(highest.get(name, 0), count)
        for name, count in highest.items():
            for charged in _names(name, extended_name, for_extended=for_extended):
                out[charged] = out.get(charged, Quantity(0)) + Quantity(count)
    return out


def _names(device_class: str, extended_name: ExtendedName, *, for_extended: bool) -> Iterator[str]:
    """Yields the quota resources that one device of a class counts for.

    A claim that was created for a pod's extended resource counts for the class only: the pod already counts for the resource.
    """
    yield f"{device_class}.deviceclass.resource.k8s.io/devices"
    if for_extended:
        return
    yield f"requests.deviceclass.resource.kubernetes.io/{device_class}"
    if extended := extended_name(device_class):
        yield f"requests.{extended}"


def _pod(spec: Mapping[str, Any]) -> Amounts:
    """Returns a pod's requests and limits: the sum over its containers, or those of its largest init container if they are higher."""
    out: Amounts = {}
    for field in ("requests", "limits"):
        running: Amounts = {}
        for container in spec.get("containers") or ():
            _add(running, amounts_of((container.get("resources") or {}).get(field)))
        for container in spec.get("initContainers") or ():
            own = amounts_of((container.get("resources") or {}).get(field))
            if container.get("restartPolicy") == "Always":
                _add(running, own)
                continue
            for name, amount in own.items():
                running[name] = max(running.get(name, amount), amount)
        if running:
            _add(running, amounts_of(spec.get("overhead")))
        for name, amount in running.items():
            if field == "requests" and (name in _COMPUTE or name.startswith("hugepages-")):
                out[name] = amount
            if field == "requests" or name in _COMPUTE:
                out[f"{field}.{name}"] = amount
    return out


def missing_resources(pod: ReadOnlyJSON, hard: Amounts) -> str:
    """Returns the quota's compute resources that containers must specify but do not, with the containers' names."""
    wanted = [
        n
        for n in hard
        if n in _COMPUTE or (n.partition(".")[2] in _COMPUTE and n.partition(".")[0] in {"requests", "limits"})
    ]
    out = []
    for name in sorted(wanted):
        field, _, bare = name.partition(".") if "." in name else ("requests", "", name)
        unspecified = sorted(
            c.get("name", "")
            for c in (pod.get("spec") or {}).get("containers") or ()
            if bare not in ((c.get("resources") or {}).get(field) or {})
        )
        if unspecified:
            out.append(f"{name} for: {','.join(unspecified)}")
    return "; ".join(out)


def applies(quota: ReadOnlyJSON, kind: str, obj: ReadOnlyJSON) -> bool:
    """Returns whether the quota applies to the object. A quota with scopes applies to pods only."""
    spec = quota.get("spec") or {}
    terms = [{"scopeName": s, "operator": "Exists"} for s in spec.get("scopes") or ()]
    terms += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    if not terms:
        return True
    return kind == PODS and all(_matches(t, obj.get("spec") or {}, obj.get("status") or {}) for t in terms)


def _matches(term: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    scope, name, values = term.get("scopeName"), spec.get("priorityClassName", ""), term.get("values") or ()
    if scope == "PriorityClass":
        found = {"In": name in values, "NotIn": name not in values, "DoesNotExist": not name}
        return found.get(str(term.get("operator")), bool(name))
    has_deadline = spec.get("activeDeadlineSeconds") is not None
    qos_class = status.get("qosClass")  # a simulated pod has none
    is_best_effort = qos_class == "BestEffort" if qos_class else not _pod(spec).keys() & _OF_QOS_CLASS
    return {
        "Terminating": has_deadline,
        "NotTerminating": not has_deadline,
        "BestEffort": is_best_effort,
        "NotBestEffort": not is_best_effort,
    }.get(str(scope), False)


def amounts_of(texts: Any) -> Amounts:
    out: Amounts = {}
    for name, text in (texts or {}).items():
        try:
            out[name] = Quantity(str(text))
        except QuantityError:
            continue
    return out


def _add(out: Amounts, additional: Mapping[str, Quantity]) -> None:
    for name, amount in additional.items():
        out[name] = out.get(name, Quantity(0)) + amount
