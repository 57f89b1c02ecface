"""Decides from a driver's reports whether a device counts as unhealthy: after how many reports a fault or a recovery counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..base.settings import HEALTH_TIMEOUT, HEALTHY_AFTER, UNHEALTHY_AFTER
from ..driver.health import INFORMATIONAL, Health
from ..errors import DriverError, describe, printable, shown
from ..resourceapi.types import Taint
from .pool_state import DeviceKey

JSON = Mapping[str, Any]
_SAME_REASON = 600.0  # seconds: a text that contains a temperature must not cause a write for each report
# Seconds. A fault that begins within the first time after the last recovery lasts at least the second time: a device that changes with
# each report of an eager driver would otherwise cause several writes a second.
_UNSTABLE, _LEAST_FAULT = 60.0, 10.0
_SAME_INFORMATION = 60.0  # seconds between two changes of informational taints: a program may cause faults every second


class HealthMark(NamedTuple):
    """The published marks of a device. ``reason`` is empty for a device that counts as healthy, which has informational taints only."""

    taints: Sequence[JSON]
    reason: str


@dataclass(frozen=True, kw_only=True)
class HealthPolicy:
    """The effects of health reports.

    Args:
        taint: the taint of unhealthy devices whose report contains no taint, or informational taints only; None for no taint. A plugin
            passes ``Driver.unhealthy_taint``, by default ``dra-kubeletplugin.dev/unhealthy`` with the effect NoSchedule.
        effect: replaces the effect of every taint for bad health (option UNHEALTHY_EFFECT); empty to keep each taint's own effect. It
            does not replace the effect of informational taints in reports.
        unhealthy_after: consecutive unhealthy reports that make a healthy device unhealthy; by default 1 (UNHEALTHY_AFTER).
        healthy_after: consecutive healthy reports that make an unhealthy device healthy; by default 3 (HEALTHY_AFTER).
        timeout: seconds until a report expires, if it sets no timeout itself.
    """

    taint: Taint | None = None
    effect: str = ""
    unhealthy_after: int = UNHEALTHY_AFTER
    healthy_after: int = HEALTHY_AFTER
    timeout: float = HEALTH_TIMEOUT

    def taints_for(self, fault: Health | None, information: Sequence[Taint] = ()) -> Sequence[JSON]:
        """Returns the taints of a device in API form, the informational ones first.

        Args:
            fault: the report that makes the device unhealthy; None for a device that counts as healthy.
            information: the informational taints.
        """
        out = [t.json() for t in information]
        if fault is not None:
            own = [t for t in fault.taints if t.effect != INFORMATIONAL] or ([self.taint] if self.taint else [])
            effect = {"effect": self.effect} if self.effect else {}
            out += [{**t.json(), **effect} for t in own]
        return [taint for i, taint in enumerate(out) if taint not in out[:i]]

    def marks(self, decisions: Mapping[DeviceKey, HealthDecision]) -> dict[str, dict[str, HealthMark]]:
        """Returns the marks of all devices that are unhealthy or have informational taints, by pool and device."""
        made: dict[Any, Sequence[JSON]] = {}  # thousands of devices may have the same taints
        out: dict[str, dict[str, HealthMark]] = {}
        for key, decision in decisions.items():
            fault, information = decision.fault, decision.information
            if fault is None and not information:
                continue
            same = (fault and fault.taints, information)
            if same not in made:
                made[same] = self.taints_for(fault, information)
            out.setdefault(key.pool, {})[key.device] = HealthMark(made[same], decision.reason if fault else "")
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
    reason: str = ""
    """The fault's text in slices and events. Another text of the same fault replaces it after ten minutes at the earliest."""
    reason_at: float = 0.0
    information: Sequence[Taint] = ()
    """The informational taints that are published."""
    informed_at: float | None = None
    """When they changed last; None for never."""
    failed_at: float = 0.0
    """When the fault began."""
    recovered_at: float | None = None
    """When the device became healthy again; None for never."""

    @classmethod
    def first(cls, report: Health, at: float) -> HealthDecision:
        """Returns the state after the first report, which counts at once: a device that is broken at start must not be allocated."""
        return cls(report, at)._next(report, at, report if report.healthy is False else None)

    def after(self, report: Health, at: float, policy: HealthPolicy) -> HealthDecision:
        """Returns the state after one more report.

        A report of unknown health neither confirms nor clears a fault, and restarts the count. A repeated measurement does not count again.
        """
        if report.measured is not None and report == self.last_report:
            return self
        if report.healthy is None:
            return self._next(report, at, self.fault)
        if report.healthy is (self.fault is None):
            return self._next(report, at, None if report.healthy else report)
        needed = policy.healthy_after if report.healthy else policy.unhealthy_after
        if self.against + 1 >= needed and not (report.healthy and self._is_too_soon(at)):
            return self._next(report, at, None if report.healthy else report)
        return self._next(report, at, self.fault, min(self.against + 1, needed), needed)

    def _is_too_soon(self, at: float) -> bool:
        """Whether the device may not become healthy yet, because it did so a short time before the fault."""
        is_unstable = self.recovered_at is not None and self.failed_at - self.recovered_at < _UNSTABLE
        return is_unstable and at - self.failed_at < _LEAST_FAULT

    def _next(
        self, report: Health, at: float, fault: Health | None, against: int = 0, needed: int = 0
    ) -> HealthDecision:
        reason, since = self.reason, self.reason_at
        failed_at, recovered_at = self.failed_at, self.recovered_at
        if fault is None:
            reason, since = "", 0.0
            recovered_at = recovered_at if self.fault is None else at
        else:
            text = fault.message or "no reason given"
            if self.fault is None or (text != reason and at - since >= _SAME_REASON):
                reason, since = text, at
            failed_at = at if self.fault is None else failed_at
        return HealthDecision(
            report,
            at,
            fault,
            against,
            needed,
            reason,
            since,
            self.information,
            self.informed_at,
            failed_at,
            recovered_at,
        )

    def with_informational_taints(self, before: HealthDecision | None, now: float) -> HealthDecision:
        """Returns the state with the informational taints of the last report, unless they changed less than a minute ago.

        They do not wait if the device becomes unhealthy or healthy, because its slice is written anyway. A report of unknown health
        without taints does not remove them.

        Args:
            before: the state before the last report.
            now: the time, by the inventory's clock. The time of a repeated measurement would never come to be a minute later.
        """
        report = self.last_report
        if not (report.taints or self.information):
            return self
        wanted = tuple(t for t in report.taints if t.effect == INFORMATIONAL)
        if wanted == self.information or (report.healthy is None and not wanted):
            return self
        turned = before is not None and (before.fault is None) is not (self.fault is None)
        if self.informed_at is not None and now - self.informed_at < _SAME_INFORMATION and not turned:
            return self
        return replace(self, information=wanted, informed_at=now)

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
            out[name] = replace(health, healthy=healthy, message=printable(health.message))
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"the result of health() cannot be read: {describe(e)}") from e
    return out
