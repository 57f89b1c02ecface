"""Keeps the API server's slices of this driver and node as the inventory says.

Level-triggered: list, compare, write; then watch, and do it again whenever either side changes. No cache decides anything,
so slices that somebody deletes (the kubelet does at its start) come back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ApiError
from ..inventory import Inventory
from ..kube import KubeClient, Reflector
from ..kube.client import NODES
from ..observe.metrics import Metrics
from ..resources.convert import GROUP, convert
from ..resources.schema import dropped
from .pack import SliceContent, pack

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_RESYNC = 600.0  # seconds between looks at the server without any event
_SETTLE = 0.02  # seconds to gather events before a sync
_MAX_PAUSE = 30.0


class Publisher:
    """Publishes one pool, named like the node. ``generation`` is the least one to use."""

    def __init__(
        self, client: KubeClient, inventory: Inventory, driver: str, node: str, metrics: Metrics, generation: int = 1
    ) -> None:
        self.client = client
        self.inventory = inventory
        self.driver = driver
        self.node = node
        self.metrics = metrics
        self.least_generation = generation
        self.published = asyncio.Event()
        self.fault = ""  # why the slices are not as they should be
        self._reported: set[str] = set()
        self._echoes: dict[str, tuple[JSON, JSON]] = {}  # slice → what was sent, what the server made of it
        self._dirty = asyncio.Event()
        self.watch = Reflector(client, "resourceslices", fields=self._fields, copies=False)

    @property
    def _fields(self) -> str:
        return f"spec.driver={self.driver},spec.nodeName={self.node}"

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_inventory())
            tasks.create_task(self._follow_server())
            tasks.create_task(self._sync_forever())

    async def _follow_inventory(self) -> None:
        seen = 0
        while True:
            seen = await self.inventory.changed(seen)
            self._dirty.set()

    async def _follow_server(self) -> None:
        async for _ in self.watch.events():
            self._dirty.set()

    async def _sync_forever(self) -> None:
        failures = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC):
                    await self._dirty.wait()
            await asyncio.sleep(_SETTLE)
            self._dirty.clear()
            if self.inventory.version == 0:
                continue  # the driver has not answered yet: publishing nothing would be a lie
            try:
                await self.sync()
                failures, self.fault = 0, ""
                self.published.set()
            except ApiError as e:
                failures += 1
                self._failed(e, failures)
                if e.status in {400, 422}:
                    continue  # the same objects would be refused again; wait for others
                await asyncio.sleep(_pause(failures))
                self._dirty.set()

    def _failed(self, e: ApiError, failures: int) -> None:
        self.metrics.inc("publish_errors_total")
        loud = str(e) != self.fault or failures % 20 == 0
        self.fault = str(e)
        if e.status in {400, 422}:
            log.error("the API server refuses our slices, devices of this node cannot be scheduled: %s", e)
        elif e.status == 403:
            log.error("not permitted to publish slices (see deploy/base/rbac.yaml): %s", e)
        elif e.status != 409 and loud:
            log.warning("publishing failed, trying again: %s", e)

    async def sync(self) -> int:
        """Brings the server's slices in line; answers the number of writes.

        Raises :class:`ApiError` at the first write that fails; what was done stays done, and the next call goes on.
        """
        resource = await self.client.dra("resourceslices")
        listed = await self.client.list(resource, fields=self._fields)
        existing = [
            convert({"apiVersion": resource.api_version, "kind": "ResourceSlice", **s}, "v1")
            for s in listed.get("items") or []
        ]
        # A server that ignores field selectors must not make us touch what is not ours.
        existing = [
            s for s in existing if s["spec"]["driver"] == self.driver and s["spec"].get("nodeName") == self.node
        ]
        desired = self._desired(existing)
        plan = make_plan(desired, existing, self.driver, self.node, self.least_generation, self._as_wanted)
        if plan.writes:
            owner = await self._owner()
            for obj in plan.delete:
                await self._delete(resource, obj)
            for obj in plan.update:
                obj["metadata"]["ownerReferences"] = [owner]
                self._check_echo(obj, await self._write("update", resource, obj))
            for obj in plan.create:
                obj["metadata"]["ownerReferences"] = [owner]
                self._check_echo(obj, await self._write("create", resource, obj))
            count = len(self.inventory.published())
            log.info(
                "published %d devices in %d slices (%d created, %d updated, %d deleted)",
                count, plan.total, len(plan.create), len(plan.update), len(plan.delete),
            )  # fmt: skip
        self.metrics.set("slices", plan.total)
        return plan.writes

    def _as_wanted(self, have: JSON, want: JSON) -> bool:
        """Whether a slice needs no write. One that came out different from what we sent is left alone."""
        wanted, found = _comparable(want), _comparable(have["spec"])
        return wanted == found or self._echoes.get(have["metadata"]["name"]) == (wanted, found)

    def _desired(self, existing: list[JSON]) -> list[SliceContent]:
        newest = max(
            (s["spec"]["pool"]["generation"] for s in existing if s["spec"]["pool"]["name"] == self.node), default=0
        )
        current = sorted(
            (
                s
                for s in existing
                if s["spec"]["pool"]["name"] == self.node and s["spec"]["pool"]["generation"] == newest
            ),
            key=lambda s: s["metadata"]["name"],
        )
        before = {s["metadata"]["name"]: [d["name"] for d in s["spec"].get("devices") or []] for s in current}
        devices = [d.json() for d in self.inventory.published()]
        return pack(devices, [c.json() for c in self.inventory.counter_sets], before)

    async def _owner(self) -> JSON:
        node = await self.client.get(NODES, self.node)
        uid = node["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid, "controller": True}

    async def _write(self, verb: str, resource: Any, obj: JSON) -> JSON:
        sent = convert(obj, resource.version)
        answer = await (self.client.create(resource, sent) if verb == "create" else self.client.update(resource, sent))
        self.metrics.inc("slice_writes_total", verb=verb)
        return convert({"apiVersion": resource.api_version, "kind": "ResourceSlice", **answer}, "v1")

    async def _delete(self, resource: Any, obj: JSON) -> None:
        meta = obj["metadata"]
        try:
            await self.client.delete(resource, meta["name"], uid=meta["uid"], version=meta["resourceVersion"])
            self.metrics.inc("slice_writes_total", verb="delete")
        except ApiError as e:
            if e.status != 404:
                raise

    def _check_echo(self, sent: JSON, echo: JSON) -> None:
        """A server with a feature gate off drops fields silently; say so once, and do not fight it."""
        self._echoes[echo["metadata"]["name"]] = (_comparable(sent["spec"]), _comparable(echo["spec"]))
        lost = dropped(sent["spec"], echo["spec"], "spec")
        fresh = sorted({_without_indexes(p) for p in lost} - self._reported)
        if fresh:
            self._reported.update(fresh)
            self.metrics.inc("dropped_fields_total", len(fresh))
            log.error(
                "the API server dropped %s from our slices: a feature gate of the server is off (DRADeviceTaints, "
                "DRAPartitionableDevices, DRAConsumableCapacity, DRADeviceBindingConditions); devices are published without",
                ", ".join(fresh),
            )


class Plan:
    """Writes that turn what exists into what is wanted."""

    def __init__(self) -> None:
        self.delete: list[JSON] = []
        self.update: list[JSON] = []
        self.create: list[JSON] = []
        self.total = 0

    @property
    def writes(self) -> int:
        return len(self.delete) + len(self.update) + len(self.create)


def as_wanted(have: JSON, want: JSON) -> bool:
    return _comparable(have["spec"]) == _comparable(want)


def make_plan(
    contents: list[SliceContent],
    existing: list[JSON],
    driver: str,
    node: str,
    least_generation: int = 1,
    same: Callable[[JSON, JSON], bool] = as_wanted,
) -> Plan:
    """Pure. The generation stays when at most one slice changes and none is new; otherwise it grows on every slice."""
    plan = Plan()
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


def _comparable(spec: Mapping[str, Any]) -> JSON:
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


def _without_indexes(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _pause(failures: int) -> float:
    return float(min(_MAX_PAUSE, 0.1 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))
