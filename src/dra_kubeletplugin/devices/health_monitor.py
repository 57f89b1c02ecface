"""Asks the driver for its devices' health: at its pace, and at once when it says that something has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from ..base.telemetry.metrics import Metrics
from ..driver import Driver
from ..driver.calls import Calls
from ..driver.diagnostics.author_errors import judging
from ..errors import DraError, printable
from .inventory import Inventory

log = logging.getLogger(__name__)
_APART = 0.2  # seconds from the end of one question to the start of the next, however often the driver says that there is news


class HealthMonitor:
    """Owns the calls of ``health``, so that they are never made twice at once. ``interval`` is in seconds.

    A report counts from when it was asked for. One that fails or hangs leaves the last one to grow old.
    """

    def __init__(self, driver: Driver, calls: Calls, inventory: Inventory, metrics: Metrics, interval: float) -> None:
        self.fault = ""
        """Why the driver's last answer is none; empty where it is one."""
        self.answered = asyncio.Event()
        """Set once the driver was asked, whatever it said."""
        self._driver = driver
        self._calls = calls
        self._inventory = inventory
        self._metrics = metrics
        self._interval = interval
        self._wanted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def request(self) -> None:
        """The health of a device may have changed: it is asked for at once. From any thread."""
        if self._loop is None:
            return  # the first question is still to come
        with contextlib.suppress(RuntimeError):  # the loop is closed: a vendor's thread outlives the plugin
            self._loop.call_soon_threadsafe(self._wanted.set)

    def note(self) -> str:
        """Why devices turn to unknown, or will; empty where they do not."""
        age = self._inventory.health_age()
        if self.fault or age is None or age <= self._inventory.health_timeout:
            return self.fault
        return f"health() of the driver has not answered for {age:.0f} s"

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        self._loop = asyncio.get_running_loop()
        while not self._inventory.known:  # of devices that are not known yet a report would be lost
            await self._inventory.changed(self._inventory.version)
        while True:
            self._wanted.clear()
            await self._ask()
            self.answered.set()
            ended = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._wanted.wait()
                    await asyncio.sleep(ended + _APART - time.monotonic())

    async def _ask(self) -> None:
        asked = time.monotonic()
        try:
            report = await self._calls(self._driver.health)
            with judging(self._driver.health):
                await self._inventory.set_health(report, asked)
        except DraError as e:
            before, self.fault = self.fault, f"{printable(e)}; until health() succeeds, devices turn to unknown"
            self._metrics.inc("health_failures_total")
            if self.fault != before:
                log.warning("%s", self.fault)
        else:
            self.fault = ""
