"""One synchronisation with the API server: list, compare, write.

The state that is kept between two synchronisations only saves writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...base.telemetry.metrics import Metrics
from ...errors import ApiError, describe
from ...kube import KubeClient, Resource
from ...kube.decoding import Bare
from ...kube.errors import ForbiddenError, NotFoundError
from ...resourceapi.gated_fields import gate_of
from ..inventory import Inventory, PoolContent
from ..validation import decoded
from .digest import digest
from .leadership import Leadership
from .pack import PublishedNames, SliceContent, assign_existing, pack
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

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_MANY = 1024  # more devices than this are packed in a thread, so that other tasks run


_Age = tuple[str, str]  # creation time and UID of a slice; the smaller value is the older slice


class SupersededError(Exception):
    """The plan became wrong during the writes, or this instance may no longer write: plan again."""


@dataclass(frozen=True)
class Sync:
    """The writes of one synchronisation. ``version`` is the inventory's version that they were planned from.

    The first ``with_removals`` plans remove devices from their pools.
    """

    plans: Sequence[WritePlan]
    with_removals: int
    existing: Sequence[ExistingSlice]
    version: int

    @property
    def writes(self) -> int:
        return sum(p.count for p in self.plans)


class Syncer:
    """Compares and writes; :class:`Publisher` decides when."""

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        scope: Scope,
        metrics: Metrics,
        times: TaintTimes,
        leadership: Leadership,
    ) -> None:
        self.settled: Mapping[str, str] = {}
        """Slice → its resource version when all slices were as wanted."""
        self.settled_at = -1
        """The inventory's version at that time."""
        self.dropped: set[str] = set()
        """Fields without a known gate that the API server dropped."""
        self._client = client
        self._inventory = inventory
        self._scope = scope
        self._metrics = metrics
        self._times = times
        self._leadership = leadership
        # slice → digests of the spec that was sent, and of the spec that the API server stored
        self._stored_digests: dict[str, tuple[bytes, bytes]] = {}
        # pool → slice → its content when all slices were as wanted
        self._layout: dict[str, dict[str, PublishedNames]] = {}
        self._metadata: JSON | None = None
        self._found: dict[str, ExistingSlice] = {}  # slices as last listed
        # pools of which another publisher has slices, each with a message
        self._other_publishers: Mapping[str, str] = {}
        # slice → its version, and the mark of the content that it was found equal to
        self._known_equal: dict[str, tuple[str, bytes]] = {}

    def forget(self) -> None:
        """Forgets the metadata of other objects, such as the Node, which may have changed."""
        self._metadata = None

    def forget_server_behavior(self) -> None:
        """Forgets what the API server kept and dropped, because it may behave differently now; all slices are compared again."""
        self._found, self._known_equal, self._stored_digests = {}, {}, {}
        self.dropped.clear()
        self.settled_at = -1  # so the next write does not count as a conflict with another writer

    async def look(self, resource: Resource) -> tuple[int, list[PoolContent], list[ExistingSlice]]:
        """Returns the inventory's version, the wanted pools, and our slices in the API server.

        Raises:
            ApiError: the slices cannot be listed.
            SupersededError: another publisher publishes some of our pools.
        """
        pools = frozenset(self._inventory.pools)
        async with self._leadership.lock.taken():
            pass  # waits until a previous leader has no write in flight
        version, contents = self._inventory.version, self._inventory.contents()
        existing = await self._existing(resource, {c.name for c in contents})
        taken = {p: why for p, why in self._other_publishers.items() if p in pools}
        if await self._inventory.set_taken(taken):
            raise SupersededError
        return version, contents, existing

    async def _existing(self, resource: Resource, pools: Collection[str]) -> list[ExistingSlice]:
        """Lists our slices. Decodes them one at a time, and lets other tasks run in between.

        Raises:
            ApiError: the slices cannot be listed, or the response is malformed.
        """
        out: list[ExistingSlice] = []
        others: dict[str, tuple[_Age, str]] = {}
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
                    others[pool] = min(others.get(pool, (age, by)), (age, by))
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                raise ApiError(
                    f"list resourceslices: the response contains an object that is not a ResourceSlice ({describe(e)})"
                ) from e
            del obj
            await asyncio.sleep(0)
        self._found = {s.name: s for s in out}
        # If two publishers publish a pool, the older publication stays. Both decide by the same rule, so exactly one stays.
        own_ages: dict[str, _Age] = {}
        for slice_ in out:
            age = _age(slice_.metadata)
            own_ages[slice_.pool] = min(own_ages.get(slice_.pool, age), age)
        self._other_publishers = {p: by for p, (age, by) in others.items() if p not in own_ages or age < own_ages[p]}
        return out

    # --- planning -------------------------------------------------------------------------------

    async def plan(self, resource: Resource) -> Sync:
        """Plans the writes of all pools. Raises :class:`ApiError` and :class:`SupersededError`."""
        if self._metadata is None:
            self._metadata = await self._scope.metadata(self._client)
        version, contents, existing = await self.look(resource)
        self._times.learn(existing)
        names = {s.name for s in existing}
        self._stored_digests = {n: e for n, e in self._stored_digests.items() if n in names}
        self._known_equal = {n: g for n, g in self._known_equal.items() if n in names}
        wanted = {c.name for c in contents}
        plans = []
        # Removed pools, and pools that lose a device, come first, because the device may have moved to another pool.
        for pool in sorted({s.pool for s in existing} - wanted):
            frame = PoolFrame(self._scope.driver, pool, {}, newest([s for s in existing if s.pool == pool]), 0)
            plans.append(make_plan([], [s for s in existing if s.pool == pool], frame, ()))
        rest: list[WritePlan] = []
        for content in contents:
            of_pool = [s for s in existing if s.pool == content.name]
            stay = {d.name for d in content.devices}
            has_removals = any(name not in stay for s in of_pool for name in s.held.devices)
            (plans if has_removals else rest).append(await self._plan_pool(content, of_pool))
        return Sync([*plans, *rest], len(plans), existing, version)

    async def _plan_pool(self, pool: PoolContent, existing: list[ExistingSlice]) -> WritePlan:
        by_name = {s.name: s for s in existing}
        filled = pool.devices or pool.counter_sets
        before, gone = _before(existing, self._layout.get(pool.name, {}) if filled else {})
        slices = await self._packed(pool, before)
        if not all(is_numbered(name) for name in before) and not _in_order(pool, slices):
            # Another writer's names do not sort in the author's order, so all slices are created again, once, with numbered names.
            slices = await self._packed(pool, {})
            before = {}
        for slice_ in slices:
            if slice_.key in gone:
                slice_.key = None  # create it again with the same content
        nodes = {"perDeviceNodeSelection": True} if pool.per_device else self._scope.nodes(pool.nodes)
        fields = {**nodes, **pool.options}
        frame = first_frame(slices, existing, self._scope.driver, pool.name, fields)
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
        if not plan.rewrites_all or not before:
            return plan
        # All slices are written anyway, so the author's order costs no further write.
        slices = await self._packed(pool, {})
        assign_existing(slices, {name: held for name, held in before.items() if name in by_name})
        frame = first_frame(slices, existing, self._scope.driver, pool.name, fields)
        ordered = make_plan(slices, existing, frame, {s.key for s in slices if s.key}, ())
        return ordered if ordered.rewrites_all and ordered.count <= plan.count else plan

    async def _packed(self, pool: PoolContent, before: Mapping[str, PublishedNames]) -> list[SliceContent]:
        if len(pool.devices) < _MANY:
            return pack(pool.devices, pool.counter_sets, before, self._inventory.full)
        return await asyncio.to_thread(pack, pool.devices, pool.counter_sets, before, self._inventory.full)

    def _as_wanted(self, have: ExistingSlice, content: SliceContent, frame: PoolFrame) -> bool:
        """Whether a slice's spec needs no write.

        The API server may store a spec differently from the request, for example without unknown fields. Such a spec is not written again.
        """
        mark = (have.version, frame.mark(content))
        if self._known_equal.get(have.name) == mark:
            return True
        want = frame.digest(content)
        if want != have.digest and self._stored_digests.get(have.name) != (want, have.digest):
            return False
        self._known_equal[have.name] = mark
        return True

    def _has_metadata(self, have: ExistingSlice) -> bool:
        want = self._metadata or {}
        labels = have.metadata.get("labels") or {}
        return all(labels.get(k) == v for k, v in want.get("labels", {}).items()) and (
            "ownerReferences" not in want or have.metadata.get("ownerReferences") == want["ownerReferences"]
        )

    # --- writing --------------------------------------------------------------------------------

    async def carry_out(self, sync: Sync, resource: Resource) -> None:
        """Carries out the writes. A pool that the API server rejects does not prevent the writes of other pools.

        Completed writes are not undone on an error.

        Raises:
            ApiError: a write failed. If the API server rejected the write, this is raised after the writes of the other pools.
            SupersededError: the plan became wrong.
        """
        settled = {s.name: s.version for s in sync.existing}
        if sync.writes:
            self._metadata = await self._scope.metadata(self._client)
        refused: ApiError | None = None
        for i, plan in enumerate(sync.plans):
            try:
                await self._carry_out_pool(plan, resource, settled)
            except ApiError as e:
                # A device that this pool must lose first may be planned for another pool, so the other writes must wait.
                if not isinstance(e, (*REFUSED, ForbiddenError)) or i < sync.with_removals:
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
            layout[name] = PublishedNames(devices, [c["name"] for c in write.content.counter_sets])
        for slice_ in plan.last:
            async with self._writing():
                await self._delete(resource, slice_)
            settled.pop(slice_.name, None)
            layout.pop(slice_.name, None)
        if plan.count:
            made = sum(w.over is None for w in plan.writes)
            log.info(
                "published %d devices in %d slices (%d created, %d updated, %d deleted)",
                plan.devices, plan.frame.count, made, len(plan.writes) - made, len(plan.first) + len(plan.last),
                extra={"pool": plan.frame.pool},
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Holds the write lock for one write.

        Raises :class:`SupersededError` if this instance no longer leads: two writers at once would mix two results in one generation.
        """
        async with self._leadership.lock.taken():
            if not self._leadership.holds():
                raise SupersededError
            yield

    async def _write(self, resource: Resource, write: SliceWrite, frame: PoolFrame) -> tuple[str, str]:
        await asyncio.sleep(0)
        obj = write.object(frame, self._scope.middle, self._metadata or {}, self._times.of(frame.pool))
        sent = as_sent(obj, resource)
        try:
            response = await (
                self._client.update(resource, sent) if write.over else self._client.create(resource, sent)
            )
        except ApiError as e:
            if reasons := refused_devices(e, obj):
                await self._inventory.refuse(reasons, frame.pool)
            raise
        del sent
        self._metrics.inc("slice_writes_total", verb="update" if write.over else "create")
        stored = in_v1(response, resource)
        meta = stored["metadata"]
        await asyncio.sleep(0)
        await self._check_stored(obj, stored, write.content, frame)
        return meta["name"], meta["resourceVersion"]

    async def _delete(self, resource: Resource, slice_: ExistingSlice) -> None:
        meta = slice_.metadata
        with contextlib.suppress(NotFoundError):
            await self._client.delete(resource, meta["name"], uid=meta["uid"], version=meta["resourceVersion"])
            self._metrics.inc("slice_writes_total", verb="delete")

    async def _check_stored(self, sent: JSON, stored: JSON, content: SliceContent, frame: PoolFrame) -> None:
        """Compares the stored spec with the sent spec. The API server silently drops unknown fields; each such field is logged once."""
        want, same = frame.digest(content), sent["spec"] == stored["spec"]
        has = want if same else digest(stored["spec"])
        have = existing_slice(stored, has)
        self._stored_digests[have.name], self._found[have.name] = (want, has), have
        self._known_equal[have.name] = (have.version, frame.mark(content))
        if same:
            return
        paths = lost(sent["spec"], stored["spec"])
        off = self._inventory.gates_off | {gate for path in paths if (gate := gate_of(path))}
        new_fields = sorted(path for path in paths - self.dropped if not gate_of(path))
        if new_fields:
            self.dropped.update(new_fields)
            self._metrics.inc("dropped_fields_total", len(new_fields))
            log.error(
                "devices are published without fields that the API server does not know: %s",
                ", ".join(new_fields),
            )
        if off != self._inventory.gates_off:
            await self._inventory.set_gates_off(off)
            raise SupersededError


def _age(metadata: Mapping[str, Any]) -> _Age:
    return str(metadata.get("creationTimestamp") or "~"), str(metadata.get("uid") or "")


def _in_order(pool: PoolContent, slices: Sequence[SliceContent]) -> bool:
    """Whether the allocator, which reads slices in the order of their names, meets the devices in the author's order."""
    place = {d.name: i for i, d in enumerate(pool.devices)}
    order = [place[d.name] for s in in_order_of_names(slices) for d in s.devices]
    return order == sorted(order)


def _before(
    existing: Sequence[ExistingSlice], layout: Mapping[str, PublishedNames]
) -> tuple[dict[str, PublishedNames], set[str]]:
    """Returns the previous content of slices, and the names of deleted slices, which are created again with the same content.

    If several slices contain a device, the slice of the newest generation keeps it. Among slices of one generation, it is the slice that
    had the device when all slices were as wanted. A slice that loses all its content in this way is left out.
    """
    rank = {s.name: (-s.generation, s.name not in layout, s.name) for s in existing}
    devices_of = {s.name: s.held for s in sorted(existing, key=lambda s: rank[s.name])}
    gone = {name for name in layout if name not in devices_of}
    devices_of |= {name: layout[name] for name in sorted(gone)}
    out: dict[str, PublishedNames] = {}
    assigned: set[tuple[bool, str]] = set()
    for name, held in devices_of.items():
        rest = PublishedNames(
            [d for d in held.devices if (False, d) not in assigned],
            [c for c in held.counter_sets if (True, c) not in assigned],
        )
        assigned |= {*((False, d) for d in held.devices), *((True, c) for c in held.counter_sets)}
        if rest.devices or rest.counter_sets or (name not in gone and not held.devices and not held.counter_sets):
            out[name] = rest
    return dict(sorted(out.items())), gone
