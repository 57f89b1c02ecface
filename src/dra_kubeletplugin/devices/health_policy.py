"""What a driver's reports of one device's health add up to: a fault, and a recovery, must hold before they count."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..base.settings import HEALTH_TIMEOUT, HEALTHY_AFTER, UNHEALTHY_AFTER
from ..driver import Health
from ..errors import DriverError, describe, is_a, printable, shown
from ..resourceapi.types import Taint

JSON = Mapping[str, Any]
_BREATH = 256  # devices before others on the event loop have their turn


@dataclass(frozen=True, kw_only=True)
class HealthPolicy:
    """How reports become effects.

    Args:
        taint: for devices that are unhealthy, where the report gives none; None for no taint.
        effect: of every taint for bad health, in place of what it says; empty to leave it.
        unhealthy_after: reports in a row that must call a healthy device unhealthy.
        healthy_after: reports in a row that must call an unhealthy one healthy.
    """

    taint: Taint | None = None
    effect: str = ""
    unhealthy_after: int = UNHEALTHY_AFTER
    healthy_after: int = HEALTHY_AFTER

    def taint_for(self, fault: Health) -> JSON | None:
        """The taint of a device with this fault, as it is sent."""
        taint = fault.taint or self.taint
        if taint is None:
            return None
        return {**taint.json(), **({"effect": self.effect} if self.effect else {})}


@dataclass(frozen=True)
class DeviceHealth:
    """What is known of a device's health: ``healthy`` is None where nothing is.

    ``at`` is when that was measured, in unix seconds; 0 where it never was. It is not believed for longer than ``timeout`` seconds.
    """

    healthy: bool | None
    message: str = ""
    at: float = 0.0
    timeout: float = HEALTH_TIMEOUT


@dataclass(frozen=True)
class HealthVerdict:
    """One device after a report. ``fault`` is the report that makes it unhealthy; None while it counts as healthy."""

    told: Health
    at: float
    """When that was measured, by the inventory's clock."""
    fault: Health | None = None
    against: int = 0
    """Reports in a row that say the opposite of what counts."""
    needed: int = 0
    """How many it takes."""

    @classmethod
    def first(cls, told: Health, at: float) -> HealthVerdict:
        """With nothing before it, a report counts at once: a device that is broken when the plugin starts must not be given out."""
        return cls(told, at, told if told.healthy is False else None)

    def after(self, told: Health, at: float, policy: HealthPolicy) -> HealthVerdict:
        """With one more report. What is not known speaks neither for nor against a fault, and a run of reports ends with it.

        A measurement that is told again is no further one.
        """
        if told.measured is not None and told == self.told:
            return self
        if told.healthy is None:
            return HealthVerdict(told, at, self.fault)
        if told.healthy is (self.fault is None):
            return HealthVerdict(told, at, None if told.healthy else told)
        needed = policy.healthy_after if told.healthy else policy.unhealthy_after
        if self.against + 1 >= needed:
            return HealthVerdict(told, at, None if told.healthy else told)
        return HealthVerdict(told, at, self.fault, self.against + 1, needed)

    @property
    def health(self) -> Health:
        """What counts, with a message that says what does not count yet."""
        if not self.against:
            return self.told
        if self.fault is None:
            return Health(
                True, f"unhealthy in {self.against} of {self.needed} reports: {self.told.message or 'no reason given'}"
            )
        return Health(
            False,
            f"healthy again in {self.against} of {self.needed} reports; it was: {self.fault.message or 'no reason given'}",
        )


async def checked_report(report: object) -> dict[str, Health]:
    """What :meth:`Driver.health` answered, which may be anything. Raises :class:`DriverError`."""
    if not is_a(report, Mapping):
        raise DriverError(f"health() answered {type(report).__name__}: it must answer a mapping of names to Health")
    out = {}
    try:
        for i, (name, health) in enumerate(report.items()):
            if i % _BREATH == _BREATH - 1:
                await asyncio.sleep(0)
            if not is_a(name, str) or not is_a(health, Health):
                raise DriverError(
                    f"health() answered {type(name).__name__} → {type(health).__name__}: it must answer names → Health"
                )
            if health.healthy not in {True, False, None}:
                raise DriverError(
                    f"health() answered Health({shown(health.healthy)}) for {printable(name)}: give True, False or None"
                )
            # A vendor's library may say 0 for False: it must mean the same to all who look.
            healthy = None if health.healthy is None else bool(health.healthy)
            if not is_a(health.taint, (Taint, type(None))):
                raise DriverError(f"health() answered a {type(health.taint).__name__} as taint of {printable(name)}")
            out[name] = replace(health, healthy=healthy, message=printable(health.message))
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"the answer of health() cannot be read: {describe(e)}") from e
    return out
