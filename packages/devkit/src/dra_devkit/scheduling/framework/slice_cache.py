"""Two caches of the scheduler: ResourceSlices, indexed by node, and the pools of each node.

A node's pools stay cached until one of their slices or the node's labels change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from dra_kubeletplugin.base.json_types import JSON

from ...generations import PoolKey, key_of
from ..allocator.pools import AllocatorPool, gather, is_relevant, order_of
from .node_info import NodeInfo


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
class _Wide:
    """The slices for more than one node, divided by how they concern a node.

    Args:
        plain: slices that may have devices of any node.
        counters: slices with counters only, by pool. Every node reads them, but only the nodes of the pool have devices for them.
        broken: the incomplete and invalid pools of ``counters``, which concern every node.
    """

    plain: tuple[JSON, ...] = ()
    counters: Mapping[PoolKey, tuple[JSON, ...]] = field(default_factory=dict)
    broken: tuple[AllocatorPool, ...] = ()


@dataclass(frozen=True, eq=False)
class _CachedPools:
    labels: Mapping[str, str]
    local: tuple[JSON, ...]
    wide: _Wide
    keys: Set[PoolKey]  # of the pools that have a slice for the node
    slices: Slices | None  # set if slices of other nodes were read too
    pools: list[AllocatorPool]

    def is_valid(self, node: NodeInfo, slices: Slices, wide: _Wide) -> bool:
        return (
            self.labels == node.labels
            and self.local is slices.local.get(node.name, ())
            and (self.slices is None or self.slices is slices)
            and (
                self.wide is wide
                or (
                    self.wide.plain is wide.plain
                    and self.wide.broken == wide.broken
                    and all(self.wide.counters.get(k) == wide.counters.get(k) for k in self.keys)
                )
            )
        )


class PoolCache:
    """Caches pools by node. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self._known: dict[str, _CachedPools] = {}
        self._wide = _Wide()
        self._slices = Slices()  # the slices of _wide
        # By pool: its slices, and the pool if it is broken for the nodes that have no device of it.
        self._foreign: dict[PoolKey, tuple[Sequence[JSON], AllocatorPool | None]] = {}

    def pools(self, node: NodeInfo, slices: Slices) -> list[AllocatorPool]:
        wide = self._divided(slices)
        known = self._known.get(node.name)
        if known and known.is_valid(node, slices, wide):
            return known.pools
        local = slices.local.get(node.name, ())
        other_nodes_read = False

        def slices_of_pool(key: PoolKey) -> Sequence[JSON]:
            nonlocal other_nodes_read
            other_nodes_read = True
            return slices.by_pool.get(key, ())

        here = [*local, *(s for s in wide.plain if is_relevant(s["spec"], node.node))]
        keys = {key_of(s) for s in here}
        counters = (s for key in keys for s in wide.counters.get(key, ()))
        found = gather([*here, *counters], node.node, slices_of_pool)
        # A valid pool without candidates belongs to other nodes.
        pools = [p for p in found if p.candidates or p.invalid or p.incomplete]
        if broken := [p for p in wide.broken if p.key not in keys]:
            pools = sorted([*pools, *broken], key=order_of)
        self._known[node.name] = _CachedPools(
            node.labels, local, wide, keys, slices if other_nodes_read else None, pools
        )
        return pools

    def _divided(self, slices: Slices) -> _Wide:
        """Divides the slices for more than one node, once for all nodes. Each node would otherwise read the counters of all nodes."""
        if slices is self._slices:
            return self._wide
        plain: list[JSON] = []
        counters: dict[PoolKey, list[JSON]] = {}
        for sl in slices.wide:
            of_counters = sl["spec"].get("sharedCounters") and not sl["spec"].get("devices")
            (counters.setdefault(key_of(sl), []) if of_counters else plain).append(sl)
        known, self._foreign = self._foreign, {}
        for key, of_pool in counters.items():
            every = slices.by_pool.get(key, ())
            before = known.get(key)
            self._foreign[key] = before if before and before[0] is every else (every, _foreign_pool(of_pool, every))
        same = len(plain) == len(self._wide.plain) and all(a is b for a, b in zip(plain, self._wide.plain, strict=True))
        self._wide = _Wide(
            self._wide.plain if same else tuple(plain),
            {key: tuple(of_pool) for key, of_pool in counters.items()},
            tuple(pool for _, pool in self._foreign.values() if pool),
        )
        self._slices = slices
        return self._wide

    def __len__(self) -> int:
        return len(self._known)

    def keep_only(self, nodes: Set[str]) -> None:
        """Deletes the pools of all other nodes, which were removed."""
        for name in self._known.keys() - nodes:
            del self._known[name]


def _foreign_pool(counters: Sequence[JSON], every: Sequence[JSON]) -> AllocatorPool | None:
    """Returns the pool as seen by a node that has none of its devices; None if the pool is valid.

    Args:
        counters: the slices of the pool that have counters.
        every: all slices of the pool.
    """
    return next((p for p in gather(counters, {}, lambda _: every) if p.invalid or p.incomplete), None)
