"""Calls the driver's ``checks()`` at intervals, and keeps the last results for readiness and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..base.telemetry.metrics import Metrics
from ..base.wakeup import Wakeup
from ..driver import Check, Driver
from ..driver.calls import Calls
from ..driver.diagnostics.author_errors import reading_result
from ..driver.self_checks import parse_checks
from ..errors import DraError, printable

log = logging.getLogger(__name__)


class DriverChecks:
    """The checks of one driver in one process. Two calls never overlap.

    Args:
        interval: seconds between two calls.
        slow: seconds after which a call is reported as hanging.
    """

    def __init__(self, driver: Driver, calls: Calls, metrics: Metrics, interval: float, slow: float = 30.0) -> None:
        self._driver = driver
        self._calls = calls
        self._metrics = metrics
        self._interval = interval
        self._slow = slow
        self._results: Sequence[Check] = ()
        self._fault = ""  # why the last call failed
        self._called_at: float | None = None  # when the current call began
        self._wakeup = Wakeup()

    def request(self) -> None:
        """Requests a call at once. Safe from any thread."""
        self._wakeup.request()

    async def run(self) -> None:
        """Calls ``checks`` repeatedly. Never returns; external failures do not stop it."""
        while True:
            self._wakeup.clear()
            await self.once()
            await self._wakeup.wait(self._interval)

    async def once(self) -> None:
        """Calls ``checks`` once. A failure is not raised: :meth:`notes` returns it."""
        self._called_at = time.monotonic()
        try:
            results = await query_checks(self._driver, self._calls)
        except DraError as e:
            if self._fault != (fault := f"the driver's checks() failed: {printable(e)}"):
                log.warning("cannot run the driver's checks: %s", fault, extra={"error_code": e.code})
            self._fault = fault
        else:
            self._fault = ""
            self._note(results)
        finally:
            self._called_at = None

    def _note(self, results: Sequence[Check]) -> None:
        before = {c.name: c.problem for c in self._results}
        for check in results:
            if check.problem and before.get(check.name) != check.problem:
                log.warning("a check of the driver found a problem: %s", check.sentence)
            elif not check.problem and before.get(check.name):
                log.info("a check of the driver has passed again: %s", check.name)
            self._metrics.set("driver_check_failing", int(bool(check.problem)), check=check.name)
        for name in before.keys() - {c.name for c in results}:
            self._metrics.set("driver_check_failing", 0, check=name)
        self._results = results

    def not_ready(self) -> list[str]:
        """Returns the problems that make the process not ready."""
        return [c.sentence for c in self._results if c.problem and c.blocking]

    def notes(self) -> list[str]:
        """Returns all other problems, and why the results may be out of date."""
        out = [c.sentence for c in self._results if c.problem and not c.blocking]
        out += [self._fault] if self._fault else []
        if self._called_at is not None and (age := time.monotonic() - self._called_at) > self._slow:
            out.append(f"the driver's checks() has not returned for {age:.0f} s")
        return out

    def passed(self) -> list[str]:
        """Returns a line for each check that found no problem."""
        return [f"check {c.name}: ok" for c in self._results if not c.problem]


async def query_checks(driver: Driver, calls: Calls) -> Sequence[Check]:
    """Returns the results of the driver's ``checks()``. Raises :class:`DraError`."""
    result = await calls(driver.checks)
    with reading_result(driver.checks):
        return parse_checks(result)
