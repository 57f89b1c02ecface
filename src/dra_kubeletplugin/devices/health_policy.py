"""Decides from a driver's reports whether a device counts as unhealthy: a fault or a recovery must last before it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..base.settings import HEALTH_TIMEOUT, HEALTHY_AFTER, UNHEALTHY_AFTER
from ..driver import Health
from ..errors import DriverError, describe, printable, shown
from ..resourceapi.types import Taint
from .pool_state import DeviceKey

JSON = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class HealthPolicy:
    """The effects of health reports.

    Args:
        taint: the taint of unhealthy devices whose report contains no taint; None for no taint. A plugin passes
            ``Driver.unhealthy_taint``, by default ``dra-kubeletplugin.dev/unhealthy`` with the effect NoSchedule.
        effect: replaces the effect of every taint for bad health (option UNHEALTHY_EFFECT); empty to keep each taint's own effect.
        unhealthy_after: consecutive unhealthy reports that make a healthy device unhealthy; by default 1 (UNHEALTHY_AFTER).
        healthy_after: consecutive healthy reports that make an unhealthy device healthy; by default 3 (HEALTHY_AFTER).
        timeout: seconds until a report expires, if it sets no timeout itself.
    """

    taint: Taint | None = None
    effect: str = ""
    unhealthy_after: int = UNHEALTHY_AFTER
    healthy_after: int = HEALTHY_AFTER
    timeout: float = HEALTH_TIMEOUT

    def taint_for(self, fault: Health) -> JSON | None:
        """Returns the taint of a device with this fault, in API form; None for no taint."""
        taint = fault.taint or self.taint
        if taint is None:
            return None
        return {**taint.json(), **({"effect": self.effect} if self.effect else {})}

    def taints(self, decisions: Mapping[DeviceKey, HealthDecision]) -> dict[str, dict[str, JSON]]:
        """Returns the taints of all unhealthy devices, by pool and device."""
        made: dict[Taint | None, JSON | None] = {}  # thousands of devices may have the same taint
        out: dict[str, dict[str, JSON]] = {}
        for key, fault in ((key, d.fault) for key, d in decisions.items() if d.fault is not None):
            if fault.taint not in made:
                made[fault.taint] = self.taint_for(fault)
            if (taint := made[fault.taint]) is not None:
                out.setdefault(key.pool, {})[key.device] = taint
        return out


@dataclass(frozen=True)
class DeviceHealth:
    """The health of a device; ``healthy`` is None if it is unknown.

    ``at`` is the time of measurement in unix seconds, 0 for never. It expires after ``timeout`` seconds.
    """

    healthy: bool | None
    message: str = ""
    at: float = 0.0
    timeout: float = HEALTH_TIMEOUT


@dataclass(frozen=True)
class HealthDecision:
    """The state of one device after a report. ``fault`` is the report that makes it unhealthy; None while it counts as healthy."""

    last_report: Health
    at: float
    """Time of measurement, by the inventory's clock."""
    fault: Health | None = None
    against: int = 0
    """Consecutive reports that contradict the state."""
    needed: int = 0
    """Consecutive reports that change the state."""

    @classmethod
    def first(cls, report: Health, at: float) -> HealthDecision:
        """Returns the state after the first report, which counts at once: a device that is broken at start must not be allocated."""
        return cls(report, at, report if report.healthy is False else None)

    def after(self, report: Health, at: float, policy: HealthPolicy) -> HealthDecision:
        """Returns the state after one more report.

        A report of unknown health neither confirms nor clears a fault, and restarts the count. A repeated measurement does not count again.
        """
        if report.measured is not None and report == self.last_report:
            return self
        if report.healthy is None:
            return HealthDecision(report, at, self.fault)
        if report.healthy is (self.fault is None):
            return HealthDecision(report, at, None if report.healthy else report)
        needed = policy.healthy_after if report.healthy else policy.unhealthy_after
        if self.against + 1 >= needed:
            return HealthDecision(report, at, None if report.healthy else report)
        return HealthDecision(report, at, self.fault, self.against + 1, needed)

    @property
    def health(self) -> Health:
        """The health that counts, with a message about reports that do not count yet."""
        if not self.against:
            return self.last_report
        if self.fault is None:
            return Health(
                True,
                f"unhealthy in {self.against} of {self.needed} reports: {self.last_report.message or 'no reason given'}",
            )
        return Health(
            False,
            f"healthy again in {self.against} of {self.needed} reports; it was: {self.fault.message or 'no reason given'}",
        )


def checked_report(report: object) -> dict[str, Health]:
    """Validates a result of :meth:`Driver.health`. Raises :class:`DriverError`."""
    if not isinstance(report, Mapping):
        raise DriverError(f"health() returned {type(report).__name__}: it must return a mapping of names to Health")
    out = {}
    try:
        for name, health in report.items():
            if not isinstance(name, str) or not isinstance(health, Health):
                raise DriverError(
                    f"health() returned {type(name).__name__} → {type(health).__name__}: it must return names → Health"
                )
            if health.healthy not in {True, False, None}:
                raise DriverError(
                    f"health() returned Health({shown(health.healthy)}) for {printable(name)}: use True, False or None"
                )
            # A vendor's library may return 0 for False; later comparisons with `is` need real booleans.
            healthy = None if health.healthy is None else bool(health.healthy)
            if not isinstance(health.taint, Taint | None):
                raise DriverError(f"health() returned a {type(health.taint).__name__} as taint of {printable(name)}")
            out[name] = replace(health, healthy=healthy, message=printable(health.message))
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"the result of health() cannot be read: {describe(e)}") from e
    return out
