"""Calls the driver's ``health()`` at intervals, and also when the driver reports a change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from ..base.telemetry.metrics import Metrics
from ..base.wakeup import Wakeup
from ..driver import Driver, Health
from ..driver.calls import Calls
from ..driver.diagnostics.author_errors import reading_result
from ..errors import DraError, printable
from .inventory import Inventory

log = logging.getLogger(__name__)
_APART = 0.2  # minimum seconds from the end of one call to the start of the next


class HealthMonitor:
    """Calls ``health``, one call at a time, and passes each report to the inventory.

    The age of a report counts from the start of its call. While calls fail or hang, no new report arrives, and the last one expires.

    Args:
        interval: seconds between two calls.
        faults: returns the faults that the framework found: ``pool/name`` of the device → text.
    """

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        inventory: Inventory,
        metrics: Metrics,
        interval: float,
        faults: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.fault = ""
        """Why the last call failed; empty if it succeeded."""
        self.first_call_done = asyncio.Event()
        """Set after the first call, successful or not."""
        self._driver = driver
        self._calls = calls
        self._inventory = inventory
        self._metrics = metrics
        self._interval = interval
        self._faults = faults
        self._wakeup = Wakeup()

    def request(self) -> None:
        """Requests a call, because health may have changed. Safe from any thread."""
        self._wakeup.request()

    def note(self) -> str:
        """Returns why the health of devices is unknown or will become unknown; empty if there is no reason."""
        age = self._inventory.health_age()
        if self.fault or age is None or age <= self._inventory.health_timeout:
            return self.fault
        return f"the driver's health() has not returned for {age:.0f} s"

    async def run(self) -> None:
        """Calls ``health`` repeatedly. Never returns; external failures do not stop it."""
        while not self._inventory.known:  # a report about devices that are not known yet would be lost
            await self._inventory.changed(self._inventory.version)
        while True:
            self._wakeup.clear()
            await self._call_driver()
            self.first_call_done.set()
            ended = time.monotonic()
            if await self._wakeup.wait(self._interval):
                await asyncio.sleep(ended + _APART - time.monotonic())

    async def _call_driver(self) -> None:
        started = time.monotonic()
        try:
            report = await self._calls(self._driver.health)
            with reading_result(self._driver.health):
                await self._inventory.set_health(self._with_faults(report), started)
        except DraError as e:
            before, self.fault = self.fault, f"{printable(e)}; devices become unknown until health() succeeds"
            self._metrics.inc("health_failures_total")
            if self.fault != before:
                log.warning("cannot read the health of devices: %s", self.fault, extra={"error_code": e.code})
        else:
            self.fault = ""

    def _with_faults(self, report: object) -> object:
        """Returns the report with the faults that the framework found. If the driver reports a device as unhealthy, its report stays."""
        faults = self._faults()
        if not faults or not isinstance(report, Mapping):
            return report
        found = {}
        for key, text in faults.items():
            own = report.get(key) or report.get(key.partition("/")[2])
            if not isinstance(own, Health) or own.healthy is not False:
                found[key] = Health(False, text)
        return {**report, **found}
