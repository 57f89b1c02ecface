"""What a driver's reports of one device's health add up to: a fault, and a recovery, must hold before they count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .driver import Health
from .resources.types import Taint

JSON = Mapping[str, Any]


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
    unhealthy_after: int = 1
    healthy_after: int = 1

    def taint_for(self, fault: Health) -> JSON | None:
        """The taint of a device with this fault, as it is sent."""
        taint = fault.taint or self.taint
        if taint is None:
            return None
        return {**taint.json(), **({"effect": self.effect} if self.effect else {})}


@dataclass(frozen=True)
class Diagnosis:
    """One device after a report. ``fault`` is the report that makes it unhealthy; None while it counts as healthy."""

    told: Health
    at: float
    """When that was measured, in unix seconds."""
    fault: Health | None = None
    against: int = 0
    """Reports in a row that say the opposite of what counts."""
    needed: int = 0
    """How many it takes."""

    @classmethod
    def first(cls, told: Health, at: float) -> Diagnosis:
        """With nothing before it, a report counts at once: a device that is broken when the plugin starts must not be given out."""
        return cls(told, at, told if told.healthy is False else None)

    def after(self, told: Health, at: float, policy: HealthPolicy) -> Diagnosis:
        """With one more report. What is not known speaks neither for nor against a fault, and a run of reports ends with it."""
        if told.healthy is None:
            return Diagnosis(told, at, self.fault)
        if told.healthy is (self.fault is None):
            return Diagnosis(told, at, None if told.healthy else told)
        needed = policy.healthy_after if told.healthy else policy.unhealthy_after
        if self.against + 1 >= needed:
            return Diagnosis(told, at, None if told.healthy else told)
        return Diagnosis(told, at, self.fault, self.against + 1, needed)

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
