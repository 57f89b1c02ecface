"""What a search need not try: more devices than there are left, and one of several devices that are alike.

Both are exact: they leave out only what cannot lead to an allocation, so that the first one found stays the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...resourceapi.quantity import Quantity, parse
from .pools import Candidate

JSON = Mapping[str, Any]
CounterId = tuple[str, str, str, str]  # driver, pool, counter set, counter


def most_devices(
    candidates: Iterable[Candidate], left: Callable[[Candidate], Mapping[tuple[str, str], Quantity]]
) -> int:
    """How many of the devices can be had together at most, as their counters allow.

    Devices of one counter set cannot be more than what is left of a counter, divided by the least that one of them takes.
    """
    free = 0
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    for c in candidates:
        consumed = c.device.get("consumesCounters")
        if consumed:
            groups.setdefault((c.id.driver, c.id.pool, consumed[0]["counterSet"]), []).append(c)
        else:
            free += 1
    return free + sum(_most_of_set(name, group, left(group[0])) for (_, _, name), group in groups.items())


def _most_of_set(name: str, group: Sequence[Candidate], left: Mapping[tuple[str, str], Quantity]) -> int:
    most = len(group)
    taken = [_taken(c, name) for c in group]
    for counter in set.intersection(*(set(t) for t in taken)):
        least = min(t[counter] for t in taken)
        available = left.get((name, counter))
        if least > 0 and available is not None:
            most = min(most, max(int(available.value // least), 0))
    return most


def _taken(candidate: Candidate, counter_set: str) -> dict[str, Any]:
    return {
        counter: parse(amount["value"]).value
        for c in candidate.device["consumesCounters"]
        if c["counterSet"] == counter_set
        for counter, amount in c["counters"].items()
    }


def likeness(candidate: Candidate, selectable: Sequence[bool], attributes: Sequence[JSON | None]) -> str:
    """Equal for devices of which one is as good as another for all requests: only their names differ.

    ``selectable``: which requests would take it; ``attributes``: what the constraints compare.
    """
    device, spec = candidate.device, candidate.slice["spec"]
    matters = {
        k: device.get(k) for k in ("capacity", "consumesCounters", "taints", "allowMultipleAllocations", "bindsToNode")
    }
    place = device if spec.get("perDeviceNodeSelection") else spec
    where = {k: place.get(k) for k in ("nodeName", "allNodes", "nodeSelector")}
    parts = [candidate.id.driver, candidate.id.pool, matters, where, list(selectable), list(attributes)]
    return json.dumps(parts, sort_keys=True)
