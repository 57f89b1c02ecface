"""From the slices that exist to the slices that are wanted: which to delete, update and create. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..resources.convert import GROUP
from .pack import SliceContent
from .sameness import device_digest, digest, spec_digest

JSON = dict[str, Any]
_MAX_PREFIX = 240  # bytes; with what the server adds a name stays below 253


@dataclass(frozen=True, slots=True)
class Found:
    """What is remembered of a slice of the server's while others are looked at: its devices are not."""

    metadata: JSON
    pool: str
    generation: int
    count: int
    devices: tuple[str, ...]  # names, in order
    timed: Mapping[str, list[JSON]]  # device → its taints, where one has a time
    digest: bytes

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def version(self) -> str:
        return str(self.metadata["resourceVersion"])


def found(obj: JSON) -> Found:
    """A slice in v1. Raises ``KeyError``, ``TypeError`` or ``AttributeError`` where it has not what we read of one."""
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
    return Found(
        metadata={k: v for k, v in meta.items() if k != "managedFields"},
        pool=pool["name"],
        generation=pool["generation"],
        count=pool["resourceSliceCount"],
        devices=names,
        timed={d["name"]: d["taints"] for d in devices if any(t.get("timeAdded") for t in d.get("taints") or [])},
        digest=digest(spec),
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """What the slices of a pool have in common. ``nodes`` are the fields that say where its devices are."""

    driver: str
    pool: str
    nodes: JSON
    generation: int
    count: int

    def _head(self) -> JSON:
        pool = {"name": self.pool, "generation": self.generation, "resourceSliceCount": self.count}
        return {"driver": self.driver, **self.nodes, "pool": pool}

    def digest(self, content: SliceContent) -> bytes:
        """Of the spec that ``content`` would be sent as. One device is decoded at a time."""
        devices = (device_digest(msgspec.json.decode(d.encoded)) for d in content.devices)
        return spec_digest(self._head(), devices, content.counter_sets)

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
class Write:
    """A slice to send: over ``over``, or as a new one. ``index`` is its place in the pool."""

    content: SliceContent
    over: Found | None
    index: int

    def object(self, frame: Frame, middle: str, metadata: JSON) -> JSON:
        """The whole slice, made when it is sent: one is held at a time.

        Args:
            middle: part of a new slice's name, behind the driver.
            metadata: what it has besides its name; labels of others stay.
        """
        if self.over is None:
            prefix = f"{self.index:05x}-{frame.driver}-" + (f"{middle}-" if middle else "")
            metadata = {"generateName": _cut(prefix), **metadata}
        else:
            labels = {**(self.over.metadata.get("labels") or {}), **metadata.get("labels", {})}
            metadata = {**self.over.metadata, **metadata, **({"labels": labels} if labels else {})}
        spec = frame.spec(self.content, self.over.timed if self.over else {})
        return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that turn what exists of a pool into what is wanted."""

    existing: Sequence[Found]
    frame: Frame
    delete: Sequence[Found]
    update: Sequence[Write]
    create: Sequence[Write]
    devices: int

    @property
    def writes(self) -> int:
        return len(self.delete) + len(self.update) + len(self.create)


def first_frame(
    contents: Sequence[SliceContent],
    existing: Sequence[Found],
    driver: str,
    pool: str,
    nodes: JSON,
    least_generation: int = 1,
) -> Frame:
    """With the generation that stays where at most one slice changes: what exists is compared with this."""
    return Frame(driver, pool, nodes, max(newest(existing), 1, least_generation), len(contents))


def make_plan(
    contents: Sequence[SliceContent],
    existing: Sequence[Found],
    frame: Frame,
    changed: Collection[str],
    least_generation: int = 1,
) -> Plan:
    """Pure. The generation stays when at most one slice changes and none is new; otherwise it grows on every slice.

    Args:
        frame: of :func:`first_frame`.
        changed: the slices that are not as ``contents`` would make them in this frame.
    """
    by_name = {s.name: s for s in existing}
    keys = {c.key for c in contents if c.key}
    generation = newest(existing)
    if generation and (len(changed) > 1 or any(not c.key for c in contents)):
        frame = replace(frame, generation=max(generation + 1, least_generation))
        changed = keys
    return Plan(
        existing=existing,
        frame=frame,
        delete=[s for name, s in sorted(by_name.items()) if name not in keys],
        update=[Write(c, by_name[c.key], i) for i, c in enumerate(contents) if c.key in changed and c.key],
        create=[Write(c, None, i) for i, c in enumerate(contents) if not c.key],
        devices=sum(len(c.devices) for c in contents),
    )


def newest(existing: Sequence[Found]) -> int:
    """The newest generation among the slices of a pool; 0 where it has none."""
    return max((s.generation for s in existing), default=0)


def is_complete(existing: Sequence[Found]) -> bool:
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
