"""Two caches of the scheduler: ResourceSlices, indexed by node, and the pools of each node.

A node's pools stay cached until one of their slices or the node's labels change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ..allocator.pools import AllocatorPool, PoolKey, gather, key_of
from .node_info import NodeInfo

JSON = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Slices:
    """All slices at one moment. Immutable."""

    local: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)  # by node
    wide: tuple[JSON, ...] = ()  # for more than one node, or with counters
    by_pool: Mapping[PoolKey, tuple[JSON, ...]] = field(default_factory=dict)


class SliceCache:
    def __init__(self) -> None:
        self.slices = Slices()
        self._places: dict[str, tuple[str, PoolKey]] = {}  # slice UID → (node or "" for several nodes, pool)

    def observe(self, obj: JSON) -> None:
        uid = str(obj["metadata"]["uid"])
        self._remove(uid)
        spec, key = obj["spec"], key_of(obj)
        node = "" if spec.get("sharedCounters") else str(spec.get("nodeName") or "")
        self._places[uid] = (node, key)
        s = self.slices
        by_pool = {**s.by_pool, key: (*s.by_pool.get(key, ()), obj)}
        if node:
            self.slices = Slices({**s.local, node: (*s.local.get(node, ()), obj)}, s.wide, by_pool)
        else:
            self.slices = Slices(s.local, (*s.wide, obj), by_pool)

    def forget(self, obj: JSON) -> None:
        self._remove(str(obj["metadata"]["uid"]))

    def _remove(self, uid: str) -> None:
        if uid not in self._places:
            return
        node, key = self._places.pop(uid)
        s = self.slices
        by_pool = {**s.by_pool, key: _without(s.by_pool[key], uid)}
        if node:
            self.slices = Slices({**s.local, node: _without(s.local[node], uid)}, s.wide, by_pool)
        else:
            self.slices = Slices(s.local, _without(s.wide, uid), by_pool)


def _without(slices: Sequence[JSON], uid: str) -> tuple[JSON, ...]:
    return tuple(s for s in slices if s["metadata"]["uid"] != uid)


@dataclass(frozen=True, eq=False)
class _CachedPools:
    labels: Mapping[str, str]
    local: tuple[JSON, ...]
    wide: tuple[JSON, ...]
    slices: Slices | None  # set if slices of other nodes were read too
    pools: list[AllocatorPool]


class PoolCache:
    """Caches pools by node. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self._known: dict[str, _CachedPools] = {}

    def pools(self, node: NodeInfo, slices: Slices) -> list[AllocatorPool]:
        local = slices.local.get(node.name, ())
        known = self._known.get(node.name)
        if (
            known
            and known.labels == node.labels
            and known.local is local
            and known.wide is slices.wide
            and (known.slices is None or known.slices is slices)
        ):
            return known.pools
        other_nodes_read = False

        def slices_of_pool(key: PoolKey) -> Sequence[JSON]:
            nonlocal other_nodes_read
            other_nodes_read = True
            return slices.by_pool.get(key, ())

        found = gather([*local, *slices.wide], node.node, slices_of_pool)
        # Slices with counters are read for every node, so a valid pool without candidates belongs to other nodes.
        pools = [p for p in found if p.candidates or p.invalid or p.incomplete]
        self._known[node.name] = _CachedPools(
            node.labels, local, slices.wide, slices if other_nodes_read else None, pools
        )
        return pools

    def __len__(self) -> int:
        return len(self._known)

    def keep_only(self, nodes: Set[str]) -> None:
        """Deletes the pools of all other nodes, which were removed."""
        for name in self._known.keys() - nodes:
            del self._known[name]
