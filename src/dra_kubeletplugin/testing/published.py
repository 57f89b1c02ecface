"""What a driver publishes, read back from its ResourceSlices as the driver itself answered it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..base.text import did_you_mean, join_names
from ..errors import clip, describe
from ..resourceapi.decoding import read_pool
from ..resourceapi.pools import Pool
from ..resourceapi.types import Device

JSON = Mapping[str, Any]
_DEVICES = 20  # in an error; a machine may have hundreds of partitions
_NAMES = 8
_LINE = 240  # bytes of one device


class Published(Mapping[str, Device]):
    """A driver's devices by name, in the order of its slices: :class:`Device` as the driver made it, with what was published of it.

    A name that two pools have raises ``ValueError`` when it is asked for: look into one of :attr:`pools`.

    Args:
        pools: each whole, by name, with their counter sets and nodes.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self.pools = dict(pools)
        self._in: dict[str, dict[str, Device]] = {}  # device -> pool -> itself
        for pool in pools.values():
            for device in pool.devices:
                self._in.setdefault(device.name, {})[pool.name] = device

    def __getitem__(self, name: str) -> Device:
        found = self._in.get(name)
        if found is None:
            raise KeyError(f"no device {name!r} is published{did_you_mean(str(name), self._in)}")
        if len(found) > 1:
            raise ValueError(f"device {name} is in the pools {join_names(found)}: look into one of `pools`")
        return next(iter(found.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._in

    def __iter__(self) -> Iterator[str]:
        return iter(self._in)

    def __len__(self) -> int:
        return len(self._in)

    def __repr__(self) -> str:
        return f"<published: {join_names(self, _NAMES) or 'nothing'}>"


Wanted = Collection[str] | Callable[[Published], object]


class PublishedError(AssertionError):
    """A driver does not publish what was waited for. The text has what it publishes instead, a line for each device.

    Args:
        why: one sentence.
        published: what is there, as far as pools are whole.
    """

    def __init__(self, why: str, published: Published) -> None:
        self.why = why
        self.published = published
        super().__init__("\n  ".join([why, *_lines(published.pools.values())]))


def pools_of(slices: Iterable[JSON], pool: str = "") -> tuple[Published, str]:
    """What the slices of one driver publish, of one pool where it is named; and which pool is not whole, empty where all are.

    As for the scheduler, the newest generation of a pool counts, once all its slices are there.
    """
    newest: dict[str, list[JSON]] = {}
    for sl in sorted(slices, key=lambda s: str(s["metadata"]["name"])):
        spec = sl["spec"]
        here = spec["pool"]
        if pool and here["name"] != pool:
            continue
        found = newest.setdefault(here["name"], [])
        if found and here["generation"] > found[0]["pool"]["generation"]:
            found.clear()
        if not found or here["generation"] == found[0]["pool"]["generation"]:
            found.append(spec)
    torn = ""
    whole: dict[str, Pool] = {}
    for name, specs in newest.items():
        generation, count = specs[0]["pool"]["generation"], specs[0]["pool"]["resourceSliceCount"]
        if len(specs) == count:
            whole[name] = read_pool(specs)
        else:
            torn = torn or f"pool {name} has {len(specs)} of {count} slices of generation {generation}"
    return Published(whole), torn


def differs(published: Published, wanted: Wanted) -> str:
    """Why this is not what is ``wanted``; empty where it is. Raises what a function raises, but for names that are not there yet."""
    if callable(wanted):
        try:
            return "" if wanted(published) else "it is not as asked for"
        except LookupError as e:
            return describe(e)
    if isinstance(wanted, str):
        raise TypeError(f"wanted is the text {wanted!r}: give a list of names")
    missing = [name for name in wanted if name not in published]
    besides = [name for name in published if name not in wanted]
    return " and ".join(
        [
            *([f"{join_names(missing, _NAMES)} is missing"] if missing else []),
            *([f"{join_names(besides, _NAMES)} is there besides"] if besides else []),
        ]
    )


def _lines(pools: Iterable[Pool]) -> Iterator[str]:
    shown = [f"pool {pool.name} has {clip(_line(device), _LINE)}" for pool in pools for device in pool.devices]
    yield from shown[:_DEVICES] or ["nothing is published"]
    if len(shown) > _DEVICES:
        yield f"and {len(shown) - _DEVICES} more devices"


def _line(device: Device) -> str:
    """Its name, and what tests look at: taints first, for they are what changes."""
    said = [f"taint {t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in device.taints]
    said += [
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in device.attributes.items()
    ]
    said += [f"{key} {getattr(amount, 'value', amount)}" for key, amount in device.capacity.items()]
    return f"{device.name}{': ' if said else ''}{', '.join(said)}"


__all__ = ["Published", "PublishedError", "Wanted", "differs", "pools_of"]
