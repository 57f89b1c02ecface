"""From the slices that exist to the slices that are wanted: which to delete, update and create. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..resources.convert import GROUP
from .pack import SliceContent

JSON = dict[str, Any]


class Plan:
    """Writes that turn what exists into what is wanted."""

    def __init__(self, existing: list[JSON]) -> None:
        self.existing = existing
        self.delete: list[JSON] = []
        self.update: list[JSON] = []
        self.create: list[JSON] = []
        self.total = 0

    @property
    def writes(self) -> int:
        return len(self.delete) + len(self.update) + len(self.create)


def as_wanted(have: JSON, want: JSON) -> bool:
    return comparable(have["spec"]) == comparable(want)


def make_plan(
    contents: list[SliceContent],
    existing: list[JSON],
    driver: str,
    node: str,
    least_generation: int = 1,
    same: Callable[[JSON, JSON], bool] = as_wanted,
) -> Plan:
    """Pure. The generation stays when at most one slice changes and none is new; otherwise it grows on every slice."""
    plan = Plan(existing)
    plan.total = len(contents)
    by_name = {s["metadata"]["name"]: s for s in existing}
    generation = max(
        (s["spec"]["pool"]["generation"] for s in existing if s["spec"]["pool"]["name"] == node), default=0
    )
    keys = {c.key for c in contents if c.key}
    plan.delete = [s for name, s in sorted(by_name.items()) if name not in keys]
    wanted = [(c, _spec(c, driver, node, len(contents), max(generation, 1, least_generation))) for c in contents]
    changed = [c for c, spec in wanted if c.key and not same(by_name[c.key], spec)]
    fresh = [c for c, _ in wanted if not c.key]
    if generation and (len(changed) > 1 or fresh):
        generation = max(generation + 1, least_generation)
        wanted = [(c, _spec(c, driver, node, len(contents), generation)) for c in contents]
    for index, (content, spec) in enumerate(wanted):
        if content.key is None:
            name = f"{index:05x}-{driver}-{node}-"
            plan.create.append(_object({"generateName": name}, spec))
        elif not same(by_name[content.key], spec):
            old = by_name[content.key]
            _keep_times(old["spec"], spec)
            plan.update.append(_object({**old["metadata"]}, spec))
    return plan


def _object(metadata: JSON, spec: JSON) -> JSON:
    metadata.pop("managedFields", None)
    return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _spec(content: SliceContent, driver: str, node: str, count: int, generation: int) -> JSON:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    spec: JSON = {"driver": driver, "nodeName": node, "pool": pool}
    if content.counter_sets:
        spec["sharedCounters"] = content.counter_sets
    else:
        spec["devices"] = [{**d} for d in content.devices]
    return spec


def comparable(spec: Mapping[str, Any]) -> JSON:
    """A spec without times of taints and without empty fields."""
    out = dict(spec)
    devices = []
    for device in spec.get("devices") or []:
        d = {k: v for k, v in device.items() if v not in (None, [], {}, False)}
        if "taints" in d:
            d["taints"] = [{k: v for k, v in t.items() if k != "timeAdded"} for t in d["taints"]]
        devices.append(d)
    out["devices"] = devices
    out["sharedCounters"] = spec.get("sharedCounters") or []
    return out


def _keep_times(old: Mapping[str, Any], new: JSON) -> None:
    """A taint that stays keeps the time at which it was added."""
    before = {d["name"]: d.get("taints") or [] for d in old.get("devices") or []}
    for device in new.get("devices") or []:
        if device.get("taints"):
            device["taints"] = [_timed(t, before.get(device["name"], [])) for t in device["taints"]]


def _timed(taint: Mapping[str, Any], before: list[JSON]) -> JSON:
    identity = [taint.get(k, "") for k in ("key", "value", "effect")]
    for old in before:
        if [old.get(k, "") for k in ("key", "value", "effect")] == identity and old.get("timeAdded"):
            return {**taint, "timeAdded": old["timeAdded"]}
    return dict(taint)


def is_complete(existing: list[JSON], pool: str) -> bool:
    """Whether the newest generation of a pool has all its slices."""
    pools = [s["spec"]["pool"] for s in existing if s["spec"]["pool"]["name"] == pool]
    newest = max((p["generation"] for p in pools), default=0)
    current = [p for p in pools if p["generation"] == newest]
    return bool(current) and len(current) == current[0]["resourceSliceCount"]
