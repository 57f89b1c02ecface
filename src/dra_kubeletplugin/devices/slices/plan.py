"""From the slices that exist to the slices that are wanted: which to delete, update and create. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...resourceapi.conversion import GROUP
from .digest import device_digest, digest, spec_digest
from .pack import PublishedDevice, SliceContent

JSON = dict[str, Any]
_NUMBERED = re.compile(r"([0-9a-f]{5})-")
_LAST_GENERATION = 2**63 - 1
_MAX_PREFIX = 240  # bytes; with what the server adds a name stays below 253


@dataclass(frozen=True, slots=True)
class ExistingSlice:
    """What is remembered of a slice of the server's while others are looked at: its devices are not."""

    metadata: JSON
    pool: str
    generation: int
    count: int
    held: PublishedDevice  # names of devices or of counter sets, in order
    timed: Mapping[str, list[JSON]]  # device → its taints, where one has a time
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
    """A slice in v1, whose digest may be ``known``.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` where it has not what we read of one.
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
        held=PublishedDevice(names, tuple(c["name"] for c in spec.get("sharedCounters") or [])),
        timed={d["name"]: d["taints"] for d in devices if any(t.get("timeAdded") for t in d.get("taints") or [])},
        digest=known or digest(spec),
    )


@dataclass(frozen=True, slots=True)
class PoolFrame:
    """What the slices of a pool have in common. ``fields`` say where its devices are, and what holds for all of them."""

    driver: str
    pool: str
    fields: JSON
    generation: int
    count: int

    def _head(self) -> JSON:
        pool = {"name": self.pool, "generation": self.generation, "resourceSliceCount": self.count}
        return {"driver": self.driver, **self.fields, "pool": pool}

    def digest(self, content: SliceContent) -> bytes:
        """Of the spec that ``content`` would be sent as. One device is decoded at a time."""
        devices = (device_digest(msgspec.json.decode(d.encoded)) for d in content.devices)
        return spec_digest(self._head(), devices, content.counter_sets)

    def mark(self, content: SliceContent) -> bytes:
        """Equal for two contents that would be sent as the same text; quicker than :meth:`digest`, which looks at what it means."""
        out = hashlib.sha256(msgspec.json.encode([self._head(), content.counter_sets]))
        for device in content.devices:
            out.update(device.encoded)
        return out.digest()

    def spec(self, content: SliceContent, timed: Mapping[str, list[JSON]]) -> JSON:
        """As it is sent. A taint that stays keeps the time at which it was added, as ``timed`` has it."""
        if content.counter_sets:
            return {**self._head(), "sharedCounters": content.counter_sets}
        devices = [msgspec.json.decode(d.encoded) for d in content.devices]
        for device in devices:
            if device.get("taints"):
                device["taints"] = [_timed(t, timed.get(device["name"], [])) for t in device["taints"]]
        return {**self._head(), "devices": devices}


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A slice to send: over ``over``, or as a new one. ``index`` is its number in the order of the pool."""

    content: SliceContent
    over: ExistingSlice | None
    index: int

    def object(self, frame: PoolFrame, middle: str, metadata: JSON, timed: Mapping[str, list[JSON]]) -> JSON:
        """The whole slice, made when it is sent: one is held at a time.

        Args:
            middle: part of a new slice's name, behind the driver.
            metadata: what it has besides its name; labels of others stay.
            timed: device → taints with the times at which they were added.
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
    """Writes that turn what exists of a pool into what is wanted, in this order: ``first``, ``writes``, ``last``."""

    frame: PoolFrame
    first: Sequence[ExistingSlice]  # to delete
    writes: Sequence[SliceWrite]
    last: Sequence[ExistingSlice]  # to delete
    devices: int
    anew: bool = False  # every slice is written, in a new generation

    @property
    def count(self) -> int:
        return len(self.first) + len(self.writes) + len(self.last)


def first_frame(
    contents: Sequence[SliceContent],
    existing: Sequence[ExistingSlice],
    driver: str,
    pool: str,
    nodes: JSON,
    least_generation: int = 1,
) -> PoolFrame:
    """With the generation that stays where few slices change: what exists is compared with this."""
    return PoolFrame(driver, pool, nodes, max(newest(existing), 1, least_generation), len(contents))


def make_plan(
    contents: Sequence[SliceContent],
    existing: Sequence[ExistingSlice],
    frame: PoolFrame,
    changed: Collection[str],
    touch: Collection[str] = (),
) -> WritePlan:
    """Pure. At no moment in between is the newest generation complete with anything but what is wanted, or what was there.

    The generation stays where one slice changes and none is new. It also stays, and is continued, while it has not all its
    slices: nobody uses an unfinished one, whether a writer broke off or somebody deleted from it. Otherwise it grows on every slice.

    Args:
        frame: of :func:`first_frame`.
        changed: the slices that are not as ``contents`` would make them in this frame.
        touch: slices whose metadata alone is not as wanted.
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
        if len(current) > len(contents):  # two of some slices: as long as they are too many they count as unfinished
            return WritePlan(frame, [s for s in obsolete if s not in extra], order, extra, devices)
        return WritePlan(frame, obsolete, order, [], devices)
    if (
        newest(existing) >= _LAST_GENERATION
    ):  # somebody else's: nothing comes after it, so it goes, and the count begins anew
        fresh = [SliceWrite(c, None, numbers[i]) for i, c in enumerate(contents)]
        return WritePlan(replace(frame, generation=1), list(existing), fresh, [], devices, anew=True)
    anew = replace(frame, generation=max(newest(existing) + 1, frame.generation))
    # What is there is written over before anything is made, as the order of slices says.
    every = writes(range(len(contents)))
    every.sort(key=lambda w: w.over is None)
    return WritePlan(anew, obsolete, every, [], devices, anew=True)


def is_numbered(name: str) -> bool:
    """Whether a slice's name begins with its place in the order, as all that we make do."""
    return bool(_NUMBERED.match(name))


def in_order_of_names(contents: Sequence[SliceContent]) -> list[SliceContent]:
    """As names sort them; one that is made has its number for a name."""
    names = [c.key or f"{n:05x}-" for c, n in zip(contents, _numbers(contents), strict=True)]
    return [contents[i] for i in sorted(range(len(names)), key=names.__getitem__)]


def _numbers(contents: Sequence[SliceContent]) -> list[int]:
    """A number for each slice that sorts it, if it is made, behind the one before it."""
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
    """Whether the writes can be made in the generation that there is."""
    if not current or not (bad or missing):
        return True
    if any(s.generation != frame.generation for s in current.values()):
        return False  # a higher one was asked for
    if len(bad) == 1 and not missing and not extra:
        return len(current) == count
    # What there is of an unfinished generation is all as wanted, or nothing of it is used.
    return not bad and all(s.count == count for s in current.values())


def newest(existing: Sequence[ExistingSlice]) -> int:
    """The newest generation among the slices of a pool; 0 where it has none."""
    return max((s.generation for s in existing), default=0)


def is_complete(existing: Sequence[ExistingSlice]) -> bool:
    """Whether the newest generation of a pool has all its slices."""
    current = [s for s in existing if s.generation == newest(existing)]
    return bool(current) and len(current) == current[0].count


def _cut(prefix: str) -> str:
    """A ``generateName`` that the server takes, however long driver and node are."""
    return prefix if len(prefix) <= _MAX_PREFIX else prefix[:_MAX_PREFIX].rstrip("-.") + "-"


def _timed(taint: Mapping[str, Any], before: list[JSON]) -> JSON:
    identity = [taint.get(k, "") for k in ("key", "value", "effect")]
    for old in before:
        if [old.get(k, "") for k in ("key", "value", "effect")] == identity and old.get("timeAdded"):
            return {**taint, "timeAdded": old["timeAdded"]}
    return dict(taint)
