"""Slices gathered into pools: which devices a node can see, and whether a pool can be trusted now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...resources import node_selection as nodes

JSON = Mapping[str, Any]


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(eq=False)
class Candidate:
    """One device of one slice, as the allocator sees it."""

    id: DeviceId
    device: JSON
    slice: JSON

    @property
    def multiple(self) -> bool:
        return bool(self.device.get("allowMultipleAllocations"))


@dataclass(eq=False)
class Pool:
    driver: str
    name: str
    generation: int
    slices: list[JSON] = field(default_factory=list)  # of the newest generation, on any node
    candidates: list[Candidate] = field(default_factory=list)  # on this node
    incomplete: bool = False
    invalid: str = ""

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"

    @property
    def counter_sets(self) -> dict[str, JSON]:
        return {s["name"]: s["counters"] for sl in self.slices for s in sl["spec"].get("sharedCounters") or []}

    @property
    def devices(self) -> Iterable[JSON]:
        return (d for sl in self.slices for d in sl["spec"].get("devices") or [])

    @property
    def binding(self) -> bool:
        return any(c.device.get("bindingConditions") for c in self.candidates)


def gather(slices: Iterable[JSON], node: JSON) -> list[Pool]:
    """Pools with a slice for ``node``: those that need no binding first, then by name, slices by name."""
    newest: dict[tuple[str, str], Pool] = {}
    for sl in slices:
        spec = sl["spec"]
        key = (spec["driver"], spec["pool"]["name"])
        generation = spec["pool"].get("generation", 0)
        pool = newest.get(key)
        if pool is None or generation > pool.generation:
            pool = newest[key] = Pool(key[0], key[1], generation)
        if generation == pool.generation:
            pool.slices.append(sl)
    out = []
    for pool in newest.values():
        pool.slices.sort(key=lambda s: s["metadata"]["name"])
        if _fill(pool, node):
            out.append(pool)
    return sorted(out, key=lambda p: (p.binding, p.driver, p.name))


def _fill(pool: Pool, node: JSON) -> bool:
    """Completes ``pool``; False where none of it is for ``node``."""
    relevant = False
    for sl in pool.slices:
        spec = sl["spec"]
        per_device = bool(spec.get("perDeviceNodeSelection"))
        here = per_device or nodes.matches(node, spec.get("nodeName"), spec.get("allNodes"), spec.get("nodeSelector"))
        for device in spec.get("devices") or []:
            on_node = here
            if per_device:
                on_node = nodes.matches(
                    node, device.get("nodeName"), device.get("allNodes"), device.get("nodeSelector")
                )
            if on_node:
                pool.candidates.append(Candidate(DeviceId(pool.driver, pool.name, device["name"]), device, sl))
        relevant = relevant or bool(pool.candidates) or (here and not per_device)
    pool.incomplete = any(s["spec"]["pool"]["resourceSliceCount"] != len(pool.slices) for s in pool.slices)
    if not pool.incomplete:
        pool.invalid = _fault(pool)
    return relevant


def _fault(pool: Pool) -> str:
    """Why a complete pool cannot be used; empty when it can."""
    seen: set[str] = set()
    for device in pool.devices:
        if device["name"] in seen:
            return f"duplicate device name {device['name']}"
        seen.add(device["name"])
    sets: dict[str, JSON] = {}
    for sl in pool.slices:
        for counter_set in sl["spec"].get("sharedCounters") or []:
            if counter_set["name"] in sets:
                return f"duplicate counter set name {counter_set['name']}"
            sets[counter_set["name"]] = counter_set["counters"]
    for device in pool.devices:
        for consumed in device.get("consumesCounters") or []:
            counters = sets.get(consumed["counterSet"])
            if counters is None:
                return f"device {device['name']} references unknown counter set {consumed['counterSet']}"
            for name in consumed["counters"]:
                if name not in counters:
                    return f"device {device['name']} references unknown counter {name} in {consumed['counterSet']}"
    return ""
