"""Plans which slices of a pool to delete, update and create, as pure functions.

Readers of slices use a pool's newest generation, and only if it is complete. So the order of the writes decides which devices readers
see after each write: see :func:`make_plan`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..validation import DeviceEntry
from .pack import PublishedNames, WantedSlice
from .slice_objects import CommonSliceFields, ExistingSlice

_NUMBERED = re.compile(r"([0-9a-f]{5})-")
_LAST_GENERATION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The requests that turn a pool's existing slices into the wanted slices.

    Order of the requests: ``delete_first``, ``writes``, ``delete_last``. Each write is a slice with its number in the pool.
    ``removes`` is whether a device of an existing slice is in none of the wanted slices.
    """

    common: CommonSliceFields
    delete_first: Sequence[ExistingSlice]
    writes: Sequence[tuple[int, WantedSlice]]
    delete_last: Sequence[ExistingSlice]
    devices: int
    removes: bool
    rewrites_all: bool = False  # whether every slice is written, in a new generation

    @property
    def count(self) -> int:
        return len(self.delete_first) + len(self.writes) + len(self.delete_last)


def common_fields(
    contents: Sequence[WantedSlice],
    existing: Sequence[ExistingSlice],
    driver: str,
    pool: str,
    fields: Mapping[str, Any],
) -> CommonSliceFields:
    """Returns the common fields with the current generation, to compare existing slices. :func:`make_plan` may raise the generation."""
    generation = max((s.generation for s in existing), default=1)
    return CommonSliceFields(driver, pool, fields, generation, len(contents))


def make_plan(
    contents: Sequence[WantedSlice],
    existing: Sequence[ExistingSlice],
    common: CommonSliceFields,
    changed: Collection[str],
    touch: Collection[str] = (),
) -> WritePlan:
    """Plans the writes. After each write, the newest complete generation has exactly the old devices or exactly the wanted devices.

    The plan keeps the generation in these cases; otherwise, it writes every slice in a new generation:

    - The pool has no slices yet.
    - No spec changes, or the spec of one slice changes and no slice is added or removed.
    - Slices of the generation are missing, after a deletion or an interrupted write, and the others are as wanted. The plan adds the
      missing slices. Until then, readers ignore the generation, because it is incomplete.

    Args:
        contents: the wanted slices.
        existing: the pool's existing slices.
        common: the result of :func:`common_fields`.
        changed: names of existing slices whose spec differs from the wanted spec with these common fields.
        touch: names of existing slices whose metadata differs, but not the spec.
    """
    names = {c.name for c in contents if c.name}
    current = {s.name: s for s in existing if s.generation == common.generation}
    bad = [i for i, c in enumerate(contents) if c.name in current and c.name in changed]
    missing = [i for i, c in enumerate(contents) if c.name not in current]
    obsolete = [s for s in sorted(existing, key=lambda s: s.name) if s.name not in names]
    extra = [s for s in obsolete if s.name in current]
    touched = [i for i, c in enumerate(contents) if c.name in touch and c.name in current]
    devices = {d.name for c in contents for d in c.devices}
    removes = any(name not in devices for s in existing for name in s.names.devices)
    numbers = _numbers(contents)

    def writes(places: Iterable[int]) -> list[tuple[int, WantedSlice]]:
        return [(numbers[i], contents[i]) for i in places]

    if _keeps_generation(len(contents), current, bad, missing, extra):
        order = writes([*touched, *bad, *missing])
        # Surplus slices are deleted last. While there are too many slices, readers treat the generation as incomplete.
        if len(current) > len(contents):
            return WritePlan(common, [s for s in obsolete if s not in extra], order, extra, len(devices), removes)
        return WritePlan(common, obsolete, order, [], len(devices), removes)
    # Another writer used the largest possible generation. So all slices are deleted, and the generation restarts at 1.
    if common.generation >= _LAST_GENERATION:
        fresh = [(number, replace(c, name=None)) for number, c in zip(numbers, contents, strict=True)]
        return WritePlan(
            replace(common, generation=1), list(existing), fresh, [], len(devices), removes, rewrites_all=True
        )
    in_next_generation = replace(common, generation=common.generation + 1)
    # Existing slices are updated before new ones are created, in the order of the pool.
    every = writes(range(len(contents)))
    every.sort(key=lambda write: write[1].name is None)
    return WritePlan(in_next_generation, obsolete, every, [], len(devices), removes, rewrites_all=True)


def is_numbered(name: str) -> bool:
    """Whether a slice's name begins with the slice's number in the pool. All names that this module's plans create do."""
    return bool(_NUMBERED.match(name))


def _numbers(contents: Sequence[WantedSlice]) -> list[int]:
    """Returns a number for each slice. The name of a new slice begins with its number, so that it sorts after the previous slice."""
    out, last = [], -1
    for content in contents:
        match = _NUMBERED.match(content.name or "")
        last = int(match[1], 16) if match else last + 1
        out.append(last)
    return out


def _keeps_generation(
    count: int,
    current: Mapping[str, ExistingSlice],
    bad: Sequence[int],
    missing: Sequence[int],
    extra: Sequence[ExistingSlice],
) -> bool:
    """Whether the writes keep the generation; see :func:`make_plan`."""
    if not current or not (bad or missing):
        return True
    if len(bad) == 1 and not missing and not extra:
        return len(current) == count
    # An incomplete generation is completed only if all its existing slices are as wanted.
    return not bad and all(s.count == count for s in current.values())


def is_in_order(devices: Sequence[DeviceEntry], slices: Sequence[WantedSlice]) -> bool:
    """Whether the allocator reads the devices in the driver's order of devices. It reads slices in the order of their names."""
    place = {d.name: i for i, d in enumerate(devices)}
    names = [c.name or f"{n:05x}-" for c, n in zip(slices, _numbers(slices), strict=True)]
    by_name = [slices[i] for i in sorted(range(len(names)), key=names.__getitem__)]
    order = [place[d.name] for s in by_name for d in s.devices]
    return order == sorted(order)


def previous_contents(
    existing: Sequence[ExistingSlice], layout: Mapping[str, PublishedNames]
) -> tuple[dict[str, PublishedNames], set[str]]:
    """Returns the previous content of slices, by name, and the names of deleted slices. Deleted slices are created again.

    If several slices contain a device, the result has it only in the slice of the newest generation. Among slices of one generation,
    slices in ``layout`` have precedence. A slice that then has no content is not in the result.

    Args:
        layout: the names in each slice when all slices were last as wanted.
    """
    rank = {s.name: (-s.generation, s.name not in layout, s.name) for s in existing}
    devices_of = {s.name: s.names for s in sorted(existing, key=lambda s: rank[s.name])}
    gone = {name for name in layout if name not in devices_of}
    devices_of |= {name: layout[name] for name in sorted(gone)}
    out: dict[str, PublishedNames] = {}
    assigned: set[tuple[bool, str]] = set()
    for name, names in devices_of.items():
        rest = PublishedNames(
            [d for d in names.devices if (False, d) not in assigned],
            [c for c in names.counter_sets if (True, c) not in assigned],
        )
        assigned |= {*((False, d) for d in names.devices), *((True, c) for c in names.counter_sets)}
        if rest.devices or rest.counter_sets or (name not in gone and not names.devices and not names.counter_sets):
            out[name] = rest
    return dict(sorted(out.items())), gone
