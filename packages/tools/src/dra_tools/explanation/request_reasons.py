"""Finds, for each request of a pod's unallocated claims on one node, the usable devices and the reasons against the other devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_devkit.scheduling.allocator import selection
from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_devkit.scheduling.allocator.pools import Candidate
from dra_devkit.scheduling.allocator.results import PickedRequest
from dra_devkit.scheduling.framework import extended
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names

from ..scheduler_view import name_of
from .device_reasons import FREED, DeviceFault, NodeDevices
from .model import ReasonKind, RequestOnNodes

Place = tuple[str, DeviceFault]  # a device and one reason against it
_NONE = DeviceFault(
    ReasonKind.NO_DEVICES,
    "no device is published for the node",
    "run a driver that publishes devices there; if one runs, its log and the events of the node name the reason",
)


@dataclass(frozen=True)
class RequestReasons:
    """The result of one request, or of one alternative of it, on one node: ``request`` is without reasons."""

    request: RequestOnNodes
    faults: Sequence[Place]
    enough: bool


def examine(
    devices: NodeDevices,
    claims: Sequence[JSON],
    classes: Mapping[str, Mapping[str, Any]],
    resources: Mapping[str, tuple[str, str]] | None = None,
) -> list[list[RequestReasons]]:
    """Returns a list for each request: a result for each alternative, or one result if the request has no alternatives.

    Args:
        resources: extended resources and their containers, by request of the draft claim.
    """
    out = []
    for claim in claims:
        known = (resources or {}) if extended.is_draft(claim) else {}
        for options in options_of(claim, classes):
            of_claim = name_of(claim)
            out.append([_examine(devices, of_claim, o, known.get(o.full_name, ("", ""))) for o in options])
    return out


def failing(devices: NodeDevices, claims: Sequence[JSON], classes: Mapping[str, Mapping[str, Any]]) -> Iterator[Place]:
    """Yields devices for which a selector cannot be evaluated."""
    for claim in claims:
        for request in (option for options in options_of(claim, classes) for option in options):
            for candidate in devices.candidates:
                for fault in devices.faults(name_of(claim), request, candidate):
                    if fault.kind is ReasonKind.SELECTOR_ERROR:
                        yield f"{devices.node.name}/{candidate.id.device}", fault


def options_of(claim: JSON, classes: Mapping[str, Mapping[str, Any]]) -> Iterator[list[PickedRequest]]:
    for request in (claim["spec"].get("devices") or {}).get("requests") or []:
        if request.get("exactly"):
            yield [_picked(request["name"], "", request["exactly"], classes)]
        else:
            yield [_picked(sub["name"], request["name"], sub, classes) for sub in request.get("firstAvailable") or []]


def _picked(name: str, parent: str, spec: JSON, classes: Mapping[str, Mapping[str, Any]]) -> PickedRequest:
    return PickedRequest(name, parent, spec, classes[spec["deviceClassName"]], int(spec.get("count") or 1))


def _examine(devices: NodeDevices, claim: str, request: PickedRequest, resource: tuple[str, str]) -> RequestReasons:
    every = request.spec.get("allocationMode") == "All"
    of_class: list[Place] = []
    # Devices that do not match a request for all devices, so they do not prevent its allocation.
    unmatched: list[Place] = []
    faults: list[Place] = []
    usable = matched = 0
    for candidate in devices.candidates:
        where = f"{devices.node.name}/{candidate.id.device}"
        found = devices.faults(claim, request, candidate)
        skipped = not devices.view.behavior.all_needs_exhausted and any(f.kind is ReasonKind.CAPACITY for f in found)
        matches = not found or (not (every and skipped) and _matches(claim, request, candidate))
        matched += matches
        if not found:
            usable += 1
        elif found[0].kind is ReasonKind.CLASS_SELECTOR:
            of_class.append((where, found[0]))
        elif every and not matches:
            unmatched.append((where, _one(found)))
        else:
            faults.append((where, _one(found)))
    broken = list(devices.broken(request))
    if not matched:
        faults += unmatched
    faults += [(devices.node.name, fault) for fault in broken]
    if not usable and not faults:
        faults = of_class  # devices of other classes are shown only if there are no devices of this class
    name, wanted, number = (
        request.device_class["metadata"]["name"],
        None if every else request.count,
        len(devices.candidates),
    )
    result = RequestOnNodes(claim, request.full_name, name, wanted, usable, number, (), *resource)
    if usable == matched > 0 and not broken if every else usable >= request.count:
        return RequestReasons(result, (), enough=True)
    if not number and not faults:
        faults = [(devices.node.name, _NONE)]
    if fault := _too_few(devices, result, request.count, number - len(of_class), matched, faults):
        faults = [(devices.node.name, fault), *faults]
    return RequestReasons(result, faults, enough=False)


def waits_for_claims(fault: DeviceFault) -> bool:
    """Returns whether a device may be usable after other claims have released devices."""
    return all(part.kind in FREED and part.of_node for part in fault.parts or (fault,))


def _too_few(
    devices: NodeDevices, result: RequestOnNodes, count: int, of_class: int, matched: int, faults: Sequence[Place]
) -> DeviceFault | None:
    """Returns a fault if the node has fewer devices than wanted. Then the removal of all reasons against them would not be enough.

    Args:
        of_class: the number of devices of the request's class.
        matched: the number of devices that also match the request.
    """
    # A request may use a shared device more than once.
    counts = result.wanted is not None and not any(c.multiple for c in devices.candidates)
    text = f"the node has fewer than {count} devices"
    if not faults or (counts and 0 < of_class < count):
        detail = f"{of_class} of class {result.device_class}"
        return DeviceFault(ReasonKind.TOO_FEW, f"{text} for {result.shown}", "ask for fewer", detail)
    if counts and 0 < matched < count and any(waits_for_claims(f) for _, f in faults):
        detail = f"{matched} of {of_class} of class {result.device_class} match"
        text = f"{text} that match {result.shown}, also when other claims release their devices"
        return DeviceFault(ReasonKind.TOO_FEW, text, "ask for fewer", detail)
    return None


def _matches(claim: str, request: PickedRequest, candidate: Candidate) -> bool:
    try:
        return selection.accepts(claim, request, candidate)
    except AllocationError:
        return False


def _one(found: list[DeviceFault]) -> DeviceFault:
    """Combines several reasons against one device, because removing one of them would not be enough."""
    if len(found) == 1:
        return found[0]
    return DeviceFault(
        found[0].kind,
        ", and ".join(dict.fromkeys(f.text for f in found)),
        "; and ".join(dict.fromkeys(f.change for f in found)),
        ", ".join(dict.fromkeys(f.detail for f in found if f.detail)),
        parts=tuple(found),
        of_node=any(f.of_node for f in found),
    )


def extended_resources(mappings: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Returns the extended resource and the containers of each request, from the mappings in a pod's status."""
    found: dict[str, tuple[str, list[str]]] = {}
    for m in mappings:
        found.setdefault(m["requestName"], (str(m["resourceName"]), []))[1].append(str(m["containerName"]))
    return {request: (resource, join_names(names)) for request, (resource, names) in found.items()}
