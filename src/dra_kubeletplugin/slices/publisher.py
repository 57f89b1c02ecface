"""Keeps the API server's slices of this driver and node as the inventory says.

Level-triggered: list, compare, write; then watch, and do it again whenever either side changes. No cache decides anything,
so slices that somebody deletes (the kubelet does at its start) come back at once. Of several instances on a node only the
newest writes. No fault from outside ends it: each is told once, counted, and tried again with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import ApiError, describe
from ..inventory import Inventory
from ..kube import KubeClient, Resource
from ..kube.client import NODES
from ..observe.metrics import Metrics
from ..resources.convert import convert
from ..resources.schema import dropped
from .contention import Contention, Undone
from .pack import SliceContent, pack
from .plan import Plan, comparable, is_complete, make_plan
from .watch import SliceWatch

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_RESYNC = 600.0  # seconds between looks at the server without any event
_SETTLE = 0.02  # seconds to gather events before a sync
_FOLLOW = 2.0  # seconds between looks whether the instance that publishes is gone
_REFUSED = 300.0  # seconds before the same objects are sent again to a server that refuses them
_MAX_PAUSE = 30.0


class Publisher:
    """Publishes one pool, named like the node.

    Args:
        leader: whether this instance is the one to publish, the newest that lives on the node. Where it is not, nothing is
            written, and ``published`` is set once the other's slices are complete.
        generation: the least one to use.
    """

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        driver: str,
        node: str,
        metrics: Metrics,
        leader: Callable[[], bool],
        generation: int = 1,
    ) -> None:
        self.client = client
        self.inventory = inventory
        self.driver = driver
        self.node = node
        self.metrics = metrics
        self.leader = leader
        self.least_generation = generation
        self.published = asyncio.Event()
        self.leads = True
        self._fault = ""
        self._failures = 0
        self._reported: set[str] = set()
        self._echoes: dict[
            str, tuple[bytes, bytes]
        ] = {}  # slice → digests of what was sent, what the server made of it
        self._settled: dict[str, str] = {}  # slice → its resource version when all was as wanted
        self._settled_at = -1  # the inventory's version then
        self._refused: tuple[int, float] | None = None  # the inventory's version that was refused, and until when
        self._contention = Contention()
        self._dirty = asyncio.Event()
        self._watch = SliceWatch(client, self._fields, self._dirty.set)
        metrics.measure("publish_fault", lambda: float(bool(self.fault)))  # the watch dies without a write of ours

    @property
    def fault(self) -> str:
        """Why the slices are not as they should be now, or may not be for long; empty where they are."""
        return self._fault or self._watch.fault

    @property
    def _fields(self) -> str:
        return f"spec.driver={self.driver},spec.nodeName={self.node}"

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_inventory())
            tasks.create_task(self._watch.run())
            tasks.create_task(self._sync_forever())

    async def _follow_inventory(self) -> None:
        seen = 0
        while True:
            seen = await self.inventory.changed(seen)
            self._dirty.set()

    # --- when to write --------------------------------------------------------------------------

    async def _sync_forever(self) -> None:
        while True:
            await self._wait()
            await asyncio.sleep(_SETTLE)
            self._dirty.clear()
            if not self.inventory.known:
                continue  # the driver has not answered yet: publishing nothing would be a lie
            pause = await self._attempt()
            if pause:
                # Our own devices are told at once, however long another writer is left alone.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.inventory.changed(self.inventory.version)
                self._dirty.set()

    async def _wait(self) -> None:
        """Until something happened, or it is time to look again; a follower looks whether it leads now."""
        until = time.monotonic() + _RESYNC * random.uniform(0.8, 1.0)
        while not self._dirty.is_set() and (left := until - time.monotonic()) > 0:
            if not self.leads and self._is_leader():
                return
            if self._refused and time.monotonic() > self._refused[1]:
                return
            limit = left if self.leads and not self._refused else min(left, _FOLLOW)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._dirty.wait()
        if not self._dirty.is_set():
            await self.inventory.forgive()  # the server may have learned since

    async def _attempt(self) -> float:
        """One sync, whatever it meets; answers after how many seconds to try again, 0 for when something happens."""
        version = self.inventory.version
        try:
            self.leads = self._is_leader()
            self.metrics.set("publisher", int(self.leads))
            if not self.leads:
                return await self._follow_leader()
            if self._refused and self._refused[0] == version and time.monotonic() < self._refused[1]:
                return 0.0
            plan = await self._plan()
            undone = self._undone(plan)
            if undone and (delay := self._contention.delay(undone, time.monotonic())):
                self._tell(f"{undone.value} by another writer {self._contention.count + 1} times: answered in a while")
                return delay
            await self._carry_out(plan)
            if plan.writes:
                self._contention.written(time.monotonic(), answer=undone is not None)
        except ApiError as e:
            return self._failed(e, version)
        except Exception as e:  # an odd answer must not end the plugin
            return self._later(f"publishing met what it did not expect: {describe(e)}", logging.ERROR, e)
        self._failures, self._refused = 0, None
        self._well()
        return 0.0

    def _is_leader(self) -> bool:
        try:
            return self.leader()
        except OSError as e:  # it looks at files; a node without a publisher is worse than one with two
            log.warning("which instance publishes cannot be told: %s", describe(e))
            return True

    async def _follow_leader(self) -> float:
        """Another instance publishes: its slices count as ours."""
        resource = await self.client.dra("resourceslices")
        if is_complete(await self._existing(resource), self.node):
            self._failures = 0
            self._well()
            return 0.0
        self._tell("the newest instance on this node publishes, and its slices are not complete yet")
        return _FOLLOW

    def _undone(self, plan: Plan) -> Undone | None:
        """What somebody did to our slices since they were as wanted; None where our own devices changed."""
        if not plan.writes or self._settled_at != self.inventory.version:
            return None
        found = {s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in plan.existing}
        return Undone.MISSING if found.items() <= self._settled.items() else Undone.CHANGED

    # --- faults ---------------------------------------------------------------------------------

    def _failed(self, e: ApiError, version: int) -> float:
        if e.status == 404 and not e.names(self.node):
            self.client.forget_version()  # an upgrade or a downgrade of the server may have changed what it serves
        if e.status in {400, 422}:
            # The same objects would be refused again; wait for others.
            self._refused = (version, time.monotonic() + _REFUSED)
            self._later(
                f"the API server refuses our slices, devices of this node cannot be scheduled: {e}", logging.ERROR
            )
            return 0.0
        if e.status == 403:
            return self._later(f"not permitted to publish slices (see deploy/base/rbac.yaml): {e}", logging.ERROR)
        return self._later(
            f"publishing failed, trying again: {e}", logging.DEBUG if e.status == 409 else logging.WARNING
        )

    def _later(self, fault: str, level: int, error: Exception | None = None) -> float:
        self._failures += 1
        self.metrics.inc("publish_errors_total")
        self._tell(fault, level, error)
        return _pause(self._failures)

    def _tell(self, fault: str, level: int = logging.WARNING, error: Exception | None = None) -> None:
        if fault != self._fault:
            log.log(level, "%s", fault, exc_info=error)
        self._fault = fault

    def _well(self) -> None:
        self._fault = ""
        self.published.set()

    # --- one sync -------------------------------------------------------------------------------

    async def sync(self) -> int:
        """Brings the server's slices in line; answers the number of writes.

        Raises :class:`ApiError` at the first write that fails; what was done stays done, and the next call goes on.
        """
        plan = await self._plan()
        await self._carry_out(plan)
        return plan.writes

    async def _plan(self) -> Plan:
        resource = await self.client.dra("resourceslices")
        existing = await self._existing(resource)
        desired = self._desired(existing)
        names = {s["metadata"]["name"] for s in existing}
        self._echoes = {n: e for n, e in self._echoes.items() if n in names}
        return make_plan(desired, existing, self.driver, self.node, self.least_generation, self._as_wanted)

    async def _existing(self, resource: Resource) -> list[JSON]:
        """Our slices as the server has them, in v1."""
        listed = await self.client.list(resource, fields=self._fields)
        try:
            found = [
                convert({"apiVersion": resource.api_version, "kind": "ResourceSlice", **s}, "v1")
                for s in listed.get("items") or []
            ]
            # A server that ignores field selectors must not make us touch what is not ours.
            return [
                _checked(s)
                for s in found
                if s["spec"]["driver"] == self.driver and s["spec"].get("nodeName") == self.node
            ]
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise ApiError(f"list resourceslices: the answer has what is no ResourceSlice ({describe(e)})") from e

    async def _carry_out(self, plan: Plan) -> None:
        version = self.inventory.version
        settled = {s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in plan.existing}
        if plan.writes:
            resource = await self.client.dra("resourceslices")
            owner = await self._owner()
            for obj in plan.delete:
                await self._delete(resource, obj)
                del settled[obj["metadata"]["name"]]
            for obj in plan.update:
                await self._write("update", resource, obj, owner, settled)
            for obj in plan.create:
                await self._write("create", resource, obj, owner, settled)
            log.info(
                "published %d devices in %d slices (%d created, %d updated, %d deleted)",
                len(self.inventory.published()), plan.total, len(plan.create), len(plan.update), len(plan.delete),
            )  # fmt: skip
        self._settled, self._settled_at = settled, version
        self.metrics.set("slices", plan.total)

    def _as_wanted(self, have: JSON, want: JSON) -> bool:
        """Whether a slice needs no write. One that came out different from what we sent is left alone."""
        wanted, found = comparable(want), comparable(have["spec"])
        return wanted == found or self._echoes.get(have["metadata"]["name"]) == (_digest(wanted), _digest(found))

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
        return pack(self.inventory.published(), self.inventory.published_sets(), before)

    async def _owner(self) -> JSON:
        node = await self.client.get(NODES, self.node)
        uid = node["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid, "controller": True}

    async def _write(self, verb: str, resource: Resource, obj: JSON, owner: JSON, settled: dict[str, str]) -> None:
        obj["metadata"]["ownerReferences"] = [owner]
        sent = convert(obj, resource.version)
        try:
            answer = await (
                self.client.create(resource, sent) if verb == "create" else self.client.update(resource, sent)
            )
        except ApiError as e:
            if reasons := refused_devices(e, obj):
                await self.inventory.refuse(reasons)
            raise
        self.metrics.inc("slice_writes_total", verb=verb)
        echo = convert({"apiVersion": resource.api_version, "kind": "ResourceSlice", **answer}, "v1")
        settled[echo["metadata"]["name"]] = echo["metadata"]["resourceVersion"]
        self._check_echo(obj, echo)

    async def _delete(self, resource: Resource, obj: JSON) -> None:
        meta = obj["metadata"]
        try:
            await self.client.delete(resource, meta["name"], uid=meta["uid"], version=meta["resourceVersion"])
            self.metrics.inc("slice_writes_total", verb="delete")
        except ApiError as e:
            if e.status != 404:
                raise

    def _check_echo(self, sent: JSON, echo: JSON) -> None:
        """A server with a feature gate off drops fields silently; say so once, and do not fight it."""
        self._echoes[echo["metadata"]["name"]] = (_digest(comparable(sent["spec"])), _digest(comparable(echo["spec"])))
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


def _checked(obj: JSON) -> JSON:
    """A slice that has what we read of one. Raises ``KeyError`` or ``TypeError``."""
    pool, meta = obj["spec"]["pool"], obj["metadata"]
    texts = (pool["name"], meta["name"], meta["uid"], meta["resourceVersion"])
    numbers = (pool["generation"], pool["resourceSliceCount"])
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in numbers):
        raise TypeError(f"{meta['name']!r} has fields of other types")
    for device in obj["spec"].get("devices") or []:
        _ = device["name"]
    return obj


def refused_devices(e: ApiError, obj: JSON) -> dict[str, str]:
    """The devices of a slice that a refusal is about, each with what is wrong with it; none where it does not say."""
    if e.status not in {400, 422}:
        return {}
    details = e.details.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    devices = obj["spec"].get("devices") or []
    out: dict[str, str] = {}
    for cause in causes if isinstance(causes, list) else []:
        field = cause.get("field") if isinstance(cause, dict) else None
        match = re.match(r"spec\.devices\[(\d{1,4})\]", field) if isinstance(field, str) else None
        if match and isinstance(field, str) and int(match[1]) < len(devices):
            name = devices[int(match[1])]["name"]
            told = f"{field[match.end() :].lstrip('.')}: {cause.get('message')}"
            out[name] = f"{out[name]}; {told}" if name in out else told
    return out


def _without_indexes(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _pause(failures: int) -> float:
    return float(min(_MAX_PAUSE, 0.1 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))


def _digest(spec: JSON) -> bytes:
    """Stands for a spec when two are compared: thousands of devices are not kept twice."""
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).digest()
