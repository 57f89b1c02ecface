"""Keeps the API server's slices of a driver equal to the inventory, for the pool of one node or for pools without a single node.

The publisher is level-triggered. A synchronisation lists the slices, compares them with the inventory, and writes the differences. The
next synchronisation follows when the slices or the inventory change. So slices that the kubelet deletes at its start are written again
at once. Of several instances on a node, only the newest instance writes. External failures do not stop the publisher: each failure is
logged once, counted, and retried with backoff.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from ...base.backoff import Backoff
from ...base.telemetry.logs import log_sample
from ...base.telemetry.metrics import Metrics
from ...base.wakeup import is_set_within
from ...errors import ApiError, describe
from ...kube import KubeClient, Reflector
from ...kube.errors import ConflictError, ForbiddenError
from ...resourceapi.gated_fields import slice_gates
from ..inventory import Inventory
from .gate_probe import GateProbe
from .leadership import Leadership
from .scope import Scope
from .server_response import REJECTIONS
from .status import PoolStatus, PublisherStatus
from .sync import SupersededError, Syncer

log = logging.getLogger(__name__)
_SETTLE = 0.02  # seconds to collect events before a synchronisation
_FOLLOW = 2.0  # seconds between checks whether the publishing instance still runs
_REPORT_AFTER = 5.0  # seconds until a failing watch is reported; a broken connection usually recovers sooner
_DEAD_AFTER = 180.0  # seconds without any message of the API server until the watch counts as failed
_RETRY_REJECTED_AFTER = 300.0  # seconds before rejected objects are sent again
_MAX_PAUSE = 30.0  # seconds between two attempts after failures
# The first repairs of slices that another writer changed follow at once, because the changes may be accidents. Then the pause from the
# last write doubles with each repair, between these seconds. The count restarts after _PEACE seconds without a write.
_REPAIRS_AT_ONCE = 3
_FIRST_REPAIR_PAUSE, _LAST_REPAIR_PAUSE, _PEACE = 5.0, 60.0, 120.0


async def _ignore(off: frozenset[str]) -> None:
    pass


class Publisher:
    """Publishes the pools of an inventory.

    Args:
        scope: decides which slices belong to this publisher.
        leadership: decides whether this instance publishes. An instance that does not publish writes nothing, and is always ready.
        gates_off: a coroutine that the publisher awaits with the feature gates that the API server has off, when these change. It may
            update the inventory.

    Attributes:
        resync: seconds between synchronisations without any event, and until rejected devices are sent again although there are events.
    """

    def __init__(
        self,
        client: KubeClient,
        inventory: Inventory,
        scope: Scope,
        metrics: Metrics,
        leadership: Leadership,
        gates_off: Callable[[frozenset[str]], Awaitable[None]] = _ignore,
    ) -> None:
        self.client = client
        self.inventory = inventory
        self.scope = scope
        self.metrics = metrics
        self.leadership = leadership
        self.published = asyncio.Event()
        self.leads = True
        self.resync = 600.0
        self._on_gates_off = gates_off
        self._syncer = Syncer(client, inventory, scope, metrics, leadership)
        self._probe = GateProbe(client, inventory, scope)
        self._fault = ""
        self._backoff = Backoff(0.2, _MAX_PAUSE, jitter=0.5)
        self._repairs = 0  # in succession, of slices that another writer changed
        self._written_at = 0.0
        self._dirty = asyncio.Event()  # the slices or the inventory changed
        self._urgent = asyncio.Event()  # ends a pause before the next attempt
        # Whether the watch has reconnected since the last attempt, perhaps to an API server with other gates.
        self._reconnected = False
        self._ended = asyncio.Condition()  # notified after each attempt
        self._pools: tuple[PoolStatus, ...] = ()
        self._current_at = -1  # the inventory's version that was last published
        self._published_at = 0.0
        self._reflector = Reflector(client, "resourceslices", fields=scope.selector, cut=self._note_reconnect)
        self._created_at = self._forgotten_at = time.monotonic()
        metrics.measure("devices_not_published", lambda: float(len(inventory.rejected)))
        metrics.measure("publisher", lambda: float(self.leads))
        # read at each scrape, because the watch may fail without a failed write
        metrics.measure("publish_failing", lambda: float(bool(self.fault)))

    @property
    def fault(self) -> str:
        """Why the slices are not as wanted, or why changes by other writers are not noticed; empty if there is no fault."""
        return self._fault or self._watch_fault()

    def _watch_fault(self) -> str:
        reflector = self._reflector
        silent_for = time.monotonic() - (reflector.last_message or self._created_at)
        if reflector.fault and (silent_for > _REPORT_AFTER or not reflector.last_message):
            return f"changes of the slices by other writers are not noticed: {reflector.fault}"
        if silent_for > _DEAD_AFTER:
            silence = f"no response of the API server for {silent_for:.0f} s"
            return f"changes of the slices by other writers are not noticed: {silence}"
        return ""

    def not_ready(self) -> list[str]:
        """Returns why the publisher is not ready; empty if the slices are published and up to date."""
        if not self.published.is_set():
            return [f"slices are not published{': ' + self.fault if self.fault else ''}"]
        out = [f"slices are not up to date: {self.fault}"] if self.fault else []
        inventory = self.inventory
        if inventory.rejected and not inventory.gates_off and not any(c.devices for c in inventory.contents()):
            out.append("no device can be published, because each device of the driver has a fault")
        return out

    @property
    def status(self) -> PublisherStatus:
        """The present state of the publisher."""
        return PublisherStatus(
            pools=self._pools,
            rejected=dict(self.inventory.rejected),
            gates_off=self.inventory.gates_off,
            dropped=frozenset(self._syncer.dropped),
            fault=self.fault,
            current=self._is_current(),
            leads=self.leads,
            at=self._published_at,
        )

    def _is_current(self) -> bool:
        return self.inventory.known and self._current_at == self.inventory.version and not self._fault

    async def current(self) -> PublisherStatus:
        """Waits until the slices have the devices that the driver last returned."""
        async with self._ended:
            await self._ended.wait_for(self._is_current)
        return self.status

    async def run(self) -> None:
        """Publishes. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_inventory())
            tasks.create_task(self._follow_slices())
            tasks.create_task(self._sync_forever())

    async def _follow_inventory(self) -> None:
        seen = 0
        while True:
            seen = await self.inventory.changed(seen)
            self._dirty.set()
            self._urgent.set()  # a change of the devices is published at once

    async def _follow_slices(self) -> None:
        async for _ in self._reflector.events():
            self._dirty.set()

    def kubelet_registered(self) -> None:
        """Forgets the conflicts so far and ends the pause before the next attempt. Call it when a kubelet has accepted the plugin.

        A kubelet that restarts deletes all slices of its node. This deletion is not a conflict with another writer.
        """
        self._repairs = 0
        self._urgent.set()

    # --- when to write --------------------------------------------------------------------------

    def _note_reconnect(self) -> None:
        """Ends a pause, because the API server may have been upgraded or reconfigured while the connection was broken."""
        self._reconnected = True
        self._dirty.set()
        self._urgent.set()

    async def _sync_forever(self) -> None:
        while True:
            await self._wait()
            await asyncio.sleep(_SETTLE)
            self._dirty.clear()
            if self._reconnected:
                self._reconnected = False
                self._syncer.forget_server_behavior()
                await self._forget()
            if not self.inventory.known:
                continue  # the driver has not returned its devices yet: an empty pool would be wrong
            self._urgent.clear()
            pause = await self._attempt()
            async with self._ended:
                self._ended.notify_all()
            if pause:
                if not await is_set_within(self._urgent, pause) and pause == _RETRY_REJECTED_AFTER:
                    await self._forget()
                self._dirty.set()

    async def _wait(self) -> None:
        """Waits for an event or the next resync. An instance that does not publish waits until it may publish, if that is earlier."""
        until = self._forgotten_at + self.resync * random.uniform(0.8, 1.0)
        while not self._dirty.is_set() and (remaining := until - time.monotonic()) > 0:
            if not self.leads and self.leadership.may_write():
                return
            await is_set_within(self._dirty, remaining if self.leads else min(remaining, _FOLLOW))
        if time.monotonic() >= until:
            await self._forget()

    async def _forget(self) -> None:
        """Forgets probed gates and rejections, because the API server may have been upgraded."""
        self._forgotten_at = time.monotonic()
        self._probe.forget()
        await self.inventory.clear_rejections()

    async def _attempt(self) -> float:
        """Runs one synchronisation and handles every failure. Returns the pause before the next attempt in seconds; 0 for no pause."""
        try:
            self.leads = self.leadership.may_write()
            if not self.leads:  # another instance publishes
                self._mark_current(self.inventory.version)
                return 0.0
            return await self._publish()
        except SupersededError as e:
            if e.gates_off is not None:
                await self._set_gates_off(e.gates_off)
            self._dirty.set()
            return 0.0
        except ApiError as e:
            return self._failed(e)
        except Exception as e:  # an unexpected response must not end the plugin
            return self._retry_later(
                f"unexpected exception while slices are published; please report it: {describe(e)}", logging.ERROR, e
            )

    async def _publish(self) -> float:
        """Plans the writes and sends them. Returns the pause before the next attempt in seconds; 0 for no pause.

        Raises:
            ApiError: a request failed.
            SupersededError: the plan is out of date, so plan again.
        """
        resource = await self.client.dra("resourceslices")
        await self._set_gates_off(await self._probe.find_gates_off(resource))
        sync = await self._syncer.plan(resource)
        if sync.is_repair and (delay := self._repair_delay()):
            times = self._repairs + 1
            self._set_fault(f"another writer changed or deleted slices {times} times; they are restored after a pause")
            return delay
        await self._syncer.carry_out(sync, resource)
        if sync.writes:
            self._repairs += sync.is_repair
            self._written_at = time.monotonic()
        self._backoff.reset()
        self._pools = tuple(
            PoolStatus(p.common.pool, p.common.generation, p.common.count, p.devices)
            for p in sync.plans
            if p.common.count
        )
        self.metrics.set("pools", len(self._pools))
        self._mark_current(sync.version)
        return 0.0

    async def _set_gates_off(self, off: frozenset[str]) -> None:
        before = self.inventory.gates_off
        if off == before:
            return
        if off < before:  # the driver may now return devices that need these gates
            await self.inventory.set_gates_off(off)
        # Otherwise the driver first withdraws the devices that the inventory would reject.
        await self._on_gates_off(off)
        await self.inventory.set_gates_off(off)
        if off:
            names = ", ".join(sorted(off))
            log.error(
                "the API server drops fields of feature gates: %s; devices are published as far as that is safe", names
            )
        else:
            log.info("all feature gates that this driver needs are on in the API server now")
        log_sample(log, logging.WARNING, "devices lack fields: %s", self.inventory.gate_notes())
        self.metrics.inc("dropped_fields_total", len(off - before))
        for gate in slice_gates():
            self.metrics.set("feature_gate_disabled", int(gate in off), gate=gate)

    def _repair_delay(self) -> float:
        """Returns the seconds until the slices may be restored. Two writers that restore their slices must not fill the API server."""
        now = time.monotonic()
        if now - self._written_at > _PEACE:
            self._repairs = 0
        failures = self._repairs + 1 - _REPAIRS_AT_ONCE
        pause = Backoff(_FIRST_REPAIR_PAUSE, _LAST_REPAIR_PAUSE, failures=failures).delay()
        return max(0.0, self._written_at + pause - now)

    # --- faults ---------------------------------------------------------------------------------

    def _failed(self, e: ApiError) -> float:
        if isinstance(e, REJECTIONS):
            # The API server would reject the same objects again, so the next attempt waits for a change of the devices.
            self._retry_later(
                f"the API server rejects the slices, so their devices cannot be scheduled: {e}", logging.ERROR
            )
            return _RETRY_REJECTED_AFTER
        if isinstance(e, ForbiddenError):
            return self._retry_later(f"not permitted to publish slices (see docs/deploy.md): {e}", logging.ERROR)
        return self._retry_later(
            f"cannot publish, retrying: {e}", logging.DEBUG if isinstance(e, ConflictError) else logging.WARNING
        )

    def _retry_later(self, fault: str, level: int, error: Exception | None = None) -> float:
        self.metrics.inc("publish_errors_total")
        self._set_fault(fault, level, error)
        return self._backoff.next()

    def _set_fault(self, fault: str, level: int = logging.WARNING, error: Exception | None = None) -> None:
        if fault != self._fault:
            log.log(level, "slices are not up to date: %s", fault, exc_info=error)
        self._fault = fault

    def _mark_current(self, version: int) -> None:
        self._fault = ""
        self._current_at, self._published_at = version, time.time()
        self.published.set()
