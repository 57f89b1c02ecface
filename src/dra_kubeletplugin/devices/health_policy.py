"""Decides from a driver's health reports whether a device is unhealthy, and which taints it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.json_types import ReadOnlyJSON
from ..base.settings import HEALTH_TIMEOUT, HEALTHY_AFTER, UNHEALTHY_AFTER
from ..driver.health import INFORMATIONAL, Health
from ..resourceapi.types import Taint

# Seconds between two changes of a published reason. Otherwise, a text that contains a temperature would cause a write for each report.
_SAME_REASON = 600.0
# Seconds. A device that fails again within _UNSTABLE after its recovery stays unhealthy for at least _LEAST_FAULT. Otherwise, a device
# whose health alternates would cause several writes a second.
_UNSTABLE, _LEAST_FAULT = 60.0, 10.0
# Seconds between two changes of informational taints. Otherwise, a program that causes a fault every second would cause as many writes.
_SAME_INFORMATION = 60.0


@dataclass(frozen=True, kw_only=True)
class HealthPolicy:
    """The effects of health reports.

    Args:
        taint: the default taint: an unhealthy device gets it if its report contains no taint except informational ones. None for no
            default. A plugin passes ``Driver.unhealthy_taint``: by default ``dra-kubeletplugin.dev/unhealthy`` with effect NoSchedule.
        effect: replaces the effect of every taint except informational ones (option UNHEALTHY_EFFECT); empty to keep each taint's effect.
        unhealthy_after: consecutive unhealthy reports that make a healthy device unhealthy; by default 1 (UNHEALTHY_AFTER).
        healthy_after: consecutive healthy reports that make an unhealthy device healthy; by default 3 (HEALTHY_AFTER).
        timeout: seconds until a report without its own timeout expires.
    """

    taint: Taint | None = None
    effect: str = ""
    unhealthy_after: int = UNHEALTHY_AFTER
    healthy_after: int = HEALTHY_AFTER
    timeout: float = HEALTH_TIMEOUT

    def taints_for(self, fault: Health | None, information: Sequence[Taint] = ()) -> Sequence[ReadOnlyJSON]:
        """Returns the taints of a device in API form, the informational taints first.

        Args:
            fault: the report that makes the device unhealthy; None for a healthy device.
            information: the informational taints.
        """
        out = [t.json() for t in information]
        if fault is not None:
            own = [t for t in fault.taints if t.effect != INFORMATIONAL] or ([self.taint] if self.taint else [])
            effect = {"effect": self.effect} if self.effect else {}
            out += [{**t.json(), **effect} for t in own]
        return [taint for i, taint in enumerate(out) if taint not in out[:i]]


@dataclass(frozen=True)
class DeviceHealth:
    """The health of a device; ``healthy`` is None if it is unknown.

    ``at`` is the time of measurement in unix seconds; 0 if it was never measured. The value expires after ``timeout`` seconds.
    """

    healthy: bool | None
    message: str = ""
    at: float = 0.0
    timeout: float = HEALTH_TIMEOUT


@dataclass(frozen=True)
class HealthDecision:
    """Whether one device is healthy, after a report. ``fault`` is the report that makes it unhealthy; None while it is healthy."""

    last_report: Health
    at: float
    """Time of measurement, by the inventory's clock."""
    fault: Health | None = None
    against: int = 0
    """How many consecutive reports contradict the state."""
    needed: int = 0
    """How many such reports change the state."""
    reason: str = ""
    """The fault's text in slices and events. It changes at most every ten minutes while the fault lasts."""
    reason_at: float = 0.0
    information: Sequence[Taint] = ()
    """The informational taints that are published."""
    informed_at: float | None = None
    """When the informational taints last changed; None for never."""
    failed_at: float = 0.0
    """When the fault began."""
    recovered_at: float | None = None
    """When the device became healthy again; None for never."""

    @classmethod
    def first(cls, report: Health, at: float) -> HealthDecision:
        """Returns the state after the first report. An unhealthy one counts at once, because a broken device must not be allocated."""
        return cls(report, at)._next(report, at, report if report.healthy is False else None)

    def after(self, report: Health, at: float, policy: HealthPolicy) -> HealthDecision:
        """Returns the state after one more report.

        A report of unknown health leaves the state unchanged, and resets the count of contradicting reports. If the report repeats the
        last measurement, it does not count.
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
        """Whether the device must stay unhealthy now, because it failed again soon after its last recovery."""
        is_unstable = self.recovered_at is not None and self.failed_at - self.recovered_at < _UNSTABLE
        return is_unstable and at - self.failed_at < _LEAST_FAULT

    def _next(
        self, report: Health, at: float, fault: Health | None, against: int = 0, needed: int = 0
    ) -> HealthDecision:
        state = replace(self, last_report=report, at=at, fault=fault, against=against, needed=needed)
        if fault is None:
            return state if self.fault is None else replace(state, reason="", recovered_at=at)
        text = fault.message or "no reason given"
        if self.fault is None:
            return replace(state, reason=text, reason_at=at, failed_at=at)
        if text != self.reason and at - self.reason_at >= _SAME_REASON:
            return replace(state, reason=text, reason_at=at)
        return state

    def with_informational_taints(self, before: HealthDecision | None, now: float) -> HealthDecision:
        """Returns the state with the informational taints of the last report.

        The taints do not change if they changed less than a minute ago, unless the report also changes whether the device is healthy:
        its slice is then written anyway. A report of unknown health without taints does not remove the taints.

        Args:
            before: the state before the last report.
            now: the present time, by the inventory's clock. The time of measurement would not do: it stays the same if a driver repeats
                a measurement.
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
    def published(self) -> tuple[Sequence[Taint] | None, Sequence[Taint], str]:
        """The taints and the reason in slices. They are equal for two states whose device has the same published form."""
        if self.fault is None:
            return None, self.information, ""
        return [t for t in self.fault.taints if t.effect != INFORMATIONAL], self.information, self.reason

    @property
    def health(self) -> Health:
        """The health to report to the kubelet: the last report, or the present state while reports contradict it, with their number."""
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
