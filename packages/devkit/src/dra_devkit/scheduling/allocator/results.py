"""Builds an AllocationResult from picked devices: device results, configuration, and the nodes where the claim is
usable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity

from ...kubernetes_releases import AllocatorBehavior
from . import capacity
from .faults import AllocationError
from .pools import Candidate


@dataclass
class PickedRequest:
    """A request, or one alternative of it, together with its DeviceClass."""

    name: str
    parent: str  # for an alternative: the name of its request; else empty
    spec: ReadOnlyJSON
    device_class: ReadOnlyJSON
    count: int = 0
    all: list[Candidate] | None = None  # with allocation mode All: the devices that the request accepts

    @property
    def full_name(self) -> str:
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def admin(self) -> bool:
        return bool(self.spec.get("adminAccess"))


@dataclass
class Pick:
    request: PickedRequest
    candidate: Candidate
    share: str = ""
    consumed: dict[str, Quantity] = field(default_factory=dict)


def allocation_result(
    node: ReadOnlyJSON,
    claim: ReadOnlyJSON,
    picks: list[Pick],
    classes: Mapping[str, ReadOnlyJSON],
    behavior: AllocatorBehavior,
) -> dict[str, Any]:
    """Returns the AllocationResult of one claim."""
    devices: dict[str, Any] = {}
    if picks:
        devices["results"] = [_device_result(p) for p in picks]
    if config := _config(claim, picks, classes):
        devices["config"] = _shortened(config, claim, picks) if behavior.shortens_config else config
    out: dict[str, Any] = {"devices": devices}
    if selector := _node_selector(node, claim, picks):
        out["nodeSelector"] = selector
    return out


def _config(claim: ReadOnlyJSON, picks: list[Pick], classes: Mapping[str, ReadOnlyJSON]) -> list[dict[str, Any]]:
    """Returns the configuration for the chosen requests and alternatives: first the classes' entries, then the claim's."""
    chosen = {p.request.full_name: p.request for p in picks}
    by_class: dict[str, list[str]] = {}
    for full_name, request in chosen.items():
        by_class.setdefault(request.device_class["metadata"]["name"], []).append(full_name)
    out = []
    for class_name, names in by_class.items():
        for config in classes[class_name]["spec"].get("config") or []:
            out.append({"source": "FromClass", "requests": names, **config})
    requests = claim["spec"].get("devices", {}).get("requests") or []
    for config in claim["spec"].get("devices", {}).get("config") or []:
        names = config.get("requests") or []
        entry = {"source": "FromClaim", **{k: v for k, v in config.items() if k != "requests"}}
        if not names:
            out.append(entry)
            continue
        # Kubernetes repeats an entry for each of its requests.
        out += [{**entry, "requests": names} for r in requests if _is_for(names, r["name"], chosen)]
    return out


def _shortened(config: list[dict[str, Any]], claim: ReadOnlyJSON, picks: list[Pick]) -> list[dict[str, Any]]:
    """Returns the configuration without the list of requests where it names all requests of the claim."""
    chosen = {p.request.full_name: p.request for p in picks}
    requests = [r["name"] for r in claim["spec"].get("devices", {}).get("requests") or []]

    def for_all(entry: ReadOnlyJSON) -> bool:
        return all(_is_for(entry.get("requests") or [], r, chosen) for r in requests)

    return [{k: v for k, v in entry.items() if k != "requests"} if for_all(entry) else entry for entry in config]


def _is_for(names: list[str], request: str, chosen: Mapping[str, PickedRequest]) -> bool:
    alternative = next((full for full, r in chosen.items() if r.parent == request), None)
    return request in names or alternative in names


def _device_result(pick: Pick) -> dict[str, Any]:
    device, request = pick.candidate.id, pick.request
    out: dict[str, Any] = {"request": request.full_name, **device._asdict()}
    if request.admin:
        out["adminAccess"] = True
    if tolerations := request.spec.get("tolerations"):
        out["tolerations"] = tolerations
    for key in ("bindingConditions", "bindingFailureConditions"):
        if values := pick.candidate.device.get(key):
            out[key] = values
    if skipped := pick.candidate.slice["spec"].get("skipNodeOperations"):
        out["skipNodeOperations"] = skipped
    if pick.share:
        out["shareID"] = pick.share
        if pick.consumed:
            out["consumedCapacity"] = capacity.texts_of(pick.consumed)
    return out


def _node_selector(node: ReadOnlyJSON, claim: ReadOnlyJSON, picks: list[Pick]) -> dict[str, Any] | None:
    """Returns the nodes where the claim is usable: ``node`` by name, or the merged node selectors of all its devices.

    Raises :class:`AllocationError` for a selector with several terms, which cannot be merged.
    """
    merged: dict[str, list[Any]] = {}
    for pick in picks:
        spec, device = pick.candidate.slice["spec"], pick.candidate.device
        owner = device if spec.get("perDeviceNodeSelection") else spec
        if owner.get("nodeName") or device.get("bindsToNode"):
            name = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
            return {"nodeSelectorTerms": [{"matchFields": [name]}]}
        terms = (owner.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
        if len(terms) > 1:
            raise AllocationError(
                f"create NodeSelector for claim {claim['metadata']['name']}: "
                f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            )
        for kind in ("matchExpressions", "matchFields"):
            for requirement in (terms[0].get(kind) if terms else None) or []:
                known = merged.setdefault(kind, [])
                if not any(_same(requirement, k) for k in known):
                    known.append(requirement)
    term = {k: v for k, v in merged.items() if v}
    return {"nodeSelectorTerms": [term]} if term else None


def _same(a: ReadOnlyJSON, b: ReadOnlyJSON) -> bool:
    """Returns whether two requirements are equal; the order of values does not matter."""
    return (a["key"], a["operator"]) == (b["key"], b["operator"]) and set(a.get("values") or []) == set(
        b.get("values") or []
    )
