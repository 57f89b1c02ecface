"""Allocates devices for a pod's claims node by node, within the time limit of Kubernetes' Filter.

Results are cached per node and reused for the next pod with the same requests. A result is valid until the node's
pools or the use of their devices change. So only changed nodes are searched again. A result with a share id is not cached, because
each allocation of a share needs an id of its own.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from dra_kubeletplugin.base.json_types import JSON

from ...generations import PoolKey
from ...kubernetes_releases import AllocatorBehavior
from ..allocator.faults import AllocationTimeout
from ..allocator.pools import AllocatorPool, DeviceId
from ..allocator.results import allocation_result
from ..allocator.search import DEFAULT_BEHAVIOR, TIME_LIMIT, Search, SearchState
from .claim_cache import UNUSED, AllocatedState
from .node_info import NodeInfo
from .node_resources import DeviceIndex
from .slice_cache import PoolCache, Slices

Allocated = list[JSON] | None  # one AllocationResult per claim; None if the claims do not fit
_MAX_CACHED = 64  # cached sets of requests
_PARALLEL_NODES = 16  # nodes that Kubernetes filters in parallel, which limits the total time
Fingerprints = tuple[bytes, ...]


def fingerprint(claim: JSON) -> bytes:
    """Returns a key that is equal for claims with the same requests."""
    return msgspec.json.encode(claim["spec"])


class AllocationSlow(Exception):
    """The search took longer than ``slow_after``. Results found so far stay cached for the next call."""


@dataclass(frozen=True, eq=False)
class _CachedResult:
    slices: Slices
    labels: Mapping[str, str]
    pools: list[AllocatorPool]
    uses: list[AllocatedState]
    results: Allocated


@dataclass
class AllocationMemory:
    """The cache of results. Only one thread may use it at a time."""

    pools: PoolCache = field(default_factory=PoolCache)
    using_node: DeviceIndex = field(default_factory=DeviceIndex)
    found: OrderedDict[Fingerprints, dict[str, _CachedResult]] = field(default_factory=OrderedDict)
    classes: Mapping[str, JSON] = field(default_factory=dict)

    def of(self, key: Fingerprints, classes: Mapping[str, JSON]) -> dict[str, _CachedResult]:
        if classes is not self.classes:
            self.found.clear()
            self.classes = classes
        nodes = self.found.setdefault(key, {})
        self.found.move_to_end(key)
        while len(self.found) > _MAX_CACHED:
            self.found.popitem(last=False)
        return nodes

    def keep_only(self, nodes: Sequence[NodeInfo]) -> None:
        """Deletes the results of removed nodes, if there are more results than nodes."""
        if len(self.pools) <= len(nodes):
            return
        names = {n.name for n in nodes}
        self.pools.keep_only(names)
        for results in self.found.values():
            for name in results.keys() - names:
                del results[name]


@dataclass(frozen=True, eq=False)
class DeviceSnapshot:
    """The input of an allocation at one moment: the slices, the DeviceClasses by name, and the use of each pool's devices."""

    slices: Slices
    classes: Mapping[str, JSON]
    use: Mapping[PoolKey, AllocatedState]


class NodeAllocator:
    """Allocates for one pod on a snapshot.

    Args:
        nodes: the number of nodes that may be searched.
        limit: seconds for one node. The limit for all nodes assumes that 16 of them are searched in parallel.
        slow_after: seconds until :class:`AllocationSlow` is raised, unless :meth:`remove_slow_limit` was called.
        fractions: whether the gate DRAFractionalCapacityRange is on.
        behavior: the behavior of the release's allocator.
    """

    def __init__(
        self,
        memory: AllocationMemory,
        devices: DeviceSnapshot,
        nodes: int,
        limit: float = TIME_LIMIT,
        slow_after: float = math.inf,
        *,
        fractions: bool = False,
        behavior: AllocatorBehavior = DEFAULT_BEHAVIOR,
    ) -> None:
        self._memory = memory
        self._devices = devices
        self._limit = limit
        self._fractions = fractions
        self._behavior = behavior
        started = time.monotonic()
        self._end = started + limit * -(-nodes // _PARALLEL_NODES)
        self._slow_at = started + slow_after
        self._cancelled = False
        self._state: SearchState | None = None
        self._key: Fingerprints | None = None
        self._known: dict[str, _CachedResult] = {}

    def cancel(self) -> None:
        """Stops a search in another thread: it soon raises :class:`AllocationTimeout`."""
        self._cancelled = True
        if self._state is not None:
            self._state.cancelled = True

    def remove_slow_limit(self) -> None:
        """Removes the limit of ``slow_after``; ``limit`` still applies."""
        self._slow_at = math.inf

    def using_node(self, allocation: JSON) -> list[tuple[JSON, JSON]]:
        """Returns the results whose devices use resources of their node, each with the device."""
        return self._memory.using_node.devices_of(allocation, self._devices.slices)

    def on(self, node: NodeInfo, claims: Sequence[JSON], key: Fingerprints) -> Allocated:
        """Returns the allocation of the claims on a node, from the cache if it is still valid.

        Args:
            key: the claims' fingerprints.

        Raises :class:`AllocationError` if no node can satisfy the claims, :class:`NodeFault` if this node cannot,
        :class:`AllocationTimeout` after ``limit``, :class:`AllocationSlow` after ``slow_after``.
        """
        if self._key is not key:
            self._key, self._known = key, self._memory.of(key, self._devices.classes)
        known = self._known
        found = known.get(node.name)
        if found and found.slices is self._devices.slices and found.labels is node.labels:
            pools = found.pools
        else:
            pools = self._memory.pools.pools(node, self._devices.slices)
        uses = [self._devices.use.get(p.key, UNUSED) for p in pools]
        if found and found.pools is pools and found.uses == uses:
            return found.results
        remaining = min(self._limit, min(self._end, self._slow_at) - time.monotonic())
        try:
            if remaining <= 0 or self._cancelled:
                raise AllocationTimeout("timed out trying to allocate devices")
            results = self._search(node, claims, pools, uses, remaining)
        except AllocationTimeout:
            if time.monotonic() >= self._slow_at:
                raise AllocationSlow from None
            raise
        if not results or not any("shareID" in r for x in results for r in x["devices"].get("results") or []):
            known[node.name] = _CachedResult(self._devices.slices, node.labels, pools, uses, results)
        return results

    def _search(
        self,
        node: NodeInfo,
        claims: Sequence[JSON],
        pools: list[AllocatorPool],
        uses: list[AllocatedState],
        limit: float,
    ) -> Allocated:
        in_use: set[DeviceId] = set().union(*(u.devices for u in uses))
        shares = {device: dict(taken) for u in uses for device, taken in u.shares.items()}
        self._state = SearchState(
            self._devices.classes,
            in_use,
            shares,
            lambda: str(uuid4()),
            limit,
            fractions=self._fractions,
            behavior=self._behavior,
        )
        if self._cancelled:
            self._state.cancelled = True  # cancel() was called before the state existed
        search = Search(self._state, pools, claims)
        if not search.run():
            return None
        return [
            allocation_result(node.node, claim, picks, self._devices.classes, self._behavior)
            for claim, picks in zip(claims, search.picks, strict=True)
        ]
