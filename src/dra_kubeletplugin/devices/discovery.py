"""Calls the driver's ``devices()`` or ``pools()`` at start, after events and at intervals, and passes the result to the inventory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ..base.backoff import Backoff
from ..base.telemetry.metrics import Metrics
from ..base.wakeup import Wakeup
from ..driver import Driver, Role
from ..driver.attachment import overrides
from ..driver.calls import Calls
from ..driver.diagnostics.author_errors import definition_place, reading_result
from ..errors import DraError, describe, printable
from ..host.events import kernel_events
from ..resourceapi.pools import Pool
from .inventory import Inventory
from .pool_state import Held

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Intervals of discovery, in seconds. After an event, the call waits a moment, so that a burst of events causes few calls."""

    interval: float = 60.0  # between calls without any event
    hang: float = 10.0  # a call that takes longer is reported as a fault
    settle: float = 0.2  # from an event until the call begins
    apart: float = 0.5  # from the end of one call to the start of the next
    retry: float = 1.0  # after the first failure; doubles up to ``interval``


def discovery_method(driver: Driver) -> str:
    """Returns the name of the driver's method that returns its devices."""
    return "pools" if overrides(driver, "pools") else "devices"


async def query_devices(driver: Driver, calls: Calls, node: str) -> object:
    """Calls the driver and returns its pools, not yet validated.

    If the driver does not override ``pools``, the result of ``devices`` becomes the pool of the node.

    Raises:
        DraError: the call failed; see :class:`Calls`.
    """
    if driver.role is Role.CONTROLLER and not overrides(driver, "pools"):
        return []  # devices() describes the pool of a node, and this process has no node
    if overrides(driver, "pools"):
        return await calls(driver.pools)
    devices = await calls(driver.devices)
    with reading_result(driver.devices):
        return [Pool(node, devices)]


class DeviceDiscovery:
    """Calls ``pools`` or ``devices``, one call at a time.

    A call that hangs is reported in :attr:`fault`. Its result is still used when it returns, and the next call waits for it.

    Args:
        held: returns the devices that claims hold. Raises :class:`DraError` if they cannot be read.
        sysfs: the sysfs whose kernel events cause a call. A described host has no kernel events.
    """

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        inventory: Inventory,
        held: Callable[[], Awaitable[Held]],
        metrics: Metrics,
        sysfs: Path,
        intervals: Intervals,
    ) -> None:
        self.last_success: float | None = None
        """When the last successful call ended, in unix seconds; None if no call has succeeded."""
        self.note = ""
        """A problem with published devices; empty if there is none."""
        self._driver = driver
        self._calls = calls
        self._inventory = inventory
        self._held = held
        self._metrics = metrics
        self._sysfs = sysfs
        self._intervals = intervals
        self._wakeup = Wakeup()
        self._ended = asyncio.Condition()
        self._rounds = (0, 0)  # the number of calls that began, and of calls that ended
        self._hangs = False
        self._began = 0.0
        self._backoff = Backoff(intervals.retry, intervals.interval, jitter=0.2)
        self._failure = ""

    def request(self) -> None:
        """Requests a call, because devices may have changed. Safe from any thread."""
        self._wakeup.request()

    async def set_gates_off(self, off: frozenset[str]) -> None:
        """Sets ``Driver.gates_off`` to the gates that the API server has off. The driver may then return other pools.

        If the driver has ``pools``, waits for the result of a new call, so that the first slices already fit the gates. It waits at most
        ``Intervals.hang`` seconds.
        """
        self._driver.gates_off = off
        if overrides(self._driver, "pools"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._intervals.hang):
                    await self.call_now()

    def claim_ended(self) -> None:
        """Requests a call if a device has vanished in use: the next call stops publishing it if its claim has ended."""
        if self._inventory.has_gone:
            self.request()

    @property
    def fault(self) -> str:
        """Why the published devices may be out of date; empty if they are up to date."""
        if self._hangs:
            return f"the driver's {discovery_method(self._driver)}() has not returned for {time.monotonic() - self._began:.0f} s"
        if self._failure:
            return f"{self._failure}; {self._consequence}"
        return ""

    @property
    def _consequence(self) -> str:
        what = f"{discovery_method(self._driver)}()"
        if self._inventory.known:
            return f"the devices that {what} last returned stay published"
        return f"no claim can be prepared until {what} succeeds"

    async def wait_for_first_call(self, timeout: float) -> bool:
        """Waits until a call has ended, successful or not. Returns False if no call has ended after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout), self._ended:
                await self._ended.wait_for(lambda: self._rounds[1] > 0)
        except TimeoutError:
            return False
        return True

    async def call_now(self) -> None:
        """Requests a call, and waits until a call that began after this request has ended, successful or not."""
        awaited = self._rounds[0] + 1
        self.request()
        async with self._ended:
            await self._ended.wait_for(lambda: self._rounds[1] >= awaited)

    async def run(self) -> None:
        """Calls the driver at once and then repeatedly. Never returns; external failures do not stop it."""
        # A controller's devices are not on the machine where the controller runs.
        subsystems = self._driver.subsystems if self._driver.role is Role.NODE else ()
        with kernel_events(self._sysfs, self._wakeup.request, subsystems):
            while True:
                self._wakeup.clear()
                await self._discover()
                await self._next()

    # --- one call -------------------------------------------------------------------------------

    async def _discover(self) -> None:
        self._began = time.monotonic()
        self._rounds = (self._rounds[0] + 1, self._rounds[1])
        call = asyncio.create_task(self._call_driver(), name="discovery")
        try:
            await asyncio.wait({call}, timeout=self._intervals.hang)
            if not call.done():
                self._hangs = True
                self._metrics.set("discovery_hanging", 1)
                log.error("discovery of devices hangs, so the last known devices stay published: %s", self.fault)
                await asyncio.wait({call})
                seconds = round(time.monotonic() - self._began, 3)
                log.warning("discovery of devices returned after it hung", extra={"duration_s": seconds})
        finally:
            call.cancel()
            self._hangs = False
            self._metrics.set("discovery_hanging", 0)
        self._record_result(call)
        async with self._ended:
            self._rounds = (self._rounds[0], self._rounds[0])
            self._ended.notify_all()

    async def _call_driver(self) -> None:
        pools = await query_devices(self._driver, self._calls, self._inventory.pool)
        try:
            async with asyncio.timeout(self._intervals.hang / 2):  # the driver is not to blame for records that hang
                held: Held | None = await self._held()
        except (DraError, TimeoutError) as e:
            why = e if isinstance(e, DraError) else "the records do not respond"
            log.warning(
                "cannot read which devices claims hold, so every vanished device stays published with a taint: %s", why
            )
            held = None
        is_first = not self._inventory.known
        method = getattr(self._driver, discovery_method(self._driver))
        self._inventory.place = definition_place(method)
        with reading_result(method):
            changed = await self._inventory.update(pools, held, discovery_method(self._driver))
        if changed:
            event = "found" if is_first else "changed"
            count, rejected = len(self._inventory), len(self._inventory.rejected)
            log.info("devices %s: now %d; not published: %d", event, count, rejected)
        before, self.note = self.note, self._missing_bind_note()
        if self.note and self.note != before:
            log.warning("pods may wait for binding conditions: %s", self.note)

    def _missing_bind_note(self) -> str:
        waits = (
            None
            if overrides(self._driver, "bind")
            else next((d.name for d in self._inventory if d.binding_conditions), None)
        )
        if waits is None:
            return ""
        return (
            f"device {printable(waits)} has binding conditions, and {type(self._driver).__name__} has no bind(): pods wait until "
            "another component sets the conditions, or until the scheduler's timeout"
        )

    def _record_result(self, call: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            if self._backoff.failures:
                log.info("discovery of devices works again after failures: %d", self._backoff.failures)
            self._backoff.reset()
            self._failure = ""
            self.last_success = time.time()
            self._metrics.set("discovery_last_success_timestamp_seconds", self.last_success)
            return
        text = error.message if isinstance(error, DraError) else describe(error)
        self._backoff.failures += 1
        self._metrics.inc("discovery_failures_total")
        if text != self._failure:
            # The traceback of a driver's exception is in the log already; any other exception is a bug in the framework.
            exception = None if isinstance(error, DraError) else error
            log.error("discovery of devices failed: %s; %s", text, self._consequence, exc_info=exception)
        self._failure = text

    # --- when to call again ---------------------------------------------------------------------

    async def _next(self) -> None:
        """Waits until the next call is due: after an event, or at the end of the interval. After a failure, the interval is shorter."""
        intervals = self._intervals
        ended = time.monotonic()
        if await self._wakeup.wait(self._backoff.delay() or intervals.interval):
            await asyncio.sleep(max(intervals.settle, ended + intervals.apart - time.monotonic()))
