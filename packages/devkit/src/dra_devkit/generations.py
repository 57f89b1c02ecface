"""Selects the slices of a pool's newest generation. All readers of slices ignore the other slices.

Source: KEP-4381, ``ResourcePool``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
PoolKey = tuple[str, str]  # driver, pool


def key_of(sl: Mapping[str, Any]) -> PoolKey:
    """Returns the driver and the pool of a slice."""
    return sl["spec"]["driver"], sl["spec"]["pool"]["name"]


def generation_of(sl: Mapping[str, Any]) -> int:
    """Returns the generation of a slice's pool."""
    return int(sl["spec"]["pool"].get("generation") or 0)


def newest(slices: Iterable[T], generation: Callable[[T], int]) -> list[T]:
    """Returns the slices of the newest generation among ``slices`` of one pool, in order. ``generation`` reads a slice's generation."""
    found = list(slices)
    highest = max(map(generation, found), default=0)
    return [sl for sl in found if generation(sl) == highest]


def newest_by_pool(slices: Iterable[Mapping[str, Any]]) -> dict[PoolKey, list[Mapping[str, Any]]]:
    """Returns the slices of each pool's newest generation, in order."""
    pools: dict[PoolKey, list[Mapping[str, Any]]] = {}
    for sl in slices:
        pools.setdefault(key_of(sl), []).append(sl)
    return {key: newest(found, generation_of) for key, found in pools.items()}
