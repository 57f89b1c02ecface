"""The structured allocator: devices for all claims of a pod together, on one node."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...resourceapi.quantity import Quantity, parse
from .faults import AllocationError, AllocationTimeout
from .pools import DeviceId, PoolKey, gather, key_of
from .results import allocation_result
from .search import Search, SearchState, plus

JSON = Mapping[str, Any]
TIME_LIMIT = 10.0  # seconds for one node, as the scheduler's Filter has
__all__ = ["TIME_LIMIT", "AllocationError", "AllocationTimeout", "Allocator"]


class Allocator:
    """Allocates on the state of one moment.

    Args:
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        allocated: claims that hold devices.
        share_id: makes share ids.
        time_limit: seconds that the search for one node may take.
        fractions: whether the gate DRAFractionalCapacityRange is on.
    """

    def __init__(
        self,
        slices: Iterable[JSON],
        classes: Iterable[JSON],
        allocated: Iterable[JSON],
        share_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        time_limit: float = TIME_LIMIT,
        *,
        fractions: bool = False,
    ) -> None:
        self._slices = list(slices)
        by_name = {c["metadata"]["name"]: c for c in classes}
        self._state = SearchState(by_name, set(), {}, share_id, time_limit, fractions=fractions)
        for claim in allocated:
            for result in _results(claim):
                _occupy(self._state, result)

    def allocate(self, node: JSON, claims: Sequence[JSON]) -> list[dict[str, Any]] | None:
        """One AllocationResult a claim, in order; None where they do not fit on ``node``.

        Raises :class:`AllocationError` where no node can help, :class:`AllocationTimeout` where the time is up. Pure but for
        the clock: may run in a thread.
        """
        search = Search(self._state, gather(self._slices, node, self._of_pool), claims)
        if not search.run():
            return None
        return [
            allocation_result(node, claim, picks, self._state.classes)
            for claim, picks in zip(claims, search.picks, strict=True)
        ]

    def _of_pool(self, key: PoolKey) -> list[JSON]:
        return [s for s in self._slices if key_of(s) == key]

    def cancel(self) -> None:
        """Ends a search that another thread is in: it raises :class:`AllocationTimeout` at once."""
        self._state.cancelled = True


def _results(claim: JSON) -> list[JSON]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or [])


def _occupy(state: SearchState, result: JSON) -> None:
    """Takes what a claim holds; admin access holds nothing."""
    if result.get("adminAccess"):
        return
    device = DeviceId(result["driver"], result["pool"], result["device"])
    if result.get("shareID"):
        used: dict[str, Quantity] = state.shares.setdefault(device, {})
        for name, amount in (result.get("consumedCapacity") or {}).items():
            used[name] = plus(used.get(name), parse(amount))
    else:
        state.in_use.add(device)
