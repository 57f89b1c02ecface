"""From the slices that exist to the slices that are wanted: which to delete, update and create. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..resources.convert import GROUP
from .pack import SliceContent
from .sameness import device_digest, digest, spec_digest

JSON = dict[str, Any]


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
    """What the slices of a pool have in common."""

    driver: str
    node: str
    generation: int
    count: int

    def _head(self) -> JSON:
        pool = {"name": self.node, "generation": self.generation, "resourceSliceCount": self.count}
        return {"driver": self.driver, "nodeName": self.node, "pool": pool}

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

    def object(self, frame: Frame) -> JSON:
        """The whole slice, made when it is sent: one is held at a time."""
        if self.over is None:
            metadata: JSON = {"generateName": f"{self.index:05x}-{frame.driver}-{frame.node}-"}
        else:
            metadata = dict(self.over.metadata)
        spec = frame.spec(self.content, self.over.timed if self.over else {})
        return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that turn what exists into what is wanted; ``version`` is the inventory's from which that was made."""

    existing: Sequence[Found]
    frame: Frame
    delete: Sequence[Found]
    update: Sequence[Write]
    create: Sequence[Write]
    devices: int
    version: int = 0

    @property
    def writes(self) -> int:
        return len(self.delete) + len(self.update) + len(self.create)


def first_frame(
    contents: Sequence[SliceContent], existing: Sequence[Found], driver: str, node: str, least_generation: int = 1
) -> Frame:
    """With the generation that stays where at most one slice changes: what exists is compared with this."""
    return Frame(driver, node, max(newest(existing, node), 1, least_generation), len(contents))


def make_plan(
    contents: Sequence[SliceContent],
    existing: Sequence[Found],
    frame: Frame,
    changed: Collection[str],
    least_generation: int = 1,
    version: int = 0,
) -> Plan:
    """Pure. The generation stays when at most one slice changes and none is new; otherwise it grows on every slice.

    Args:
        frame: of :func:`first_frame`.
        changed: the slices that are not as ``contents`` would make them in this frame.
    """
    by_name = {s.name: s for s in existing}
    keys = {c.key for c in contents if c.key}
    generation = newest(existing, frame.node)
    if generation and (len(changed) > 1 or any(not c.key for c in contents)):
        frame = Frame(frame.driver, frame.node, max(generation + 1, least_generation), frame.count)
        changed = keys
    return Plan(
        existing=existing,
        frame=frame,
        delete=[s for name, s in sorted(by_name.items()) if name not in keys],
        update=[Write(c, by_name[c.key], i) for i, c in enumerate(contents) if c.key in changed and c.key],
        create=[Write(c, None, i) for i, c in enumerate(contents) if not c.key],
        devices=sum(len(c.devices) for c in contents),
        version=version,
    )


def newest(existing: Sequence[Found], pool: str) -> int:
    """The newest generation of a pool; 0 where it has no slices."""
    return max((s.generation for s in existing if s.pool == pool), default=0)


def is_complete(existing: Sequence[Found], pool: str) -> bool:
    """Whether the newest generation of a pool has all its slices."""
    generation = newest(existing, pool)
    current = [s for s in existing if s.pool == pool and s.generation == generation]
    return bool(current) and len(current) == current[0].count


def _timed(taint: Mapping[str, Any], before: list[JSON]) -> JSON:
    identity = [taint.get(k, "") for k in ("key", "value", "effect")]
    for old in before:
        if [old.get(k, "") for k in ("key", "value", "effect")] == identity and old.get("timeAdded"):
            return {**taint, "timeAdded": old["timeAdded"]}
    return dict(taint)
