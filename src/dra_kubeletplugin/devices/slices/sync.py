"""One look at the API server: list, compare, write. What is remembered from one to the next only saves writes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...base.telemetry.metrics import Metrics
from ...errors import ApiError, describe
from ...kube import KubeClient, Resource
from ...kube.decoding import Bare
from ...resourceapi.gated_fields import gate_of
from ..inventory import Inventory, PoolContent
from ..validation import decoded
from .digest import digest
from .pack import PublishedDevice, SliceContent, on_to, pack
from .plan import (
    ExistingSlice,
    PoolFrame,
    SliceWrite,
    WritePlan,
    existing_slice,
    first_frame,
    in_order_of_names,
    is_numbered,
    make_plan,
    newest,
)
from .scope import Scope
from .server_response import REFUSED, as_sent, in_v1, lost, refused_devices
from .taint_times import TaintTimes
from .write_lock import WriteLock

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_MANY = 1024  # devices that are packed in a thread, so that others have their turn


_Age = tuple[str, str]  # time and UID of a slice: the smaller is the older


class SupersededError(Exception):
    """What is written turned out to be wrong, or another's to write: it must be planned again."""


@dataclass(frozen=True)
class Sync:
    """What one look at the server asks for; ``version`` is the inventory's from which that was made.

    The first ``giving`` of the plans take devices away from their pools.
    """

    plans: Sequence[WritePlan]
    giving: int
    existing: Sequence[ExistingSlice]
    version: int

    @property
    def writes(self) -> int:
        return sum(p.count for p in self.plans)


class Syncer:
    """Compares and writes; see :class:`Publisher` for when."""

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        scope: Scope,
        metrics: Metrics,
        times: TaintTimes,
        leads: Callable[[], bool],
        generation: int = 1,
        turn: WriteLock | None = None,
    ) -> None:
        self.settled: Mapping[str, str] = {}
        """Slice → its resource version when all was as wanted."""
        self.settled_at = -1
        """The inventory's version then."""
        self.dropped: set[str] = set()
        """Fields without a known gate that the server dropped."""
        self._client = client
        self._inventory = inventory
        self._scope = scope
        self._metrics = metrics
        self._times = times
        self._leads = leads
        self._turn = turn or WriteLock()
        self._least_generation = generation
        # slice → digests of what was sent, and what the server made of it
        self._echoes: dict[str, tuple[bytes, bytes]] = {}
        self._layout: dict[str, dict[str, PublishedDevice]] = {}  # pool → slice → what it had when all was as wanted
        self._metadata: JSON | None = None
        self._found: dict[str, ExistingSlice] = {}  # as the server had them last
        self._rivals: Mapping[str, str] = {}  # pools of which another publishes slices, each with what to say
        self._good: dict[str, tuple[str, bytes]] = {}  # slice → its version, and what it was found to be as wanted for

    def forget(self) -> None:
        """What is remembered of objects that are not ours, such as the Node, may have changed."""
        self._metadata = None

    def distrust(self) -> None:
        """What the server was seen to keep and to drop may be otherwise now: slices are read and judged anew."""
        self._found, self._good, self._echoes = {}, {}, {}
        self.dropped.clear()
        self.settled_at = -1  # a write that follows answers nobody

    async def look(self, resource: Resource) -> tuple[int, list[PoolContent], list[ExistingSlice]]:
        """What is wanted, with the inventory's version, and our slices as the server has them.

        Raises :class:`ApiError`, and :class:`SupersededError` where the server has pools of ours that another publishes.
        """
        pools = frozenset(self._inventory.pools)
        async with self._turn.taken():
            pass  # who led before has nothing under way any more
        version, contents = self._inventory.version, self._inventory.contents()
        existing = await self._existing(resource, {c.name for c in contents})
        taken = {p: why for p, why in self._rivals.items() if p in pools}
        if await self._inventory.set_taken(taken):
            raise SupersededError
        return version, contents, existing

    async def _existing(self, resource: Resource, pools: Collection[str]) -> list[ExistingSlice]:
        """Our slices as the server has them. They are decoded one at a time, and others have their turn between.

        Raises :class:`ApiError`.
        """
        out: list[ExistingSlice] = []
        rivals: dict[str, tuple[_Age, str]] = {}
        page = await self._client.page(resource, fields=self._scope.selector)
        for item in page.items or []:
            try:
                meta = msgspec.json.decode(item, type=Bare).metadata
                known = self._found.get(meta.name)
                if known and self._scope.exact and (known.uid, known.version) == (meta.uid, meta.resource_version):
                    out.append(known)
                    continue
                obj = in_v1(decoded(item), resource)
                if self._scope.owns(obj, pools):
                    out.append(existing_slice(obj))
                elif by := self._scope.rival(obj):
                    pool, age = str(obj["spec"]["pool"]["name"]), _age(obj["metadata"])
                    rivals[pool] = min(rivals.get(pool, (age, by)), (age, by))
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                raise ApiError(f"list resourceslices: the answer has what is no ResourceSlice ({describe(e)})") from e
            del obj
            await asyncio.sleep(0)
        self._found = {s.name: s for s in out}
        # The older publication stays: each of two decides alike, so that never both go.
        ours: dict[str, _Age] = {}
        for slice_ in out:
            age = _age(slice_.metadata)
            ours[slice_.pool] = min(ours.get(slice_.pool, age), age)
        self._rivals = {p: by for p, (age, by) in rivals.items() if p not in ours or age < ours[p]}
        return out

    # --- what to write --------------------------------------------------------------------------

    async def plan(self, resource: Resource) -> Sync:
        """Raises :class:`ApiError` and :class:`SupersededError`."""
        if self._metadata is None:
            self._metadata = await self._scope.metadata(self._client)
        version, contents, existing = await self.look(resource)
        self._times.learn(existing)
        names = {s.name for s in existing}
        self._echoes = {n: e for n, e in self._echoes.items() if n in names}
        self._good = {n: g for n, g in self._good.items() if n in names}
        wanted = {c.name for c in contents}
        plans = []
        # What is answered no more, and pools that lose a device, go first: it may have moved to another pool.
        for pool in sorted({s.pool for s in existing} - wanted):
            frame = PoolFrame(self._scope.driver, pool, {}, newest([s for s in existing if s.pool == pool]), 0)
            plans.append(make_plan([], [s for s in existing if s.pool == pool], frame, ()))
        rest: list[WritePlan] = []
        for content in contents:
            of_pool = [s for s in existing if s.pool == content.name]
            stay = {d.name for d in content.devices}
            gives = any(name not in stay for s in of_pool for name in s.held.devices)
            (plans if gives else rest).append(await self._plan_pool(content, of_pool))
        return Sync([*plans, *rest], len(plans), existing, version)

    async def _plan_pool(self, pool: PoolContent, existing: list[ExistingSlice]) -> WritePlan:
        by_name = {s.name: s for s in existing}
        filled = pool.devices or pool.counter_sets
        before, gone = _before(existing, self._layout.get(pool.name, {}) if filled else {})
        slices = await self._packed(pool, before)
        if not all(is_numbered(name) for name in before) and not _in_order(pool, slices):
            # Names of another writer, in no order: made anew, once, with names that sort.
            slices = await self._packed(pool, {})
            before = {}
        for slice_ in slices:
            if slice_.key in gone:
                slice_.key = None  # made again, as it was
        nodes = {"perDeviceNodeSelection": True} if pool.per_device else self._scope.nodes(pool.nodes)
        fields = {**nodes, **pool.options}
        frame = first_frame(slices, existing, self._scope.driver, pool.name, fields, self._least_generation)
        changed, touch = set(), set()
        for slice_ in slices:
            if slice_.key:
                have = by_name[slice_.key]
                if not self._as_wanted(have, slice_, frame):
                    changed.add(slice_.key)
                elif not self._has_metadata(have):
                    touch.add(slice_.key)
                await asyncio.sleep(0)
        plan = make_plan(slices, existing, frame, changed, touch)
        if not plan.anew or not before:
            return plan
        # All slices are written: the author's order costs nothing now.
        slices = await self._packed(pool, {})
        on_to(slices, {name: held for name, held in before.items() if name in by_name})
        frame = first_frame(slices, existing, self._scope.driver, pool.name, fields, self._least_generation)
        ordered = make_plan(slices, existing, frame, {s.key for s in slices if s.key}, ())
        return ordered if ordered.anew and ordered.count <= plan.count else plan

    async def _packed(self, pool: PoolContent, before: Mapping[str, PublishedDevice]) -> list[SliceContent]:
        if len(pool.devices) < _MANY:
            return pack(pool.devices, pool.counter_sets, before, self._inventory.full)
        return await asyncio.to_thread(pack, pool.devices, pool.counter_sets, before, self._inventory.full)

    def _as_wanted(self, have: ExistingSlice, content: SliceContent, frame: PoolFrame) -> bool:
        """Whether a slice's spec needs no write. One that came out different from what we sent is left alone."""
        mark = (have.version, frame.mark(content))
        if self._good.get(have.name) == mark:
            return True
        want = frame.digest(content)
        if want != have.digest and self._echoes.get(have.name) != (want, have.digest):
            return False
        self._good[have.name] = mark
        return True

    def _has_metadata(self, have: ExistingSlice) -> bool:
        want = self._metadata or {}
        labels = have.metadata.get("labels") or {}
        return all(labels.get(k) == v for k, v in want.get("labels", {}).items()) and (
            "ownerReferences" not in want or have.metadata.get("ownerReferences") == want["ownerReferences"]
        )

    # --- writing --------------------------------------------------------------------------------

    async def carry_out(self, sync: Sync, resource: Resource) -> None:
        """What was done stays done. A pool that the server refuses keeps no other from its devices.

        Raises :class:`ApiError` at the first write that fails, or, where it was refused, after the other pools; and
        :class:`SupersededError`.
        """
        settled = {s.name: s.version for s in sync.existing}
        if sync.writes:
            self._metadata = await self._scope.metadata(self._client)
        refused: ApiError | None = None
        for i, plan in enumerate(sync.plans):
            try:
                await self._carry_out_pool(plan, resource, settled)
            except ApiError as e:
                # A device that a pool should have lost may be in another one: that must wait.
                if e.status not in {*REFUSED, 403} or i < sync.giving:
                    raise
                refused = refused or e
        if refused:
            raise refused
        self.settled, self.settled_at = settled, sync.version
        self._metrics.set("slices", len(settled))
        if not sync.writes:
            self._layout = {}
            tainted: dict[str, list[str]] = {}
            for slice_ in sync.existing:
                self._layout.setdefault(slice_.pool, {})[slice_.name] = slice_.held
                tainted.setdefault(slice_.pool, []).extend(slice_.timed)
            self._times.forget(tainted)

    async def _carry_out_pool(self, plan: WritePlan, resource: Resource, settled: dict[str, str]) -> None:
        layout = self._layout.setdefault(plan.frame.pool, {})
        for slice_ in plan.first:
            async with self._writing():
                await self._delete(resource, slice_)
            settled.pop(slice_.name, None)
            layout.pop(slice_.name, None)
        for write in plan.writes:
            async with self._writing():
                name, version = await self._write(resource, write, plan.frame)
            settled[name] = version
            devices = [d.name for d in write.content.devices]
            layout[name] = PublishedDevice(devices, [c["name"] for c in write.content.counter_sets])
        for slice_ in plan.last:
            async with self._writing():
                await self._delete(resource, slice_)
            settled.pop(slice_.name, None)
            layout.pop(slice_.name, None)
        if plan.count:
            made = sum(w.over is None for w in plan.writes)
            log.info(
                "pool %s: published %d devices in %d slices (%d created, %d updated, %d deleted)",
                plan.frame.pool, plan.devices, plan.frame.count,
                made, len(plan.writes) - made, len(plan.first) + len(plan.last),
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """A newer instance may have come in the middle: two that write at once would make one generation of two answers."""
        async with self._turn.taken():
            if not self._leads():
                raise SupersededError
            yield

    async def _write(self, resource: Resource, write: SliceWrite, frame: PoolFrame) -> tuple[str, str]:
        await asyncio.sleep(0)
        obj = write.object(frame, self._scope.middle, self._metadata or {}, self._times.of(frame.pool))
        sent = as_sent(obj, resource)
        try:
            answer = await (self._client.update(resource, sent) if write.over else self._client.create(resource, sent))
        except ApiError as e:
            if reasons := refused_devices(e, obj):
                await self._inventory.refuse(reasons, frame.pool)
            raise
        del sent
        self._metrics.inc("slice_writes_total", verb="update" if write.over else "create")
        echo = in_v1(answer, resource)
        meta = echo["metadata"]
        await asyncio.sleep(0)
        await self._check_echo(obj, echo, write.content, frame)
        return meta["name"], meta["resourceVersion"]

    async def _delete(self, resource: Resource, slice_: ExistingSlice) -> None:
        meta = slice_.metadata
        try:
            await self._client.delete(resource, meta["name"], uid=meta["uid"], version=meta["resourceVersion"])
            self._metrics.inc("slice_writes_total", verb="delete")
        except ApiError as e:
            if e.status != 404:
                raise

    async def _check_echo(self, sent: JSON, echo: JSON, content: SliceContent, frame: PoolFrame) -> None:
        """A server drops fields silently that it does not know; say so once, and do not fight it."""
        want, same = frame.digest(content), sent["spec"] == echo["spec"]
        has = want if same else digest(echo["spec"])
        have = existing_slice(echo, has)
        self._echoes[have.name], self._found[have.name] = (want, has), have
        self._good[have.name] = (have.version, frame.mark(content))
        if same:
            return
        paths = lost(sent["spec"], echo["spec"])
        off = self._inventory.gates_off | {gate for path in paths if (gate := gate_of(path))}
        fresh = sorted(path for path in paths - self.dropped if not gate_of(path))
        if fresh:
            self.dropped.update(fresh)
            self._metrics.inc("dropped_fields_total", len(fresh))
            log.error(
                "the API server dropped %s from our slices: it does not know them; devices are published without",
                ", ".join(fresh),
            )
        if off != self._inventory.gates_off:
            await self._inventory.set_gates_off(off)
            raise SupersededError


def _age(metadata: Mapping[str, Any]) -> _Age:
    return str(metadata.get("creationTimestamp") or "~"), str(metadata.get("uid") or "")


def _in_order(pool: PoolContent, slices: Sequence[SliceContent]) -> bool:
    """Whether the allocator, which looks at slices by name, meets the devices as the author ordered them."""
    place = {d.name: i for i, d in enumerate(pool.devices)}
    met = [place[d.name] for s in in_order_of_names(slices) for d in s.devices]
    return met == sorted(met)


def _before(
    existing: Sequence[ExistingSlice], layout: Mapping[str, PublishedDevice]
) -> tuple[dict[str, PublishedDevice], set[str]]:
    """What slices had, and the names of those that are gone: they are made again as they were.

    Where two slices have a device, that of the newer generation counts; then the one that had it when all was well. One of which
    nothing is left then is not needed.
    """
    rank = {s.name: (-s.generation, s.name not in layout, s.name) for s in existing}
    mine = {s.name: s.held for s in sorted(existing, key=lambda s: rank[s.name])}
    gone = {name for name in layout if name not in mine}
    mine |= {name: layout[name] for name in sorted(gone)}
    out: dict[str, PublishedDevice] = {}
    had: set[tuple[bool, str]] = set()
    for name, held in mine.items():
        rest = PublishedDevice(
            [d for d in held.devices if (False, d) not in had], [c for c in held.counter_sets if (True, c) not in had]
        )
        had |= {*((False, d) for d in held.devices), *((True, c) for c in held.counter_sets)}
        if rest.devices or rest.counter_sets or (name not in gone and not held.devices and not held.counter_sets):
            out[name] = rest
    return dict(sorted(out.items())), gone
