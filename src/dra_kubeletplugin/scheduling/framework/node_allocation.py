"""Devices for a pod's claims, node by node, within the time that Kubernetes' Filter has.

What was found for a node is kept: for the next pod with the same requests it holds as long as the node's pools and what is taken
of them are the same objects. So of a hundred nodes only those are searched that changed.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from ..allocator.allocator import TIME_LIMIT
from ..allocator.faults import AllocationTimeout
from ..allocator.pools import AllocatorPool, DeviceId, PoolKey
from ..allocator.results import allocation_result
from ..allocator.search import Search, SearchState
from .claim_cache import UNUSED, DeviceUse
from .node_info import NodeInfo
from .slice_cache import PoolCache, Slices

JSON = dict[str, Any]
Allocated = list[JSON] | None  # an AllocationResult a claim; None where they do not fit
_KEPT = 64  # kinds of requests that are remembered
_AT_ONCE = 16  # nodes that Kubernetes looks at in parallel: it bounds the time for all of them
Fingerprints = tuple[bytes, ...]


def fingerprint(claim: JSON) -> bytes:
    """Equal for claims that ask for the same."""
    return msgspec.json.encode(claim["spec"])


class AllocationSlow(Exception):
    """The search went on for longer than its caller wants to wait; what was found is remembered for another one."""


@dataclass(frozen=True, eq=False)
class _Found:
    slices: Slices
    labels: Mapping[str, str]
    pools: list[AllocatorPool]
    uses: list[DeviceUse]
    results: Allocated


@dataclass
class AllocationMemory:
    """What was found before. For one thread at a time."""

    pools: PoolCache = field(default_factory=PoolCache)
    found: OrderedDict[Fingerprints, dict[str, _Found]] = field(default_factory=OrderedDict)
    classes: Mapping[str, JSON] = field(default_factory=dict)

    def of(self, key: Fingerprints, classes: Mapping[str, JSON]) -> dict[str, _Found]:
        if classes is not self.classes:
            self.found.clear()
            self.classes = classes
        nodes = self.found.setdefault(key, {})
        self.found.move_to_end(key)
        while len(self.found) > _KEPT:
            self.found.popitem(last=False)
        return nodes


class NodeAllocator:
    """For one pod, on the state of one moment.

    Args:
        limit: seconds for one node. All nodes together have as long as if 16 of them were looked at together.
        patience: seconds after which :class:`AllocationSlow` is raised, until :meth:`take_time`.
        fractions: whether the gate DRAFractionalCapacityRange is on.
    """

    def __init__(
        self,
        memory: AllocationMemory,
        slices: Slices,
        classes: Mapping[str, JSON],
        use: Mapping[PoolKey, DeviceUse],
        nodes: int,
        limit: float = TIME_LIMIT,
        patience: float = math.inf,
        *,
        fractions: bool = False,
    ) -> None:
        self._memory = memory
        self._slices = slices
        self._classes = classes
        self._use = use
        self._limit = limit
        self._fractions = fractions
        begun = time.monotonic()
        self._end = begun + limit * -(-nodes // _AT_ONCE)
        self._soon = begun + patience
        self._cancelled = False
        self._state: SearchState | None = None
        self._key: Fingerprints | None = None
        self._known: dict[str, _Found] = {}

    def cancel(self) -> None:
        """Ends what another thread is searching: it raises :class:`AllocationTimeout` soon."""
        self._cancelled = True
        if self._state is not None:
            self._state.cancelled = True

    def take_time(self) -> None:
        """From now on the limit counts alone."""
        self._soon = math.inf

    def on(self, node: NodeInfo, claims: Sequence[JSON], key: Fingerprints) -> Allocated:
        """``key`` are the claims' fingerprints.

        Raises :class:`AllocationError` where no node can help, :class:`NodeFault` where this one cannot,
        :class:`AllocationTimeout` where the time is up, :class:`AllocationSlow` where the caller's is."""
        if self._key is not key:
            self._key, self._known = key, self._memory.of(key, self._classes)
        known = self._known
        found = known.get(node.name)
        if found and found.slices is self._slices and found.labels is node.labels:
            pools = found.pools
        else:
            pools = self._memory.pools.pools(node, self._slices)
        uses = [self._use.get(p.key, UNUSED) for p in pools]
        if found and found.pools is pools and found.uses == uses:
            return found.results
        left = min(self._limit, min(self._end, self._soon) - time.monotonic())
        try:
            if left <= 0 or self._cancelled:
                raise AllocationTimeout("timed out trying to allocate devices")
            results = self._search(node, claims, pools, uses, left)
        except AllocationTimeout:
            if time.monotonic() >= self._soon:
                raise AllocationSlow from None
            raise
        if not results or not any("shareID" in r for x in results for r in x["devices"].get("results") or []):
            known[node.name] = _Found(self._slices, node.labels, pools, uses, results)
        return results

    def _search(
        self, node: NodeInfo, claims: Sequence[JSON], pools: list[AllocatorPool], uses: list[DeviceUse], limit: float
    ) -> Allocated:
        in_use: set[DeviceId] = set().union(*(u.devices for u in uses))
        shares = {device: dict(taken) for u in uses for device, taken in u.shares.items()}
        fractions = self._fractions
        self._state = SearchState(self._classes, in_use, shares, lambda: str(uuid4()), limit, fractions=fractions)
        if self._cancelled:
            self._state.cancelled = True  # in the moment before there was anything to cancel
        search = Search(self._state, pools, claims)
        if not search.run():
            return None
        return [
            allocation_result(node.node, claim, picks, self._classes)
            for claim, picks in zip(claims, search.picks, strict=True)
        ]
