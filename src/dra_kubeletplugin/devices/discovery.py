"""Looks at the devices: one look at a time, soon after whatever may have changed them, and again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ..base.telemetry.metrics import Metrics
from ..driver import Driver, Role
from ..driver.calls import Calls
from ..driver.diagnostics.author_errors import judging
from ..errors import DraError, describe, printable
from ..host.events import kernel_events
from ..resourceapi.gated_fields import Gate
from ..resourceapi.pools import Pool
from .inventory import Held, Inventory

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Seconds. ``quiet``: a burst of events is over after this, or after ``burst`` at the latest."""

    interval: float = 60.0  # between looks without any event
    hang: float = 10.0  # a look that takes longer is told as a fault
    quiet: float = 0.2
    burst: float = 1.0
    apart: float = 0.5  # from the end of one look to the start of the next
    retry: float = 1.0  # after the first failure; it doubles, up to ``interval``


def request_rescan(driver: Driver) -> str:
    """The method that tells a driver's devices."""
    return "pools" if driver.answers_pools else "devices"


async def query_devices(driver: Driver, calls: Calls, node: str) -> object:
    """The driver's pools, which may be anything; those of one that has only ``devices`` are made here.

    Raises what ``calls`` does.
    """
    if driver.answers_pools:
        return await calls(driver.pools)
    if driver.role is Role.CONTROLLER:
        return []  # one pool of a node, and this process has none
    found = await calls(driver.devices)
    with judging(driver.devices):
        return [Pool(node, found)]


class DeviceDiscovery:
    """Owns the calls of ``pools`` or ``devices``, so that they are never made twice at once and the newest answer wins.

    A look that hangs holds up nothing else: it is told in :attr:`fault`, and its answer is taken when it comes.

    Args:
        held: the devices that claims hold, as pool and name; may raise :class:`DraError` where that is not known now.
        sysfs: where kernel events are about; none come for a described host.
    """

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        inventory: Inventory,
        held: Callable[[], Awaitable[Held]],
        metrics: Metrics,
        sysfs: Path,
        pace: Intervals,
    ) -> None:
        self.last_success: float | None = None
        """When the driver last answered, in unix seconds."""
        self.note = ""
        """What is odd about the devices and keeps nobody from publishing them."""
        self._driver = driver
        self._calls = calls
        self._inventory = inventory
        self._held = held
        self._metrics = metrics
        self._sysfs = sysfs
        self._pace = pace
        self._wanted = asyncio.Event()
        self._ended = asyncio.Condition()
        self._looks = (0, 0)  # begun, ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hangs = False
        self._began = 0.0
        self._failures = 0
        self._failure = ""

    def request(self) -> None:
        """Something may have changed: a look follows soon. From any thread."""
        if self._loop is None:
            return  # the first look is still to come
        with contextlib.suppress(RuntimeError):  # the loop is closed: a vendor's thread outlives the plugin
            self._loop.call_soon_threadsafe(self._wanted.set)

    def gates_off(self, off: frozenset[Gate]) -> None:
        """The server was found without these: the driver may have a layout of its devices that it understands."""
        self._driver.gates_off = off
        if self._driver.answers_pools:
            self.request()

    def claim_ended(self) -> None:
        """A device that vanished in use goes from the slices when its claim does."""
        if self._inventory.has_gone:
            self.request()

    @property
    def fault(self) -> str:
        """Why the devices may be others than those published; empty where all is well."""
        if self._hangs:
            return f"{request_rescan(self._driver)}() of the driver has not answered for {time.monotonic() - self._began:.0f} s"
        if self._failure:
            return f"{self._failure}; {self._consequence}"
        return ""

    @property
    def _consequence(self) -> str:
        what = f"{request_rescan(self._driver)}()"
        if self._inventory.known:
            return f"the last answer of {what} stays in force"
        return f"no device can be given out until {what} succeeds"

    async def first_look(self, timeout: float) -> bool:
        """Waits until a look has ended, well or not; False where none has within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout), self._ended:
                await self._ended.wait_for(lambda: self._looks[1] > 0)
        except TimeoutError:
            return False
        return True

    async def look(self) -> None:
        """Waits for a look that begins now or later to end, well or not."""
        awaited = self._looks[0] + 1
        self.request()
        async with self._ended:
            await self._ended.wait_for(lambda: self._looks[1] >= awaited)

    async def run(self) -> None:
        """Looks, at once and then again and again. Never returns; no fault from outside ends it."""
        self._loop = asyncio.get_running_loop()
        # A controller's devices are not on the machine that it happens to run on.
        subsystems = self._driver.subsystems if self._driver.role is Role.NODE else ()
        with kernel_events(self._sysfs, self._wanted.set, subsystems):
            while True:
                self._wanted.clear()
                await self._look()
                await self._next()

    # --- one look -------------------------------------------------------------------------------

    async def _look(self) -> None:
        self._began = time.monotonic()
        self._looks = (self._looks[0] + 1, self._looks[1])
        look = asyncio.create_task(self._ask(), name="look")
        try:
            await asyncio.wait({look}, timeout=self._pace.hang)
            if not look.done():
                self._hangs = True
                self._metrics.set("scan_hanging", 1)
                log.error("%s: its answer is taken when it comes; the last one stays in force", self.fault)
                await asyncio.wait({look})
                log.warning(
                    "%s() of the driver answered after %.0f s",
                    request_rescan(self._driver),
                    time.monotonic() - self._began,
                )
        finally:
            look.cancel()
            self._hangs = False
            self._metrics.set("scan_hanging", 0)
        self._took(look)
        async with self._ended:
            self._looks = (self._looks[0], self._looks[0])
            self._ended.notify_all()

    async def _ask(self) -> None:
        pools = await query_devices(self._driver, self._calls, self._inventory.pool)
        try:
            held: Held | None = await self._held()
        except DraError as e:
            log.warning("which devices claims hold is not known (%s): all that vanish stay published with a taint", e)
            held = None
        with judging(getattr(self._driver, request_rescan(self._driver))):
            changed = await self._inventory.update(pools, held, request_rescan(self._driver))
        if changed:
            log.info("%d devices, %d of them not published", len(self._inventory), len(self._inventory.left_out))
        before, self.note = self.note, self._nobody_binds()
        if self.note and self.note != before:
            log.warning("%s", self.note)

    def _nobody_binds(self) -> str:
        waits = None if self._driver.binds else next((d.name for d in self._inventory if d.binding_conditions), None)
        if waits is None:
            return ""
        return (
            f"device {printable(waits)} has binding conditions, and {type(self._driver).__name__} has no bind(): pods wait for "
            "whoever makes them true, until the scheduler gives up"
        )

    def _took(self, look: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if look.cancelled() else look.exception()
        if error is None:
            if self._failures:
                log.info("looking at the devices works again, after %d failures", self._failures)
            self._failures, self._failure = 0, ""
            self.last_success = time.time()
            self._metrics.set("last_scan_timestamp_seconds", self.last_success)
            return
        text = error.message if isinstance(error, DraError) else describe(error)
        self._failures += 1
        self._metrics.inc("scan_failures_total")
        if text != self._failure:
            # The traceback of what a driver raised is in the log already; what is left is our own.
            log.error("%s; %s", text, self._consequence, exc_info=None if isinstance(error, DraError) else error)
        self._failure = text

    # --- when to look again ---------------------------------------------------------------------

    async def _next(self) -> None:
        """Waits for an event or until it is time. Many events in a row neither put the look off nor cause one each."""
        pace = self._pace
        ended = time.monotonic()
        pause = pace.interval
        if self._failures:
            pause = min(pause, pace.retry * 2 ** min(self._failures - 1, 10)) * random.uniform(0.8, 1.0)
        if not await self._event(pause):
            return
        burst_ends = time.monotonic() + pace.burst
        while (left := burst_ends - time.monotonic()) > 0:
            self._wanted.clear()
            if not await self._event(min(pace.quiet, left)):
                break
        await asyncio.sleep(max(0.0, ended + pace.apart - time.monotonic()))

    async def _event(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._wanted.wait()
        except TimeoutError:
            return False
        return True
