"""Plans which slices of a pool to delete, update and create, as pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...resourceapi.conversion import GROUP
from .digest import device_digest, digest, spec_digest
from .pack import PublishedNames, SliceContent

JSON = dict[str, Any]
_NUMBERED = re.compile(r"([0-9a-f]{5})-")
_LAST_GENERATION = 2**63 - 1
_MAX_PREFIX = 240  # bytes; with the API server's suffix a name stays below 253


@dataclass(frozen=True, slots=True)
class ExistingSlice:
    """A listed slice without its devices, which are not kept in memory."""

    metadata: JSON
    pool: str
    generation: int
    count: int
    held: PublishedNames  # names of devices or of counter sets, in order
    timed: Mapping[str, list[JSON]]  # device → its taints, if one has a time
    digest: bytes

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def uid(self) -> str:
        return str(self.metadata["uid"])

    @property
    def version(self) -> str:
        return str(self.metadata["resourceVersion"])


def existing_slice(obj: JSON, known: bytes | None = None) -> ExistingSlice:
    """Reads a slice in v1. ``known`` is its digest, if the caller has it.

    Raises:
        KeyError, TypeError, AttributeError: the object lacks a field that we read.
    """
    spec, meta = obj["spec"], obj["metadata"]
    pool = spec["pool"]
    texts = (pool["name"], meta["name"], meta["uid"], meta["resourceVersion"])
    numbers = (pool["generation"], pool["resourceSliceCount"])
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in numbers):
        raise TypeError(f"{meta['name']!r} has fields of other types")
    devices = spec.get("devices") or []
    names = tuple(d["name"] for d in devices)
    if not all(isinstance(n, str) for n in names):
        raise TypeError(f"{meta['name']!r} has devices without a name")
    return ExistingSlice(
        metadata={k: v for k, v in meta.items() if k != "managedFields"},
        pool=pool["name"],
        generation=pool["generation"],
        count=pool["resourceSliceCount"],
        held=PublishedNames(names, tuple(c["name"] for c in spec.get("sharedCounters") or [])),
        timed={d["name"]: d["taints"] for d in devices if any(t.get("timeAdded") for t in d.get("taints") or [])},
        digest=known or digest(spec),
    )


@dataclass(frozen=True, slots=True)
class PoolFrame:
    """The common fields of a pool's slices. ``fields`` contains the nodes and the options of all devices."""

    driver: str
    pool: str
    fields: JSON
    generation: int
    count: int

    def _head(self) -> JSON:
        pool = {"name": self.pool, "generation": self.generation, "resourceSliceCount": self.count}
        return {"driver": self.driver, **self.fields, "pool": pool}

    def digest(self, content: SliceContent) -> bytes:
        """Returns the digest of the spec that ``content`` is sent as. Decodes one device at a time."""
        devices = (device_digest(msgspec.json.decode(d.encoded)) for d in content.devices)
        return spec_digest(self._head(), devices, content.counter_sets)

    def mark(self, content: SliceContent) -> bytes:
        """Returns a mark that is equal for two contents with the same text. It is faster than :meth:`digest`.

        Two contents with different texts can have the same digest, because the digest ignores the order of fields.
        """
        out = hashlib.sha256(msgspec.json.encode([self._head(), content.counter_sets]))
        for device in content.devices:
            out.update(device.encoded)
        return out.digest()

    def spec(self, content: SliceContent, timed: Mapping[str, list[JSON]]) -> JSON:
        """Returns the spec that is sent. A taint that stays keeps the time when it was added, which ``timed`` contains."""
        if content.counter_sets:
            return {**self._head(), "sharedCounters": content.counter_sets}
        devices = [msgspec.json.decode(d.encoded) for d in content.devices]
        for device in devices:
            if device.get("taints"):
                device["taints"] = [_timed(t, timed.get(device["name"], [])) for t in device["taints"]]
        return {**self._head(), "devices": devices}


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A slice to send: an update of the existing slice ``over``, or a new slice if ``over`` is None.

    ``index`` is its number in the order of the pool.
    """

    content: SliceContent
    over: ExistingSlice | None
    index: int

    def object(self, frame: PoolFrame, middle: str, metadata: JSON, timed: Mapping[str, list[JSON]]) -> JSON:
        """Returns the whole slice. It is built when it is sent, so that only one is in memory.

        Args:
            frame: the common fields.
            middle: part of a new slice's name, after the driver.
            metadata: its metadata without the name; labels of other writers are kept.
            timed: device → taints with the times when they were added.
        """
        if self.over is None:
            prefix = f"{self.index:05x}-{frame.driver}-" + (f"{middle}-" if middle else "")
            meta = {"generateName": _cut(prefix), **metadata}
        else:
            labels = {**(self.over.metadata.get("labels") or {}), **metadata.get("labels", {})}
            meta = {**self.over.metadata, **metadata, **({"labels": labels} if labels else {})}
        spec = frame.spec(self.content, {**timed, **self.over.timed} if self.over else timed)
        return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The writes that turn a pool's existing slices into the wanted ones, in this order: ``first``, ``writes``, ``last``."""

    frame: PoolFrame
    first: Sequence[ExistingSlice]  # to delete
    writes: Sequence[SliceWrite]
    last: Sequence[ExistingSlice]  # to delete
    devices: int
    rewrites_all: bool = False  # every slice is written, in a new generation

    @property
    def count(self) -> int:
        return len(self.first) + len(self.writes) + len(self.last)


def first_frame(
    contents: Sequence[SliceContent],
    existing: Sequence[ExistingSlice],
    driver: str,
    pool: str,
    nodes: JSON,
) -> PoolFrame:
    """Returns the frame with the current generation, for the comparison with existing slices. If few slices change, it is kept."""
    return PoolFrame(driver, pool, nodes, max(newest(existing), 1), len(contents))


def make_plan(
    contents: Sequence[SliceContent],
    existing: Sequence[ExistingSlice],
    frame: PoolFrame,
    changed: Collection[str],
    touch: Collection[str] = (),
) -> WritePlan:
    """Plans the writes. After each write, the newest complete generation has exactly the old devices or exactly the wanted ones.

    The generation stays if one slice changes and none is new. It also stays if some of its slices are missing, after an interrupted
    writer or a deletion: the missing slices are added, because readers ignore an incomplete generation. Otherwise, every slice is written
    in a new generation.

    Args:
        contents: the wanted slices.
        existing: the pool's existing slices.
        frame: the result of :func:`first_frame`.
        changed: slices that differ from ``contents`` in this frame.
        touch: slices of which only the metadata differs.
    """
    by_name = {s.name: s for s in existing}
    keys = {c.key for c in contents if c.key}
    current = {s.name: s for s in existing if s.generation == newest(existing)}
    bad = [i for i, c in enumerate(contents) if c.key in current and c.key in changed]
    missing = [i for i, c in enumerate(contents) if c.key not in current]
    obsolete = [s for name, s in sorted(by_name.items()) if name not in keys]
    extra = [s for s in obsolete if s.name in current]
    devices = sum(len(c.devices) for c in contents)

    numbers = _numbers(contents)

    def writes(places: Iterable[int]) -> list[SliceWrite]:
        return [SliceWrite(contents[i], by_name.get(contents[i].key or ""), numbers[i]) for i in places]

    touched = [i for i, c in enumerate(contents) if c.key in touch and c.key in current and i not in bad]
    if _stays(len(contents), current, frame, bad, missing, extra):
        order = writes([*touched, *bad, *missing])
        # Surplus slices are deleted last: while there are too many slices, the generation counts as incomplete.
        if len(current) > len(contents):
            return WritePlan(frame, [s for s in obsolete if s not in extra], order, extra, devices)
        return WritePlan(frame, obsolete, order, [], devices)
    # Another writer has used the last generation: all slices are deleted, and the generation restarts at 1.
    if newest(existing) >= _LAST_GENERATION:
        fresh = [SliceWrite(c, None, numbers[i]) for i, c in enumerate(contents)]
        return WritePlan(replace(frame, generation=1), list(existing), fresh, [], devices, rewrites_all=True)
    new_frame = replace(frame, generation=max(newest(existing) + 1, frame.generation))
    # Existing slices are updated before new ones are created, in the order of the pool.
    every = writes(range(len(contents)))
    every.sort(key=lambda w: w.over is None)
    return WritePlan(new_frame, obsolete, every, [], devices, rewrites_all=True)


def is_numbered(name: str) -> bool:
    """Whether a slice's name begins with its number in the order of the pool, as all names that we create do."""
    return bool(_NUMBERED.match(name))


def in_order_of_names(contents: Sequence[SliceContent]) -> list[SliceContent]:
    """Returns the slices in the order of their names; a new slice's name begins with its number."""
    names = [c.key or f"{n:05x}-" for c, n in zip(contents, _numbers(contents), strict=True)]
    return [contents[i] for i in sorted(range(len(names)), key=names.__getitem__)]


def _numbers(contents: Sequence[SliceContent]) -> list[int]:
    """Returns a number for each slice, so that the name of a new slice sorts after the slice before it."""
    out, last = [], -1
    for content in contents:
        match = _NUMBERED.match(content.key or "")
        last = int(match[1], 16) if match else last + 1
        out.append(last)
    return out


def _stays(
    count: int,
    current: Mapping[str, ExistingSlice],
    frame: PoolFrame,
    bad: Sequence[int],
    missing: Sequence[int],
    extra: Sequence[ExistingSlice],
) -> bool:
    """Whether the writes can be made in the present generation."""
    if not current or not (bad or missing):
        return True
    if any(s.generation != frame.generation for s in current.values()):
        return False  # a higher generation was requested
    if len(bad) == 1 and not missing and not extra:
        return len(current) == count
    # An incomplete generation is completed only if all its existing slices are as wanted.
    return not bad and all(s.count == count for s in current.values())


def newest(existing: Sequence[ExistingSlice]) -> int:
    """Returns the newest generation among the slices of a pool; 0 if it has none."""
    return max((s.generation for s in existing), default=0)


def is_complete(existing: Sequence[ExistingSlice]) -> bool:
    """Whether the newest generation of a pool has all its slices."""
    current = [s for s in existing if s.generation == newest(existing)]
    return bool(current) and len(current) == current[0].count


def _cut(prefix: str) -> str:
    """Shortens a ``generateName`` that is too long for the API server."""
    return prefix if len(prefix) <= _MAX_PREFIX else prefix[:_MAX_PREFIX].rstrip("-.") + "-"


def _timed(taint: Mapping[str, Any], before: list[JSON]) -> JSON:
    identity = [taint.get(k, "") for k in ("key", "value", "effect")]
    for old in before:
        if [old.get(k, "") for k in ("key", "value", "effect")] == identity and old.get("timeAdded"):
            return {**taint, "timeAdded": old["timeAdded"]}
    return dict(taint)
