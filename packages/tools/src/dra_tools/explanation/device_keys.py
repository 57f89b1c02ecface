"""Finds nodes that have equal devices for a pod, so that only one of them is examined.

In a cluster of 5,000 nodes most nodes have the same devices. They differ in names and serial numbers, which few selectors read, and
in the number of devices that claims hold.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dra_devkit.generations import PoolKey, key_of
from dra_devkit.scheduling.allocator.faults import AllocationTimeout
from dra_devkit.scheduling.allocator.pools import DeviceId, is_here
from dra_devkit.scheduling.framework.claim_cache import UNUSED, AllocatedState, is_allocated
from dra_devkit.scheduling.framework.node_allocation import Allocated, Fingerprints, NodeAllocator
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..scheduler_view import SchedulerView
from ..taints import RULE

_NAMES = {"name", "attributes", "taints", "consumesCounters"}  # fields of a device that are compared in another form
_NO_ATTRIBUTES: ReadOnlyJSON = {}
# A device: its content without names and attributes, whether a claim holds it, and its consumed capacity.
_DeviceContent = tuple[bytes, bool, str]
# A pool without names: its driver, the totals of its counters, and each device with its attributes.
_PoolContent = tuple[str, bytes, Sequence[tuple[_DeviceContent, ReadOnlyJSON]]]


def device_keys(
    view: SchedulerView, selected: frozenset[str] | None, compared: frozenset[str], own: Collection[ReadOnlyJSON]
) -> DeviceKeys:
    """Returns the keys of the view's nodes, which are computed once for all pods that read the same attributes."""
    if any(map(is_allocated, own)):
        return DeviceKeys(view, selected, compared, own)
    known = view.found.get((DeviceKeys, selected, compared))
    if known is None:
        known = view.found[DeviceKeys, selected, compared] = DeviceKeys(view, selected, compared)
    assert isinstance(known, DeviceKeys)
    return known


class DeviceKeys:
    """Keys of nodes. Nodes with an equal key have equal devices, of which equal ones are held. Names and unread attributes may differ.

    Args:
        selected: the names of attributes that selectors of the pod can read; None for all.
        compared: the names of attributes that its constraints compare. The values do not matter, only which devices have the same value.
        own: the pod's claims. A node with a pool from which such a claim has a device has no key, so it is examined itself. The pod does
            not wait for its own claim: the proposed change "delete the claim that holds the device" is for other claims only.
    """

    def __init__(
        self,
        view: SchedulerView,
        selected: frozenset[str] | None,
        compared: frozenset[str] = frozenset(),
        own: Iterable[ReadOnlyJSON] = (),
    ) -> None:
        self._view = view
        own_names = {_own_name(name) for name in selected or ()}
        read = None if selected is None else selected | {name for name in compared if _own_name(name) in own_names}
        self._names = None if read is None else sorted(read)
        # A driver may omit its own domain, so an attribute has two names, whose values are compared with each other.
        self._compared: dict[str, list[str]] = {}
        for name in sorted(set() if read is None else compared - read):
            self._compared.setdefault(_own_name(name), []).append(name)
        self._own = {(r["driver"], r["pool"]) for claim in own for r in results_of(claim)}
        # The contents of all pools are the same for all pods; None for a pool that has no content.
        self._pools: dict[PoolKey, _PoolContent | None] = view.found.setdefault("pools", {})
        self._keys: dict[str, int | None] = {}  # by name of the node
        self._numbers: dict[Hashable, int] = {}  # of different contents of nodes
        self._wide = [sl for sl in view.slices.wide if not sl["spec"].get("nodeName")]
        self._counters: dict[str, list[ReadOnlyJSON]] = {}  # slices with counters that are of one node, by its name
        for sl in view.slices.wide:
            if sl["spec"].get("nodeName"):
                self._counters.setdefault(sl["spec"]["nodeName"], []).append(sl)
        # For every node, the scheduler reads all slices with counters. So an incomplete or invalid pool among them affects every node.
        self._no_keys = any(self._affects_all_nodes(s) for slices in self._counters.values() for s in slices) or any(
            s["spec"].get("perDeviceNodeSelection") or s["spec"].get("sharedCounters") for s in self._wide
        )

    def of(self, node: NodeInfo) -> int | None:
        """Returns the node's key; None if the node has to be examined itself."""
        if self._no_keys:
            return None
        if node.name not in self._keys:
            self._keys[node.name] = self._key(node)
        return self._keys[node.name]

    def _affects_all_nodes(self, sl: ReadOnlyJSON) -> bool:
        """Returns whether the pool of a slice is incomplete or invalid, or has slices of several nodes."""
        slices = self._view.slices.by_pool[key_of(sl)]
        return self._content(key_of(sl)) is None or len({s["spec"].get("nodeName") for s in slices}) > 1

    def _key(self, node: NodeInfo) -> int | None:
        by_pool: dict[PoolKey, int] = {}  # the number of slices of the node
        slices = self._view.slices
        here = (s for s in self._wide if is_here(s["spec"], node.node))
        for sl in (*slices.local.get(node.name, ()), *self._counters.get(node.name, ()), *here):
            by_pool[key_of(sl)] = by_pool.get(key_of(sl), 0) + 1
        if not self._own.isdisjoint(by_pool):
            return None
        pools, attributes = [], []
        for key, number in by_pool.items():
            content = self._content(key) if number == len(slices.by_pool[key]) else None
            if content is None:
                return None
            driver, totals, devices = content
            read = sorted(((c, *self._selected(found)), i) for i, (c, found) in enumerate(devices))
            pools.append((driver, totals, tuple(selected for selected, _ in read)))
            attributes.append([devices[i][1] for _, i in read])
        order = sorted(range(len(pools)), key=pools.__getitem__)
        ordered = [a for k in order for a in attributes[k]]
        patterns = [_pattern([a.get(name) for name in names for a in ordered]) for names in self._compared.values()]
        return self._numbers.setdefault((tuple(pools[k] for k in order), *patterns), len(self._numbers))

    def _selected(self, attributes: ReadOnlyJSON) -> Iterable[bytes]:
        """Returns the values that selectors can read."""
        if self._names is None:
            return [msgspec.json.encode(attributes, order="sorted")]
        return [msgspec.json.encode(attributes[n]) if n in attributes else b"" for n in self._names]

    def _content(self, key: PoolKey) -> _PoolContent | None:
        """Returns the content of a pool; None if slices are missing or old, or if names are not unique."""
        if key not in self._pools:
            self._pools[key] = self._read_pool(key)
        return self._pools[key]

    def _read_pool(self, key: PoolKey) -> _PoolContent | None:
        slices = self._view.slices.by_pool[key]
        pools = [s["spec"]["pool"] for s in slices]
        if any(p != pools[0] for p in pools) or pools[0]["resourceSliceCount"] != len(slices):
            return None
        sets = [s for sl in slices for s in sl["spec"].get("sharedCounters") or ()]
        devices = [d for sl in slices for d in sl["spec"].get("devices") or ()]
        numbers = {s["name"]: i for i, s in enumerate(sets)}
        if len(numbers) != len(sets) or len({d["name"] for d in devices}) != len(devices):
            return None
        use = self._view.cache.claims.use.get(key, UNUSED)
        try:
            content = [(_content(key, d, use, numbers), d.get("attributes") or _NO_ATTRIBUTES) for d in devices]
        except KeyError:  # of an unknown counter set: the scheduler reports the pool as invalid
            return None
        totals = msgspec.json.encode([s["counters"] for s in sets], order="sorted") if sets else b""
        return key[0], totals, content


def _own_name(attribute: str) -> str:
    """Returns the name of an attribute without its domain, as the driver with this domain may write it."""
    return attribute.rpartition("/")[2]


def _pattern(values: Iterable[ReadOnlyJSON | None]) -> Hashable:
    """Returns which values of an attribute are equal. Each value, or item of a list, is replaced by the number of its first occurrence."""
    numbers: dict[Hashable, int] = {}
    out: list[Hashable] = []
    for value in values:
        for kind, found in (value or {"": None}).items():
            items = found if isinstance(found, list) else [found]
            out.append((kind, *(numbers.setdefault((type(item), item), len(numbers)) for item in items)))
    return tuple(out)


def _content(pool: PoolKey, device: ReadOnlyJSON, use: AllocatedState, sets: Mapping[str, int]) -> _DeviceContent:
    compared = [
        {k: v for k, v in device.items() if k not in _NAMES},
        [[t["key"], t.get("value"), t["effect"], t.get(RULE)] for t in device.get("taints") or ()],
        [[sets[c["counterSet"]], c["counters"]] for c in device.get("consumesCounters") or ()],
    ]
    named = DeviceId(*pool, device["name"])
    shares = use.shares.get(named)
    consumed = "" if shares is None else str(sorted((n, str(a)) for n, a in shares.items()))
    return msgspec.json.encode(compared, order="sorted"), named in use.devices, consumed


class RepresentativeAllocator(NodeAllocator):
    """Allocates once for all nodes with an equal key. A result names the devices of the node on which it was found."""

    def __init__(self, keys: DeviceKeys, view: SchedulerView, limit: float) -> None:
        nodes = len(view.snapshot.nodes) or 1
        super().__init__(view.memory, view.cache.devices(), nodes, limit, behavior=view.behavior)
        self._node_keys = keys
        self._of_keys: dict[Hashable, Allocated] = {}
        self.late: set[str] = set()
        """The names of nodes whose search took too long."""

    def on(self, node: NodeInfo, claims: Sequence[dict[str, Any]], key: Fingerprints) -> Allocated:
        of_node = self._node_keys.of(node)
        known: Hashable = node.name if of_node is None else of_node
        try:
            if (key, known) not in self._of_keys:
                self._of_keys[key, known] = super().on(node, claims, key)
        except AllocationTimeout:
            self.late.add(node.name)
            raise
        return self._of_keys[key, known]
