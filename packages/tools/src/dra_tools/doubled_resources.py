"""Finds extended resources that a node has twice: from a device plugin, and from devices of a driver (KEP-5004).

A node's allocatable contains a resource only if a device plugin, or a user, put it there: devices of drivers are not counted in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dra_devkit.scheduling.allocator import selection
from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_devkit.scheduling.allocator.pools import Candidate, DeviceId
from dra_devkit.scheduling.allocator.results import PickedRequest
from dra_devkit.scheduling.framework import extended
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import join_names, natural
from dra_kubeletplugin.errors import QuestionError
from dra_kubeletplugin.resourceapi import node_selectors
from dra_kubeletplugin.resourceapi.quantity import parse


class DoubledResource(NamedTuple):
    """A resource that device plugins and drivers provide on the same nodes."""

    resource: str
    device_class: str
    drivers: tuple[str, ...]
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        have = "has" if len(self.nodes) == 1 else "have"
        return (
            f"{join_names(self.nodes)} {have} {self.resource} from a device plugin and from {join_names(self.drivers)} "
            f"(DeviceClass {self.device_class}): pods that request it get the device plugin's, and claims can get the same devices"
        )

    @property
    def change(self) -> str:
        return f"on each node, run either the device plugin or {join_names(self.drivers)}"


def doubled_resources(
    nodes: Iterable[ReadOnlyJSON], classes: Sequence[dict[str, Any]], slices: Sequence[ReadOnlyJSON]
) -> list[DoubledResource]:
    """Returns the resources that nodes have twice. Devices count if the class selects them, whether claims hold them or not."""
    by_name = {str(c["metadata"]["name"]): c for c in classes}
    overlaps = list(overlapping(nodes, classes))
    if not overlaps:
        return []
    local: dict[str, list[ReadOnlyJSON]] = {}
    for sl in slices:
        local.setdefault(str(sl["spec"].get("nodeName") or ""), []).append(sl)
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for node, resource, name in overlaps:
        node_name = str(node["metadata"]["name"])
        here = [*local.get(node_name, ()), *local.get("", ())]
        if drivers := tuple(sorted(_drivers(node, by_name[name], here))):
            found.setdefault((resource, name, drivers), []).append(node_name)
    return [DoubledResource(*key, tuple(sorted(names, key=natural))) for key, names in sorted(found.items())]


def overlapping(
    nodes: Iterable[ReadOnlyJSON], classes: Collection[dict[str, Any]]
) -> Iterator[tuple[ReadOnlyJSON, str, str]]:
    """Yields each node with a resource in its allocatable that a class provides too, the resource, and the class's name."""
    explicit = extended.class_names(classes)
    names = {str(c["metadata"]["name"]) for c in classes}
    for node in nodes:
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items():
            device_class = extended.class_of(resource, explicit, names)
            if device_class and _is_positive(amount):
                yield node, resource, device_class


def _is_positive(amount: object) -> bool:
    with contextlib.suppress(ValueError, QuestionError):
        return parse(str(amount)) > parse("0")
    return False


def _drivers(node: ReadOnlyJSON, device_class: ReadOnlyJSON, slices: Iterable[ReadOnlyJSON]) -> set[str]:
    """Returns the drivers with a device for the node that the class selects."""
    found: set[str] = set()
    request = PickedRequest("", "", {}, device_class, 1)
    for sl in slices:
        spec = sl["spec"]
        driver, pool = str(spec["driver"]), str(spec["pool"]["name"])
        for device in () if driver in found else spec.get("devices") or ():
            owner = device if spec.get("perDeviceNodeSelection") else spec
            here = node_selectors.matches(node, owner.get("nodeName"), owner.get("allNodes"), owner.get("nodeSelector"))
            with contextlib.suppress(AllocationError):
                if here and selection.accepts(
                    "", request, Candidate(DeviceId(driver, pool, device["name"]), device, sl, True)
                ):
                    found.add(driver)
                    break
    return found
