"""Builds the slice objects that are sent, and reads from listed slices the fields that a plan needs.

Slices are compared by digests, so that thousands of devices are never in memory twice. A digest ignores the times of taints, empty fields
of a device and the order of fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...base.json_types import JSON
from ...resourceapi.conversion import GROUP
from .pack import PublishedNames, WantedSlice

_MAX_PREFIX = 240  # bytes; with the API server's suffix a name stays below 253


@dataclass(frozen=True, slots=True)
class ExistingSlice:
    """A listed slice without its devices, to save memory."""

    metadata: JSON
    pool: str
    generation: int
    count: int
    names: PublishedNames  # in the order of the slice
    timed: Mapping[str, list[JSON]]  # device → its taints, for devices with a taint that has a time
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


def existing_slice(obj: JSON) -> ExistingSlice:
    """Reads a slice in v1.

    Raises:
        KeyError, TypeError, AttributeError: a required field is missing or has the wrong type.
    """
    spec, meta = obj["spec"], obj["metadata"]
    pool = spec["pool"]
    texts = (pool["name"], meta["name"], meta["uid"], meta["resourceVersion"])
    numbers = (pool["generation"], pool["resourceSliceCount"])
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in numbers):
        raise TypeError(f"{meta['name']!r} has fields of other types")
    devices = spec.get("devices") or []
    device_names = tuple(d["name"] for d in devices)
    if not all(isinstance(n, str) for n in device_names):
        raise TypeError(f"{meta['name']!r} has devices without a name")
    return ExistingSlice(
        metadata={k: v for k, v in meta.items() if k != "managedFields"},
        pool=pool["name"],
        generation=pool["generation"],
        count=pool["resourceSliceCount"],
        names=PublishedNames(device_names, tuple(c["name"] for c in spec.get("sharedCounters") or [])),
        timed={d["name"]: d["taints"] for d in devices if any(t.get("timeAdded") for t in d.get("taints") or [])},
        digest=digest(spec),
    )


@dataclass(frozen=True, slots=True)
class CommonSliceFields:
    """The fields that all slices of a pool share. ``fields`` contains their nodes and options."""

    driver: str
    pool: str
    fields: Mapping[str, Any]
    generation: int
    count: int

    def _head(self) -> JSON:
        pool = {"name": self.pool, "generation": self.generation, "resourceSliceCount": self.count}
        return {"driver": self.driver, **self.fields, "pool": pool}

    def spec(self, content: WantedSlice, timed: Mapping[str, list[JSON]]) -> JSON:
        """Returns the spec to send. ``timed`` contains earlier taints by device: a taint that was there before keeps its time."""
        if content.counter_sets:
            return {**self._head(), "sharedCounters": content.counter_sets}
        devices = [msgspec.json.decode(d.encoded) for d in content.devices]
        for device in devices:
            if device.get("taints"):
                device["taints"] = [_timed(t, timed.get(device["name"], [])) for t in device["taints"]]
        return {**self._head(), "devices": devices}

    def object(
        self,
        number: int,
        content: WantedSlice,
        existing: ExistingSlice | None,
        node: str,
        metadata: JSON,
        timed: Mapping[str, list[JSON]],
    ) -> JSON:
        """Returns a slice as an API object. Call it just before the request, so that only one slice at a time is in memory.

        Args:
            number: the slice's number in the pool.
            content: the slice.
            existing: the slice to update; None to create a slice.
            node: the only node of the pool, which is part of a new slice's name; empty if the pool belongs to no single node.
            metadata: the metadata without the name. Labels of other writers are kept.
            timed: as for :meth:`spec`.
        """
        if existing is None:
            prefix = f"{number:05x}-{self.driver}-" + (f"{node}-" if node else "")
            meta = {"generateName": _cut(prefix), **metadata}
        else:
            labels = {**(existing.metadata.get("labels") or {}), **metadata.get("labels", {})}
            meta = {**existing.metadata, **metadata, **({"labels": labels} if labels else {})}
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ResourceSlice",
            "metadata": meta,
            "spec": self.spec(content, timed),
        }


def digest(spec: Mapping[str, Any]) -> bytes:
    """Returns a digest of a spec that ignores the times of taints, empty fields of devices and the order of fields."""
    parts = {k: v for k, v in spec.items() if k != "devices" and (v or k != "sharedCounters")}
    out = hashlib.sha256(_sorted_text(parts))
    for device in spec.get("devices") or []:
        filled = {k: v for k, v in device.items() if v not in (None, [], {}, False)}
        if "taints" in filled:
            filled["taints"] = [{k: v for k, v in t.items() if k != "timeAdded"} for t in filled["taints"]]
        out.update(_sorted_text(filled))
    return out.digest()


def _sorted_text(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _cut(prefix: str) -> str:
    """Shortens a ``generateName`` that is too long for the API server."""
    return prefix if len(prefix) <= _MAX_PREFIX else prefix[:_MAX_PREFIX].rstrip("-.") + "-"


def _timed(taint: Mapping[str, Any], before: list[JSON]) -> JSON:
    identity = [taint.get(k, "") for k in ("key", "value", "effect")]
    for old in before:
        if [old.get(k, "") for k in ("key", "value", "effect")] == identity and old.get("timeAdded"):
            return {**taint, "timeAdded": old["timeAdded"]}
    return dict(taint)
