"""Resource quotas: computes the usage of a namespace's objects, rejects objects over quota, and updates the quotas' status.

A claim uses quota by device class (KEP-4381, KEP-5004). If a request has alternatives, the largest number of devices of a class counts.
A device of a class with an extended resource name also counts under that name. Source: the quota evaluators of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, QuantityError

from .requests import RequestInfo, forbidden
from .storage import Storage

Amounts = dict[str, Quantity]
_QUOTAS = "resourcequotas"
_CLAIMS, _CLASSES = "resourceclaims.resource.k8s.io", "deviceclasses.resource.k8s.io"
_ALL_DEVICES = (
    32  # the number that counts for a request with the mode "All": the maximum number of results in an allocation
)
_EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
# Kinds that count under their plural name, in addition to the name with the prefix count/.
_COUNTED = ("pods", "services", "secrets", "configmaps", "resourcequotas")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


class Quotas:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def admit(self, target: RequestInfo, obj: JSON, old: JSON | None) -> None:
        """Raises :class:`StatusError` if an object would exceed a quota of its namespace."""
        if not target.namespace or target.storage == _QUOTAS or target.sub:
            return
        quotas = self.storage.list(_QUOTAS, target.namespace)
        if not quotas:
            return
        new = self._charges(target.storage, obj)
        before = self._charges(target.storage, old) if old is not None else {}
        additional = {k: v - before.get(k, Quantity(0)) for k, v in new.items() if v > before.get(k, Quantity(0))}
        for quota in quotas:
            if _in_scope(quota, target.storage, obj):
                self._admit(target, obj, quota, additional)

    def _admit(self, target: RequestInfo, obj: JSON, quota: JSON, additional: Amounts) -> None:
        hard = _amounts((quota.get("spec") or {}).get("hard"))
        name = obj["metadata"].get("name") or obj["metadata"].get("generateName", "")
        quota_name = quota["metadata"]["name"]
        if target.storage == "pods" and (missing := _missing_resources(obj, hard)):
            raise forbidden(target, name, f"failed quota: {quota_name}: must specify {missing}")
        used = self.used(target.namespace, quota)
        over = sorted(k for k, v in additional.items() if k in hard and used.get(k, Quantity(0)) + v > hard[k])
        if not over:
            return
        parts = (
            "requested: " + ",".join(f"{k}={additional[k]}" for k in over),
            "used: " + ",".join(f"{k}={used.get(k, Quantity(0))}" for k in over),
            "limited: " + ",".join(f"{k}={hard[k]}" for k in over),
        )
        raise forbidden(target, name, f"exceeded quota: {quota_name}, " + ", ".join(parts))

    def used(self, namespace: str, quota: JSON) -> Amounts:
        """Returns the namespace's usage of each resource in the quota."""
        hard = _amounts((quota.get("spec") or {}).get("hard"))
        out = {k: Quantity(0) for k in hard}
        for kind, obj in self.storage.in_namespace(namespace):
            if not _in_scope(quota, kind, obj):
                continue
            for name, amount in self._charges(kind, obj).items():
                if name in out:
                    out[name] += amount
        return out

    def update_status(self, namespace: str) -> None:
        """Updates the status of a namespace's quotas."""
        for quota in self.storage.list(_QUOTAS, namespace):
            hard = {k: str(v) for k, v in ((quota.get("spec") or {}).get("hard") or {}).items()}
            used = {k: str(v) for k, v in self.used(namespace, quota).items()}
            status = {"hard": hard, "used": used}
            if (quota.get("status") or {}) != status:
                self.storage.put(_QUOTAS, {**quota, "status": status})

    # --- charges --------------------------------------------------------------------------------

    def _charges(self, kind: str, obj: JSON) -> Amounts:
        if kind == "pods" and (obj.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            return {f"count/{kind}": Quantity(1)}
        out: Amounts = {f"count/{kind}": Quantity(1)}
        if kind in _COUNTED:
            out[kind] = Quantity(1)
        if kind == "pods":
            _add(out, _pod(obj.get("spec") or {}))
        elif kind == _CLAIMS:
            _add(out, self._claim(obj))
        elif kind == "services":
            service = (obj.get("spec") or {}).get("type")
            if service in {"NodePort", "LoadBalancer"}:
                out["services.nodeports"] = Quantity(len((obj.get("spec") or {}).get("ports") or ()))
            if service == "LoadBalancer":
                out["services.loadbalancers"] = Quantity(1)
        return out

    def _claim(self, claim: JSON) -> Amounts:
        out: Amounts = {}
        for_extended = ((claim["metadata"].get("annotations") or {}).get(_EXTENDED_ANNOTATION)) == "true"
        for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
            highest: dict[str, int] = {}
            for alternative in [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ():
                name = alternative.get("deviceClassName", "")
                count = (
                    _ALL_DEVICES if alternative.get("allocationMode") == "All" else int(alternative.get("count") or 1)
                )
                highest[name] = max(highest.get(name, 0), count)
            for name, count in highest.items():
                for charged in self._names(name, for_extended=for_extended):
                    out[charged] = out.get(charged, Quantity(0)) + Quantity(count)
        return out

    def _names(self, device_class: str, *, for_extended: bool) -> Iterator[str]:
        """Yields the quota resources that one device of a class counts for.

        A claim that was created for a pod's extended resource counts for the class only: the pod already counts for the resource.
        """
        yield f"{device_class}.deviceclass.resource.k8s.io/devices"
        if for_extended:
            return
        yield f"requests.deviceclass.resource.kubernetes.io/{device_class}"
        found = self.storage.get(_CLASSES, "", device_class)
        if found and (extended := (found.get("spec") or {}).get("extendedResourceName")):
            yield f"requests.{extended}"


def _pod(spec: Mapping[str, Any]) -> Amounts:
    """Returns a pod's requests and limits: the sum over its containers, or those of its largest init container if they are higher."""
    out: Amounts = {}
    for field in ("requests", "limits"):
        running: Amounts = {}
        for container in spec.get("containers") or ():
            _add(running, _amounts((container.get("resources") or {}).get(field)))
        for container in spec.get("initContainers") or ():
            amounts = _amounts((container.get("resources") or {}).get(field))
            if container.get("restartPolicy") == "Always":
                _add(running, amounts)
                continue
            for name, amount in amounts.items():
                running[name] = max(running.get(name, amount), amount)
        if running:
            _add(running, _amounts(spec.get("overhead")))
        for name, amount in running.items():
            if field == "requests" and (name in _COMPUTE or name.startswith("hugepages-")):
                out[name] = amount
            if field == "requests" or name in _COMPUTE:
                out[f"{field}.{name}"] = amount
    return out


def _missing_resources(pod: JSON, hard: Amounts) -> str:
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


def _in_scope(quota: JSON, kind: str, obj: JSON) -> bool:
    """Returns whether the quota applies to the object. A quota with scopes applies to pods only."""
    spec = quota.get("spec") or {}
    terms = [{"scopeName": s, "operator": "Exists"} for s in spec.get("scopes") or ()]
    terms += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    if not terms:
        return True
    return kind == "pods" and all(_matches(t, obj.get("spec") or {}, obj.get("status") or {}) for t in terms)


def _matches(term: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    match term.get("scopeName"):
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return status.get("qosClass") == "BestEffort"
        case "NotBestEffort":
            return status.get("qosClass") != "BestEffort"
        case "PriorityClass":
            name, values = spec.get("priorityClassName", ""), term.get("values") or ()
            match term.get("operator"):
                case "In":
                    return name in values
                case "NotIn":
                    return name not in values
                case "DoesNotExist":
                    return not name
            return bool(name)
    return False


def _amounts(amounts: Any) -> Amounts:
    out: Amounts = {}
    for name, text in (amounts or {}).items():
        try:
            out[name] = Quantity(str(text))
        except QuantityError:
            continue
    return out


def _add(out: Amounts, additional: Mapping[str, Quantity]) -> None:
    for name, amount in additional.items():
        out[name] = out.get(name, Quantity(0)) + amount
