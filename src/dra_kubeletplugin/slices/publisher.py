"""Keeps the API server's slices of this driver and node as the inventory says.

Level-triggered: list, compare, write; then watch, and do it again whenever either side changes. No cache decides anything,
so slices that somebody deletes (the kubelet does at its start) come back at once. Of several instances on a node only the
newest writes. No fault from outside ends it: each is told once, counted, and tried again with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ApiError, describe
from ..inventory import Inventory, PoolContent
from ..kube import KubeClient, Resource
from ..observe.metrics import Metrics
from ..publishable import decoded
from ..resources.convert import GROUP, convert
from ..resources.nodes import Nodes
from ..resources.schema import dropped
from .contention import Contention, Undone
from .pack import SliceContent, pack
from .plan import Found, Frame, Plan, Write, first_frame, found, is_complete, make_plan, newest
from .sameness import digest
from .scope import Scope
from .watch import SliceWatch

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_RESYNC = 600.0  # seconds between looks at the server without any event
_SETTLE = 0.02  # seconds to gather events before a sync
_FOLLOW = 2.0  # seconds between looks whether the instance that publishes is gone
_REFUSED = 300.0  # seconds before the same objects are sent again to a server that refuses them
_MAX_PAUSE = 30.0


class Publisher:
    """Publishes the pools of an inventory.

    Args:
        scope: whose slices these are.
        leader: whether this instance is the one to publish, the newest that lives on the node. Where it is not, nothing is
            written, and ``published`` is set once the other's slices are complete.
        generation: the least one to use.
    """

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        scope: Scope,
        metrics: Metrics,
        leader: Callable[[], bool],
        generation: int = 1,
    ) -> None:
        self.client = client
        self.inventory = inventory
        self.scope = scope
        self.metrics = metrics
        self.leader = leader
        self.least_generation = generation
        self.published = asyncio.Event()
        self.leads = True
        self._fault = ""
        self._failures = 0
        self._reported: set[str] = set()
        # slice → digests of what was sent, and what the server made of it
        self._echoes: dict[str, tuple[bytes, bytes]] = {}
        self._settled: dict[str, str] = {}  # slice → its resource version when all was as wanted
        self._settled_at = -1  # the inventory's version then
        self._refused: tuple[int, float] | None = None  # the inventory's version that was refused, and until when
        self._contention = Contention()
        self._dirty = asyncio.Event()
        self._watch = SliceWatch(client, scope.selector, self._dirty.set)
        metrics.measure("publisher", lambda: float(leader()))
        metrics.measure("publish_fault", lambda: float(bool(self.fault)))  # the watch dies without a write of ours

    @property
    def fault(self) -> str:
        """Why the slices are not as they should be now, or may not be for long; empty where they are."""
        return self._fault or self._watch.fault

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
        pools = list(self.inventory.pools)
        existing = await self._existing(resource, pools)
        if all(is_complete([s for s in existing if s.pool == pool]) for pool in pools):
            self._failures = 0
            self._well()
            return 0.0
        self._tell("the newest instance on this node publishes, and its slices are not complete yet")
        return _FOLLOW

    def _undone(self, plan: Sync) -> Undone | None:
        """What somebody did to our slices since they were as wanted; None where our own devices changed."""
        if not plan.writes or self._settled_at != plan.version:
            return None
        now = {s.name: s.version for s in plan.existing}
        return Undone.MISSING if now.items() <= self._settled.items() else Undone.CHANGED

    # --- faults ---------------------------------------------------------------------------------

    def _failed(self, e: ApiError, version: int) -> float:
        if e.status == 404 and not e.names(self.scope.middle):
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

    async def _plan(self) -> Sync:
        resource = await self.client.dra("resourceslices")
        version, contents = self.inventory.version, self.inventory.contents()
        existing = await self._existing(resource, [c.name for c in contents])
        names = {s.name for s in existing}
        self._echoes = {n: e for n, e in self._echoes.items() if n in names}
        wanted = {c.name: c for c in contents}
        # What is answered no more goes first: a device may have moved to another pool.
        gone = [PoolContent(s.pool, Nodes.this(), False, [], []) for s in existing if s.pool not in wanted]
        plans = []
        for content in [*{c.name: c for c in gone}.values(), *contents]:
            of_pool = [s for s in existing if s.pool == content.name]
            plans.append(await self._plan_pool(content, of_pool, keep=content.name in wanted))
        return Sync(plans, existing, version)

    async def _plan_pool(self, pool: PoolContent, existing: list[Found], *, keep: bool) -> Plan:
        slices = pack(pool.devices, pool.counter_sets, _current(existing)) if keep else []
        await asyncio.sleep(0)
        nodes = {"perDeviceNodeSelection": True} if pool.per_device else self.scope.nodes(pool.nodes)
        frame = first_frame(slices, existing, self.scope.driver, pool.name, nodes, self.least_generation)
        by_name = {s.name: s for s in existing}
        changed = set()
        for slice_ in slices:
            if slice_.key and not self._as_wanted(by_name[slice_.key], frame.digest(slice_)):
                changed.add(slice_.key)
            await asyncio.sleep(0)
        return make_plan(slices, existing, frame, changed, self.least_generation)

    async def _existing(self, resource: Resource, pools: Collection[str]) -> list[Found]:
        """Our slices as the server has them. They are decoded one at a time, and others have their turn between."""
        out = []
        page = await self.client.page(resource, fields=self.scope.selector)
        for item in page.items or []:
            try:
                obj = _in_v1(decoded(item), resource)
                if self.scope.owns(obj, pools):
                    out.append(found(obj))
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                raise ApiError(f"list resourceslices: the answer has what is no ResourceSlice ({describe(e)})") from e
            del obj
            await asyncio.sleep(0)
        return out

    async def _carry_out(self, sync: Sync) -> None:
        settled = {s.name: s.version for s in sync.existing}
        if sync.writes:
            resource = await self.client.dra("resourceslices")
            metadata = await self.scope.metadata(self.client)
            for plan in sync.plans:
                for slice_ in plan.delete:
                    await self._delete(resource, slice_)
                    del settled[slice_.name]
                for write in (*plan.update, *plan.create):
                    await self._write(resource, write, plan.frame, metadata, settled)
                if plan.writes:
                    log.info(
                        "pool %s: published %d devices in %d slices (%d created, %d updated, %d deleted)",
                        plan.frame.pool, plan.devices, plan.frame.count,
                        len(plan.create), len(plan.update), len(plan.delete),
                    )  # fmt: skip
        self._settled, self._settled_at = settled, sync.version
        self.metrics.set("slices", sum(p.frame.count for p in sync.plans))

    def _as_wanted(self, have: Found, want: bytes) -> bool:
        """Whether a slice needs no write. One that came out different from what we sent is left alone."""
        return want == have.digest or self._echoes.get(have.name) == (want, have.digest)

    async def _write(
        self, resource: Resource, write: Write, frame: Frame, metadata: JSON, settled: dict[str, str]
    ) -> None:
        await asyncio.sleep(0)
        obj = write.object(frame, self.scope.middle, metadata)
        sent = obj if resource.version == "v1" else convert(obj, resource.version)
        try:
            answer = await (self.client.update(resource, sent) if write.over else self.client.create(resource, sent))
        except ApiError as e:
            if reasons := refused_devices(e, obj):
                await self.inventory.refuse(reasons, frame.pool)
            raise
        del sent
        self.metrics.inc("slice_writes_total", verb="update" if write.over else "create")
        echo = _in_v1(answer, resource)
        settled[echo["metadata"]["name"]] = echo["metadata"]["resourceVersion"]
        await asyncio.sleep(0)
        self._check_echo(obj, echo, write.content, frame)

    async def _delete(self, resource: Resource, slice_: Found) -> None:
        meta = slice_.metadata
        try:
            await self.client.delete(resource, meta["name"], uid=meta["uid"], version=meta["resourceVersion"])
            self.metrics.inc("slice_writes_total", verb="delete")
        except ApiError as e:
            if e.status != 404:
                raise

    def _check_echo(self, sent: JSON, echo: JSON, content: SliceContent, frame: Frame) -> None:
        """A server with a feature gate off drops fields silently; say so once, and do not fight it."""
        want, same = frame.digest(content), sent["spec"] == echo["spec"]
        self._echoes[echo["metadata"]["name"]] = (want, want if same else digest(echo["spec"]))
        lost = [] if same else _dropped(sent["spec"], echo["spec"])
        fresh = sorted({_without_indexes(p) for p in lost} - self._reported)
        if fresh:
            self._reported.update(fresh)
            self.metrics.inc("dropped_fields_total", len(fresh))
            log.error(
                "the API server dropped %s from our slices: a feature gate of the server is off (DRADeviceTaints, "
                "DRAPartitionableDevices, DRAConsumableCapacity, DRADeviceBindingConditions); devices are published without",
                ", ".join(fresh),
            )


@dataclass(frozen=True)
class Sync:
    """What one look at the server asks for; ``version`` is the inventory's from which that was made."""

    plans: Sequence[Plan]
    existing: Sequence[Found]
    version: int

    @property
    def writes(self) -> int:
        return sum(p.writes for p in self.plans)


def _current(existing: Sequence[Found]) -> dict[str, tuple[str, ...]]:
    """The slices of a pool's newest generation, with the names of their devices."""
    generation = newest(existing)
    return {s.name: s.devices for s in sorted(existing, key=lambda s: s.name) if s.generation == generation}


def _in_v1(obj: JSON, resource: Resource) -> JSON:
    """An item of ``resource`` as an object in v1. Raises ``ValueError`` where its own version is none that is known."""
    whole = {"apiVersion": resource.api_version, "kind": "ResourceSlice", **obj}
    return whole if whole["apiVersion"] == f"{GROUP}/v1" else convert(whole, "v1")


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


def _dropped(sent: JSON, echo: JSON) -> list[str]:
    """Fields of a spec that the server dropped. Only devices that came back differently are looked at."""
    pairs = zip(sent.get("devices") or [], echo.get("devices") or [], strict=False)
    lost = [p for a, b in pairs if a != b for p in dropped(a, b, "spec.devices[]")]
    rest = {k: v for k, v in sent.items() if k != "devices" or k not in echo}
    return lost + dropped(rest, echo, "spec")


def _without_indexes(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _pause(failures: int) -> float:
    return float(min(_MAX_PAUSE, 0.1 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))
