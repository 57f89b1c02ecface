"""Excludes branches of a search that have no solution: requests for more devices than remain, and devices that are equivalent
to a device that failed.

Both rules are exact: they exclude only branches without a solution, so the first solution stays the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

from .pools import Candidate
from .results import PickedRequest


@dataclass
class Demand:
    """A request, and the indices of the candidates that it would accept."""

    claim: int
    position: int
    request: PickedRequest
    indices: list[int]

    @property
    def of_alternative(self) -> bool:
        return bool(self.request.parent) or self.request.all is not None


def most_devices(
    candidates: Iterable[Candidate], remaining: Callable[[Candidate], Mapping[tuple[str, str], Quantity]]
) -> int:
    """Returns an upper bound for how many of the devices can be allocated together, given their counters.

    A device belongs to the first counter set that it consumes. The bound of a counter is its remaining amount divided by the
    smallest amount that one device of the set consumes. Only counters that all devices of the set consume have a bound.

    Args:
        remaining: returns the remaining amounts of a device's pool, by (counter set, counter).
    """
    free = 0
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    for c in candidates:
        consumed = c.device.get("consumesCounters")
        if consumed:
            groups.setdefault((c.id.driver, c.id.pool, consumed[0]["counterSet"]), []).append(c)
        else:
            free += 1
    return free + sum(_max_of_set(name, group, remaining(group[0])) for (_, _, name), group in groups.items())


def _max_of_set(name: str, group: Sequence[Candidate], remaining: Mapping[tuple[str, str], Quantity]) -> int:
    maximum = len(group)
    consumed = [_consumption(c, name) for c in group]
    for counter in set.intersection(*(set(t) for t in consumed)):
        smallest = min(t[counter] for t in consumed)
        available = remaining.get((name, counter))
        if smallest > 0 and available is not None:
            maximum = min(maximum, max(int(available.value // smallest), 0))
    return maximum


def _consumption(candidate: Candidate, counter_set: str) -> dict[str, Any]:
    return {
        counter: parse(amount["value"]).value
        for c in candidate.device["consumesCounters"]
        if c["counterSet"] == counter_set
        for counter, amount in c["counters"].items()
    }


def equivalence_key(candidate: Candidate, selectable: Sequence[bool], attributes: Sequence[ReadOnlyJSON | None]) -> str:
    """Returns a key that is equal for devices that are interchangeable for all requests.

    Their names may differ, and so may attributes that no constraint compares.

    Args:
        selectable: for each request, whether it would accept the device.
        attributes: the values that constraints compare.
    """
    device, spec = candidate.device, candidate.slice["spec"]
    relevant = {
        k: device.get(k) for k in ("capacity", "consumesCounters", "taints", "allowMultipleAllocations", "bindsToNode")
    }
    place = device if spec.get("perDeviceNodeSelection") else spec
    where = {k: place.get(k) for k in ("nodeName", "allNodes", "nodeSelector")}
    parts = [candidate.id.driver, candidate.id.pool, relevant, where, list(selectable), list(attributes)]
    return json.dumps(parts, sort_keys=True)
