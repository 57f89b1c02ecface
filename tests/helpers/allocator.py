"""Allocates devices on slices, classes and claims alone, for tests of the search. The scheduler uses NodeAllocator."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dra_devkit.generations import PoolKey, key_of
from dra_devkit.kubernetes_releases import DEFAULT, allocator_behavior
from dra_devkit.scheduling.allocator.pools import DeviceId, gather
from dra_devkit.scheduling.allocator.results import allocation_result
from dra_devkit.scheduling.allocator.search import TIME_LIMIT, Search, SearchState, plus
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse


class Allocator:
    """Allocates devices on a snapshot of the cluster.

    Args:
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        allocated: claims that hold devices.
        share_id: generates share ids.
        time_limit: seconds that the search for one node may take.
        fractions: whether the gate DRAFractionalCapacityRange is on.
        release: the release whose allocator is imitated.
    """

    def __init__(
        self,
        slices: Iterable[ReadOnlyJSON],
        classes: Iterable[ReadOnlyJSON],
        allocated: Iterable[ReadOnlyJSON],
        share_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        time_limit: float = TIME_LIMIT,
        *,
        fractions: bool = False,
        release: str = DEFAULT,
    ) -> None:
        self._slices = list(slices)
        by_name = {c["metadata"]["name"]: c for c in classes}
        self._state = SearchState(
            by_name, set(), {}, share_id, time_limit, fractions=fractions, behavior=allocator_behavior(release)
        )
        for claim in allocated:
            for result in _results(claim):
                _occupy(self._state, result)

    def allocate(self, node: ReadOnlyJSON, claims: Sequence[ReadOnlyJSON]) -> list[dict[str, Any]] | None:
        """Returns one AllocationResult per claim, in order, or None if the claims do not fit on ``node``.

        It has no side effects, so it may run in a thread.

        Raises :class:`AllocationError` if no node can satisfy the claims, :class:`AllocationTimeout` after the time
        limit.
        """
        search = Search(self._state, gather(self._slices, node, self._of_pool), claims)
        if not search.run():
            return None
        return [
            allocation_result(node, claim, picks, self._state.classes, self._state.behavior)
            for claim, picks in zip(claims, search.picks, strict=True)
        ]

    def _of_pool(self, key: PoolKey) -> list[ReadOnlyJSON]:
        return [s for s in self._slices if key_of(s) == key]

    def cancel(self) -> None:
        """Stops a search in another thread: it raises :class:`AllocationTimeout` at once."""
        self._state.cancelled = True


def _results(claim: ReadOnlyJSON) -> list[ReadOnlyJSON]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or [])


def _occupy(state: SearchState, result: ReadOnlyJSON) -> None:
    """Records the device of an allocation result as held, unless the result has admin access."""
    if result.get("adminAccess"):
        return
    device = DeviceId(result["driver"], result["pool"], result["device"])
    if result.get("shareID"):
        used: dict[str, Quantity] = state.shares.setdefault(device, {})
        for name, amount in (result.get("consumedCapacity") or {}).items():
            used[name] = plus(used.get(name), parse(amount))
    else:
        state.in_use.add(device)
