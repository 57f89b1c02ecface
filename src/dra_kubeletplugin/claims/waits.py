"""How long the claim manager waits, in seconds."""

from __future__ import annotations

import msgspec


class Waits(msgspec.Struct, frozen=True):
    """The waits of one claim manager. A test replaces the long ones."""

    start: float = 5.0
    """A start waits this long for rollbacks. Longer rollbacks continue while the plugin serves."""
    files: float = 2.0
    """Between checks that the records are intact."""
    recover_check: float = 5.0
    """Between checks whether ``recover()`` is due, for example after another instance died."""
    recover_retries: tuple[float, float] = 1.0, 30.0
    """Until ``recover()`` is retried after a failure: first pause, longest pause."""
    recover_slow: float = 10.0
    """Until a ``recover()`` that has not returned is logged."""
    rollback_retries: tuple[float, float] = 2.0, 300.0
    """Between two tries of a rollback: first pause, longest pause."""
    rollback_check: float = 0.5
    """Between checks whether a try of a rollback is due."""
    probe: float = 2.0
    """A probe waits this long for the records."""
    batch: float = 0.25
    """The claims of a call wait this long for each other."""
    report_retries: tuple[float, float] = 0.4, 30.0
    """Between two writes of a device status that fail: first pause, longest pause."""
    report_retry_for: float = 600.0
    """A failing report is retried for this time."""
    alerts: float = 60.0
    """Between checks for faults of claims in use while no device's health changes."""
    alerts_retry: float = 1.0
    """Until the next check for faults after the records could not be read."""
    answer_from_record: float = 1.2
    """Without a response of the API server for this time, a prepared claim's record is used."""


DEFAULT = Waits()
