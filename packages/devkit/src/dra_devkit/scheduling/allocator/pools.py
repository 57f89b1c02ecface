"""Groups ResourceSlices into pools: finds the devices that a node can use, and checks whether each pool is complete and
valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi import node_selectors as nodes

from ...generations import PoolKey, generation_of, key_of, newest_by_pool
from .. import cel

SlicesOfPool = Callable[[PoolKey], Sequence[ReadOnlyJSON]]


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(eq=False)
class Candidate:
    """One device of one slice, as the allocator sees it.

    Args:
        for_node: whether the device is for the node; its slice may contain devices of other nodes too. Selectors are
            evaluated before ``for_node`` is checked: as in Kubernetes, a selector that fails on another node's device
            fails the pod.
    """

    id: DeviceId
    device: ReadOnlyJSON
    slice: ReadOnlyJSON
    for_node: bool
    matches: dict[str, bool] = field(default_factory=dict)  # results of selectors, by expression
    derived: dict[str, ReadOnlyJSON] = field(default_factory=dict)  # derived attributes, by expression

    @cached_property
    def multiple(self) -> bool:
        return bool(self.device.get("allowMultipleAllocations"))

    @cached_property
    def cel_device(self) -> cel.Device:
        """The device as the input of a CEL selector."""
        return cel.Device(self.id.driver, self.device)


@dataclass(eq=False)
class AllocatorPool:
    """A pool as one node sees it.

    ``slices`` has the slices that matter for the node; ``others`` has the other nodes' slices.
    """

    driver: str
    name: str
    slices: list[ReadOnlyJSON]
    others: list[ReadOnlyJSON] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)  # devices of the node's slices
    incomplete: bool = False
    invalid: str = ""

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"

    @cached_property
    def key(self) -> PoolKey:
        return self.driver, self.name

    @property
    def counter_sets(self) -> dict[str, ReadOnlyJSON]:
        return {s["name"]: s["counters"] for sl in self.slices for s in sl["spec"].get("sharedCounters") or []}

    @property
    def devices(self) -> Iterable[ReadOnlyJSON]:
        """All devices, including other nodes' devices, because they consume the same counters."""
        return (d for sl in [*self.slices, *self.others] for d in sl["spec"].get("devices") or [])

    @property
    def has_binding_conditions(self) -> bool:
        return any(d.get("bindingConditions") for sl in self.slices for d in sl["spec"].get("devices") or [])


def gather(slices: Iterable[ReadOnlyJSON], node: ReadOnlyJSON, slices_of_pool: SlicesOfPool) -> list[AllocatorPool]:
    """Returns the pools that have a slice for ``node``.

    Complete and valid pools with binding conditions come last. Otherwise, pools are sorted by driver and name, and the
    slices of a pool by name.

    The newest generation among the node's slices defines the pool. Slices of other nodes are read only if the node's
    slices are not the complete pool.

    Args:
        slices_of_pool: returns all slices of a pool.
    """
    relevant = newest_by_pool(sl for sl in slices if is_relevant(sl["spec"], node))
    pools = [p for local in relevant.values() if (p := _pool(local, slices_of_pool, node))]
    return sorted(pools, key=order_of)


def order_of(pool: AllocatorPool) -> tuple[bool, str, str]:
    """Returns the key by which the pools of a node are sorted."""
    return pool.has_binding_conditions and not pool.incomplete and not pool.invalid, pool.driver, pool.name


def is_relevant(spec: ReadOnlyJSON, node: ReadOnlyJSON) -> bool:
    """Returns whether a slice has a device for the node, or counters, which all nodes share."""
    if spec.get("sharedCounters"):
        return True
    if spec.get("perDeviceNodeSelection"):
        return any(is_here(d, node) for d in spec.get("devices") or [])
    return is_here(spec, node)


def is_here(owner: ReadOnlyJSON, node: ReadOnlyJSON) -> bool:
    """Returns whether a slice or a device is for the node, according to its node fields."""
    return nodes.matches(node, owner.get("nodeName"), owner.get("allNodes"), owner.get("nodeSelector"))


def _pool(local: list[ReadOnlyJSON], slices_of_pool: SlicesOfPool, node: ReadOnlyJSON) -> AllocatorPool | None:
    """Builds the pool from a node's slices. Returns None if slices of other nodes already have a newer generation."""
    key, generation = key_of(local[0]), generation_of(local[0])
    count = local[0]["spec"]["pool"]["resourceSliceCount"]
    pool = AllocatorPool(key[0], key[1], sorted(local, key=lambda s: str(s["metadata"]["name"])))
    if len(local) != count:
        same = slices_of_pool(key)
        if any(generation_of(s) > generation for s in same):
            return None
        current = [s for s in same if generation_of(s) == generation]
        if len(current) != count:
            return AllocatorPool(key[0], key[1], [], incomplete=True)
        names = {s["metadata"]["name"] for s in local}
        pool.others = [s for s in current if s["metadata"]["name"] not in names]
    pool.invalid = _fault(pool)
    for sl in pool.slices:
        per_device = bool(sl["spec"].get("perDeviceNodeSelection"))
        for device in sl["spec"].get("devices") or []:
            for_node = not per_device or is_here(device, node)
            pool.candidates.append(Candidate(DeviceId(pool.driver, pool.name, device["name"]), device, sl, for_node))
    return pool


def _fault(pool: AllocatorPool) -> str:
    """Returns why a complete pool is invalid, or "". Duplicate names are checked among this node's slices only."""
    seen: set[str] = set()
    for sl in pool.slices:
        for device in sl["spec"].get("devices") or []:
            if device["name"] in seen:
                return f"duplicate device name {device['name']}"
            seen.add(device["name"])
    sets: dict[str, ReadOnlyJSON] = {}
    for sl in pool.slices:
        for counter_set in sl["spec"].get("sharedCounters") or []:
            if counter_set["name"] in sets:
                return f"duplicate counter set name {counter_set['name']}"
            sets[counter_set["name"]] = counter_set["counters"]
    for device in pool.devices:
        for consumed in device.get("consumesCounters") or []:
            counters = sets.get(consumed["counterSet"])
            if counters is None:
                return f"counter set {consumed['counterSet']} not found"
            for name in consumed["counters"]:
                if name not in counters:
                    return f"counter {name} not found in counter set {consumed['counterSet']}"
    return ""
