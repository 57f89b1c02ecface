"""The counters that a device consumes, and the compatibility groups of a counter set (KEP-4815, KEP-5963)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

Groups = frozenset[str]


def groups_of(device: ReadOnlyJSON) -> Iterator[tuple[str, Groups]]:
    for c in device.get("consumesCounters") or []:
        yield c["counterSet"], frozenset(c.get("compatibilityGroups") or ())


def are_compatible(users: Sequence[Groups]) -> bool:
    """Returns whether devices with these groups are compatible: all share a group, or none of them has a group."""
    return not any(users) or bool(frozenset.intersection(*users))


def consume(remaining: dict[tuple[str, str], Quantity], device: ReadOnlyJSON, sign: int) -> None:
    for c in device.get("consumesCounters") or []:
        for name, amount in c["counters"].items():
            key = (c["counterSet"], name)
            if key in remaining:
                remaining[key] -= parse(amount["value"]) * sign
