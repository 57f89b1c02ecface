"""Finds nodes that have equal devices for a pod, so that only one of them is examined.

In a cluster of 5,000 nodes most nodes have the same devices. They differ in names and serial numbers, which few selectors read, and
in the number of devices that claims hold.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_devkit.generations import PoolKey, key_of
from dra_devkit.scheduling.allocator.pools import DeviceId, is_here
from dra_devkit.scheduling.framework.claim_cache import UNUSED, AllocatedState, is_allocated
from dra_devkit.scheduling.framework.node_allocation import Allocated, Fingerprints, NodeAllocator
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..scheduler_view import SchedulerView
from ..taints import RULE

# A device: its content without names and attributes, whether a claim holds it, and its consumed capacity.
_DeviceContent = tuple[bytes, bool, str]
_NAMES = {"name", "attributes", "taints", "consumesCounters"}  # fields of a device that are compared in another form
_NO_ATTRIBUTES: ReadOnlyJSON = {}


@dataclass(frozen=True, slots=True)
class _PoolContent:
    """A pool without names: its driver, the totals of its counters, and each device with its attributes."""

    driver: str
    totals: bytes
    devices: Sequence[tuple[_DeviceContent, ReadOnlyJSON]]

    def key(self, names: Sequence[str] | None) -> tuple[Any, ...]:
        """Returns a key. Pools with equal devices have equal keys. Only the attributes ``names`` are compared; None compares all."""
        if names is None:
            found = [(content, msgspec.json.encode(attributes, order="sorted")) for content, attributes in self.devices]
            return self.driver, self.totals, tuple(sorted(found))
        encode = msgspec.json.encode
        values = [
            (content, [encode(attributes[n]) if n in attributes else b"" for n in names])
            for content, attributes in self.devices
        ]
        return self.driver, self.totals, tuple((content, *selected) for content, selected in sorted(values))


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
        compared: the names of attributes that its constraints compare. The values do not matter, only whether devices have the same value.
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
        self._selected = selected
        self._names = None if selected is None else tuple(sorted(selected))
        self._compared = frozenset() if selected is None else compared - selected
        self._own = {(r["driver"], r["pool"]) for claim in own for r in results_of(claim)}
        # The contents of all pools are the same for all pods; None for a pool that has no content.
        self._pools: dict[PoolKey, _PoolContent | None] = view.found.setdefault(_PoolContent, {})
        self._keys: dict[str, int | None] = {}  # by name of the node
        self._numbers: dict[Hashable, int] = {}  # of different contents of nodes
        self._wide: list[ReadOnlyJSON] = []
        self._counters: dict[str, list[ReadOnlyJSON]] = {}  # slices with counters that are of one node, by its name
        for sl in view.slices.wide:
            if sl["spec"].get("nodeName"):
                self._counters.setdefault(sl["spec"]["nodeName"], []).append(sl)
            else:
                self._wide.append(sl)
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
        by_pool: dict[PoolKey, list[ReadOnlyJSON]] = {}
        slices = self._view.slices
        here = (s for s in self._wide if is_here(s["spec"], node.node))
        for sl in (*slices.local.get(node.name, ()), *self._counters.get(node.name, ()), *here):
            by_pool.setdefault(key_of(sl), []).append(sl)
        if not self._own.isdisjoint(by_pool):
            return None
        names, patterns = self._of_constraints([s for found in by_pool.values() for s in found])
        pools = []
        for key, found in by_pool.items():
            content = self._content(key) if len(found) == len(slices.by_pool[key]) else None
            if content is None:
                return None
            pools.append(content.key(names))
        return self._numbers.setdefault((patterns, names, *sorted(pools)), len(self._numbers))

    def _of_constraints(self, slices: Iterable[ReadOnlyJSON]) -> tuple[tuple[str, ...] | None, Hashable]:
        """Returns the names of attributes whose values matter, and a pattern for each other attribute.

        The pattern is whether all devices of the node have the same value, each device has a different value, or no device has a value.
        """
        if not self._compared:
            return self._names, None
        devices = [d for sl in slices for d in sl["spec"].get("devices") or ()]
        mixed, patterns = set(), []
        for name in sorted(self._compared):
            values = [(d.get("attributes") or {}).get(name) for d in devices]
            number = len({msgspec.json.encode(v) for v in values})
            if (None in values and number > 1) or 1 < number < len(values):
                mixed.add(name)
            else:
                patterns.append((name, None in values, number == 1))
        assert self._selected is not None
        return tuple(sorted(self._selected | mixed)), tuple(patterns)

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
        return _PoolContent(key[0], totals, content)


def _content(pool: PoolKey, device: ReadOnlyJSON, use: AllocatedState, sets: Mapping[str, int]) -> _DeviceContent:
    compared = [
        {k: v for k, v in device.items() if k not in _NAMES},
        [[t["key"], t.get("value"), t["effect"], t.get(RULE)] for t in device.get("taints") or ()],
        [[sets[c["counterSet"]], c["counters"]] for c in device.get("consumesCounters") or ()],
    ]
    named = DeviceId(*pool, device["name"])
    shares = use.shares.get(named)
    consumed = str(sorted((n, str(a)) for n, a in shares.items())) if shares else ""
    return msgspec.json.encode(compared, order="sorted"), named in use.devices, consumed


class RepresentativeAllocator(NodeAllocator):
    """Allocates once for all nodes with an equal key. A result names the devices of the node on which it was found."""

    def __init__(self, keys: DeviceKeys, view: SchedulerView, limit: float) -> None:
        nodes = len(view.snapshot.nodes) or 1
        super().__init__(view.memory, view.cache.devices(), nodes, limit, behavior=view.behavior)
        self._node_keys = keys
        self._of_keys: dict[Hashable, Allocated] = {}

    def on(self, node: NodeInfo, claims: Sequence[dict[str, Any]], key: Fingerprints) -> Allocated:
        of_node = self._node_keys.of(node)
        if of_node is None:
            return super().on(node, claims, key)
        if (key, of_node) not in self._of_keys:
            self._of_keys[key, of_node] = super().on(node, claims, key)
        return self._of_keys[key, of_node]
