"""LimitRanges: sets default resources of containers, and rejects pods whose resources are below or above the limits.

Source: the LimitRanger admission plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.quantity import Quantity

from .requests import RequestInfo, forbidden
from .storage import Storage
from .validation.checks import quantity

Amounts = Mapping[str, Any]


def admit(storage: Storage, target: RequestInfo, pod: JSON) -> None:
    """Sets a new pod's default resources and checks them. Raises :class:`StatusError` if they violate a LimitRange."""
    limits = [
        item
        for found in storage.list("limitranges", target.namespace)
        for item in (found.get("spec") or {}).get("limits") or ()
    ]
    if not limits:
        return
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for item in limits:
        if item.get("type") == "Container":
            for container in containers:
                _fill(container, item)
    faults: list[str] = []
    for item in limits:
        if item.get("type") == "Container":
            for container in containers:
                faults += _faults(container.get("resources") or {}, item, "Container")
        elif item.get("type") == "Pod":
            faults += _faults(_total(spec), item, "Pod")
    if faults:
        shown = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
        raise forbidden(target, pod["metadata"], shown)


def _fill(container: JSON, item: Mapping[str, Any]) -> None:
    resources = dict(container.get("resources") or {})
    for field, source in (("limits", "default"), ("requests", "defaultRequest")):
        merged = {**(item.get(source) or {}), **(resources.get(field) or {})}
        if merged:
            resources[field] = merged
    container["resources"] = resources


def _total(spec: Mapping[str, Any]) -> JSON:
    out: JSON = {}
    for field in ("limits", "requests"):
        sums: dict[str, Quantity] = {}
        for container in spec.get("containers") or ():
            for name, amount in ((container.get("resources") or {}).get(field) or {}).items():
                if (value := quantity(amount)) is not None:
                    sums[name] = sums.get(name, Quantity(0)) + value
        out[field] = {k: str(v) for k, v in sums.items()}
    return out


def _faults(resources: Mapping[str, Any], item: Mapping[str, Any], kind: str) -> list[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    out: list[str] = []
    for name, minimum in (item.get("min") or {}).items():
        out += _bound(name, minimum, requests, limits, kind, is_maximum=False)
    for name, maximum in (item.get("max") or {}).items():
        out += _bound(name, maximum, requests, limits, kind, is_maximum=True)
    return out


def _bound(name: str, bound: Any, requests: Amounts, limits: Amounts, kind: str, *, is_maximum: bool) -> list[str]:
    word = "maximum" if is_maximum else "minimum"
    limit = quantity(bound)
    request, allowed = quantity(requests.get(name)), quantity(limits.get(name))
    if limit is None:
        return []
    if is_maximum and allowed is None:
        return [f"maximum {name} usage per {kind} is {bound}.  No limit is specified"]
    if not is_maximum and request is None:
        return [f"minimum {name} usage per {kind} is {bound}.  No request is specified"]
    for field, value, amount in (("limit", allowed, limits.get(name)), ("request", request, requests.get(name))):
        if value is not None and (value > limit if is_maximum else value < limit):
            return [f"{word} {name} usage per {kind} is {bound}, but {field} is {amount}"]
    return []
