"""Synchronises the API server's slices with the inventory.

:meth:`Syncer.plan` lists the slices, packs the devices of each pool and plans the writes. :meth:`Syncer.carry_out` sends the writes. The
Syncer keeps state between synchronisations, to save reads and writes and to detect conflicts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

import msgspec

from ...base.json_types import JSON
from ...base.telemetry.logs import log_sample
from ...base.telemetry.metrics import Metrics
from ...base.text import counted
from ...base.threads import in_own_thread
from ...errors import ApiError, describe
from ...kube import KubeClient, Resource
from ...kube.decoding import Bare
from ...kube.errors import ForbiddenError, NotFoundError
from ...resourceapi.gated_fields import gate_of
from ..inventory import Inventory
from ..pool_state import PoolState
from .leadership import Leadership
from .pack import WantedSlice, assign_existing, pack
from .plan import WritePlan, common_fields, is_in_order, is_numbered, make_plan, previous_contents
from .scope import Scope
from .server_response import (
    REJECTIONS,
    as_sent,
    dropped_by_server,
    in_v1,
    rejected_devices,
    with_rejected_information,
)
from .slice_objects import CommonSliceFields, ExistingSlice, digest, existing_slice

log = logging.getLogger(__name__)


class SupersededError(Exception):
    """The plan is out of date, or this instance may no longer write. The caller must plan again.

    Attributes:
        gates_off: the feature gates that the API server has off, if a response showed them; else None.
    """

    def __init__(self, gates_off: frozenset[str] | None = None) -> None:
        self.gates_off = gates_off


@dataclass(frozen=True)
class Sync:
    """The planned writes of one synchronisation.

    Attributes:
        plans: one plan for each pool, in the order in which they are carried out.
        version: the inventory's version from which the writes were planned.
        is_repair: whether the writes restore slices that another writer changed since they were as wanted. The devices did not change.
    """

    plans: Sequence[WritePlan]
    version: int
    is_repair: bool

    @property
    def writes(self) -> int:
        return sum(p.count for p in self.plans)


class Syncer:
    """Plans and sends the writes. :class:`.Publisher` decides when."""

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        scope: Scope,
        metrics: Metrics,
        leadership: Leadership,
    ) -> None:
        self.dropped: set[str] = set()
        """Fields that the API server dropped and that belong to no known gate."""
        self._client = client
        self._inventory = inventory
        self._scope = scope
        self._metrics = metrics
        self._leadership = leadership
        # By name: the slices when all of them were last as wanted, updated with the writes since then.
        self._settled: dict[str, ExistingSlice] = {}
        self._settled_at = -1  # the inventory's version when all slices were last as wanted
        # Slices that the API server stored otherwise than they were sent, for example without unknown fields: digests of both specs.
        # They need no write while both digests stay the same.
        self._stored_otherwise: dict[str, tuple[bytes, bytes]] = {}
        self._metadata: JSON = {}  # of all slices
        # Pool → device → its taints, for devices with a taint that has a time. The time stays in memory if the kubelet deletes the slices.
        self._timed: dict[str, dict[str, list[JSON]]] = {}
        self._found: dict[str, ExistingSlice] = {}  # the slices as last listed, updated with the writes since then

    # --- planning -------------------------------------------------------------------------------

    async def plan(self, resource: Resource) -> Sync:
        """Plans the writes of all pools.

        Raises:
            ApiError: the slices cannot be listed.
            SupersededError: another publisher has begun or stopped publishing one of this publisher's pools.
        """
        self._metadata = await self._scope.metadata(self._client)
        pools = frozenset(self._inventory.pools)
        async with self._leadership.lock():
            pass  # waits until the previous leader has no write in flight
        version, contents = self._inventory.version, self._inventory.contents()
        names = {c.name for c in contents}
        items = (await self._client.page(resource, fields=self._scope.selector)).items or []
        existing, others = await in_own_thread(self._read_slices, items, names, resource)
        self._found = {s.name: s for s in existing}
        if await self._inventory.set_taken({p: why for p, why in others.items() if p in pools}):
            raise SupersededError
        self._timed = {}
        for slice_ in (*self._settled.values(), *existing):
            times = self._timed.setdefault(slice_.pool, {})
            for (
                name
            ) in slice_.names.devices:  # another instance may have removed a taint: added again, it is a new taint
                times.pop(name, None)
            times.update(slice_.timed)
        self._stored_otherwise = {n: d for n, d in self._stored_otherwise.items() if n in self._found}
        plans = await in_own_thread(self._plan_pools, contents, existing)
        changed = {s.name: s.version for s in self._settled.values()} != {s.name: s.version for s in existing}
        return Sync(plans, version, changed and self._settled_at == version and any(p.count for p in plans))

    def _read_slices(
        self, items: Sequence[bytes], pools: Collection[str], resource: Resource
    ) -> tuple[list[ExistingSlice], dict[str, str]]:
        """Returns the publisher's slices, and the pools that another publisher publishes, each with a message.

        Decodes one slice at a time, to save memory. Raises :class:`ApiError` if the response is malformed.
        """
        out: list[ExistingSlice] = []
        # pool → creation time and UID of its oldest slice; and, if another publisher wrote that slice, the message about that publisher
        oldest: dict[str, tuple[str, str, str]] = {}
        for item in items:
            try:
                meta = msgspec.json.decode(item, type=Bare).metadata
                known = self._found.get(meta.name)
                if known and self._scope.exact and (known.uid, known.version) == (meta.uid, meta.resource_version):
                    out.append(known)
                    continue
                obj = in_v1(msgspec.json.decode(item), resource)
                owned = self._scope.owns(obj, pools)
                by = "" if owned else self._scope.rival(obj)
                if owned:
                    out.append(existing_slice(obj))
                if owned or by:
                    created, uid = (str(obj["metadata"].get(k) or "~") for k in ("creationTimestamp", "uid"))
                    pool = str(obj["spec"]["pool"]["name"])
                    oldest[pool] = min(oldest.get(pool, (created, uid, by)), (created, uid, by))
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                raise ApiError(
                    f"list resourceslices: the response contains an object that is not a ResourceSlice ({describe(e)})"
                ) from e
        # If two publishers publish a pool, the publisher of the oldest slice continues. Both apply this rule, so exactly one continues.
        return out, {pool: by for pool, (_, _, by) in oldest.items() if by}

    def _plan_pools(self, contents: Sequence[PoolState], existing: Sequence[ExistingSlice]) -> list[WritePlan]:
        """Returns the plans. Plans that remove devices come first, because a device may move to another pool."""
        of_pool: dict[str, list[ExistingSlice]] = {}
        for slice_ in existing:
            of_pool.setdefault(slice_.pool, []).append(slice_)
        plans = [self._plan_pool(content, of_pool.pop(content.name, [])) for content in contents]
        for pool, slices in sorted(of_pool.items()):  # pools that are no longer published
            plans.append(make_plan([], slices, common_fields([], slices, self._scope.driver, pool, {}), ()))
        return sorted(plans, key=lambda plan: not plan.removes)

    def _plan_pool(self, pool: PoolState, existing: list[ExistingSlice]) -> WritePlan:
        by_name = {s.name: s for s in existing}
        filled = pool.devices or pool.counter_sets
        settled = {n: s.names for n, s in self._settled.items() if s.pool == pool.name and filled}
        before, gone = previous_contents(existing, settled)
        slices = pack(pool.devices, pool.counter_sets, before, self._inventory.slice_size)
        if not all(is_numbered(name) for name in before) and not is_in_order(pool.devices, slices):
            # Another writer named these slices, and their names do not sort in the driver's order of devices. So all slices are created
            # again once, with numbered names.
            slices = pack(pool.devices, pool.counter_sets, {}, self._inventory.slice_size)
            before = {}
        for slice_ in slices:
            if slice_.name in gone:
                slice_.name = None  # create it again with the same content
        common = common_fields(slices, existing, self._scope.driver, pool.name, pool.fields)
        kept = [(by_name[s.name], s) for s in slices if s.name]
        changed = {have.name for have, slice_ in kept if not self._is_as_wanted(have, slice_, common)}
        touch = {have.name for have, _ in kept if have.name not in changed and not self._has_metadata(have)}
        plan = make_plan(slices, existing, common, changed, touch)
        if not plan.rewrites_all or not before:
            return plan
        # All slices are written anyway, so packing them in the driver's order of devices needs no further write.
        slices = pack(pool.devices, pool.counter_sets, {}, self._inventory.slice_size)
        assign_existing(slices, {name: names for name, names in before.items() if name in by_name})
        common = common_fields(slices, existing, self._scope.driver, pool.name, pool.fields)
        ordered = make_plan(slices, existing, common, {s.name for s in slices if s.name})
        return ordered if ordered.rewrites_all and ordered.count <= plan.count else plan

    def _is_as_wanted(self, have: ExistingSlice, content: WantedSlice, common: CommonSliceFields) -> bool:
        """Whether a slice's spec needs no write."""
        wanted = digest(common.spec(content, {}))
        return wanted == have.digest or self._stored_otherwise.get(have.name) == (wanted, have.digest)

    def _has_metadata(self, have: ExistingSlice) -> bool:
        want = self._metadata
        labels = have.metadata.get("labels") or {}
        return all(labels.get(k) == v for k, v in want.get("labels", {}).items()) and (
            "ownerReferences" not in want or have.metadata.get("ownerReferences") == want["ownerReferences"]
        )

    # --- writing --------------------------------------------------------------------------------

    async def carry_out(self, sync: Sync, resource: Resource) -> None:
        """Sends the writes, pool after pool.

        If the API server rejects or forbids a write, the writes of the other pools still follow, unless the plan removes devices.

        Raises:
            ApiError: a write failed. Completed writes stay.
            SupersededError: the plan is out of date.
        """
        rejected: ApiError | None = None
        for plan in sync.plans:
            try:
                await self._carry_out_pool(plan, resource)
            except ApiError as e:
                # A device that this plan removes may be in the plan of another pool, which must not be written before the removal.
                if not isinstance(e, (*REJECTIONS, ForbiddenError)) or plan.removes:
                    raise
                rejected = rejected or e
        if rejected:
            raise rejected
        self._settled, self._settled_at = dict(self._found), sync.version
        self._metrics.set("slices", len(self._settled))

    async def _carry_out_pool(self, plan: WritePlan, resource: Resource) -> None:
        for slice_ in plan.delete_first:
            await self._delete(resource, slice_)
        for number, content in plan.writes:
            await self._write(resource, number, content, plan.common)
        for slice_ in plan.delete_last:
            await self._delete(resource, slice_)
        if plan.count:
            made = sum(content.name is None for _, content in plan.writes)
            log.info(
                "published %s in %s (%d created, %d updated, %d deleted)",
                counted(plan.devices, "device"),
                counted(plan.common.count, "slice"),
                made,
                len(plan.writes) - made,
                len(plan.delete_first) + len(plan.delete_last),
                extra={"pool": plan.common.pool},
            )

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Holds the write lock for one write.

        Raises :class:`SupersededError` if this instance may no longer write: two writers at once would mix their slices in one generation.
        """
        async with self._leadership.lock():
            if not self._leadership.may_write():
                raise SupersededError
            yield

    async def _write(self, resource: Resource, number: int, content: WantedSlice, common: CommonSliceFields) -> None:
        async with self._writing():
            existing = self._found[content.name] if content.name else None
            timed = self._timed.get(common.pool, {})
            obj = common.object(number, content, existing, self._scope.node, self._metadata, timed)
            sent = as_sent(obj, resource)
            try:
                response = await (
                    self._client.update(resource, sent) if existing else self._client.create(resource, sent)
                )
            except ApiError as e:
                if reasons := rejected_devices(e, obj):
                    information = with_rejected_information(e, obj)
                    log_sample(
                        log,
                        logging.WARNING,
                        "the API server rejects the effect None: devices are published without informational taints: %s",
                        sorted(information),
                    )
                    devices = {d.name: d.device for d in content.devices}
                    await self._inventory.reject(reasons, common.pool, devices, information)
                raise
            self._metrics.inc("slice_writes_total", verb="update" if existing else "create")
            self._check_stored(obj, in_v1(response, resource))

    async def _delete(self, resource: Resource, slice_: ExistingSlice) -> None:
        async with self._writing():
            with contextlib.suppress(NotFoundError):
                await self._client.delete(resource, slice_.name, uid=slice_.uid, version=slice_.version)
                self._metrics.inc("slice_writes_total", verb="delete")
        self._found.pop(slice_.name, None)
        self._settled.pop(slice_.name, None)

    def _check_stored(self, sent: JSON, stored: JSON) -> None:
        """Compares the stored spec with the sent spec, because the API server silently drops unknown fields. Logs each such field once.

        Raises :class:`SupersededError` if a dropped field shows that a gate is off: devices must then be published without this gate.
        """
        have = existing_slice(stored)
        self._found[have.name] = self._settled[have.name] = have
        if sent["spec"] == stored["spec"]:
            return
        self._stored_otherwise[have.name] = (digest(sent["spec"]), have.digest)
        paths = dropped_by_server(sent["spec"], stored["spec"])
        new_fields = sorted(path for path in paths - self.dropped if not gate_of(path))
        if new_fields:
            self.dropped.update(new_fields)
            self._metrics.inc("dropped_fields_total", len(new_fields))
            log.error(
                "devices are published without fields that the API server does not know: %s",
                ", ".join(new_fields),
            )
        if not (off := {gate for path in paths if (gate := gate_of(path))}) <= self._inventory.gates_off:
            raise SupersededError(self._inventory.gates_off | off)

    def forget_server_behavior(self) -> None:
        """Forgets stored specs and dropped fields, because the API server may behave differently now. All slices are compared again."""
        self._found, self._stored_otherwise = {}, {}
        self.dropped.clear()
        self._settled_at = -1  # so that the next write does not count as a conflict with another writer
