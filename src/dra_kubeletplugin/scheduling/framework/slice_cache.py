"""Slices as the scheduler knows them, by the nodes that they are for; and the pools of each node, kept until a slice changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..allocator.pools import AllocatorPool, PoolKey, gather, key_of
from .node_info import NodeInfo

JSON = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Slices:
    """All slices of one moment. Nothing in it changes."""

    local: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)  # by node
    wide: tuple[JSON, ...] = ()  # for more than one node, or with counters
    by_pool: Mapping[PoolKey, tuple[JSON, ...]] = field(default_factory=dict)


class SliceCache:
    def __init__(self) -> None:
        self.slices = Slices()
        self._places: dict[str, tuple[str, PoolKey]] = {}  # by UID: node, or nothing for more than one; pool

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
class _Known:
    labels: Mapping[str, str]
    local: tuple[JSON, ...]
    wide: tuple[JSON, ...]
    slices: Slices | None  # where slices of other nodes were looked at too
    pools: list[AllocatorPool]


class PoolCache:
    """Pools by node, for one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

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
        elsewhere = False

        def everywhere(key: PoolKey) -> Sequence[JSON]:
            nonlocal elsewhere
            elsewhere = True
            return slices.by_pool.get(key, ())

        found = gather([*local, *slices.wide], node.node, everywhere)
        # Counters count for all nodes: of a pool of another node that is as it should be there is nothing to look at.
        pools = [p for p in found if p.candidates or p.invalid or p.incomplete]
        self._known[node.name] = _Known(node.labels, local, slices.wide, slices if elsewhere else None, pools)
        return pools

    def keep_only(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Forgets nodes that have gone."""
        for name in [n for n in self._known if n not in nodes]:
            del self._known[name]
