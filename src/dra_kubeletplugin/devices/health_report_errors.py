"""What of a driver's report of health cannot be taken as it was said: told once in the log, and shown while it is so."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ..base.telemetry.logs import log_sample
from ..base.text import did_you_mean
from ..driver import Health
from ..errors import printable
from .validation import taint_fault

log = logging.getLogger(__name__)

_TOLD = 20
_SOUGHT = 8  # names of a report for which the nearest is looked for


class RejectedReports:
    """Of the last report."""

    def __init__(self) -> None:
        self._taints: set[str] = set()
        self._strangers: dict[str, str] = {}  # what is said of each
        self._known: Collection[str] = ()

    @property
    def notes(self) -> list[str]:
        """A sentence for each, of thousands the first and how many more."""
        said = sorted(self._taints.union(self._strangers.values()))
        more = [f"health() is odd in {len(said) - _TOLD} more names"] if len(said) > _TOLD else []
        return said[:_TOLD] + more

    def taintable(self, told: Mapping[str, Health]) -> dict[str, Health]:
        """With the usual taint in place of one that the API server would refuse: a sick device must not look well for it."""
        faults = {n: fault for n, h in told.items() if h.taint is not None and (fault := taint_fault(h.taint))}
        said = {
            f"the taint that health() gives {printable(n)} cannot be published, the usual one is: {f}"
            for n, f in faults.items()
        }
        log_sample(log, logging.ERROR, "%s", sorted(said - self._taints))
        self._taints = said
        return dict(told) | {n: replace(told[n], taint=None) for n in faults}

    def tell_strangers(self, told: Collection[str], known: Collection[str]) -> None:
        """Names that are no devices, among those of the report; ``known`` are the names of devices."""
        names = {n for n in told if n.rpartition("/")[2] not in known}
        before = self._strangers if known == self._known else {}
        said = {n: before[n] for n in names if n in before}
        # A name that the report has too cannot have been meant: a card that is not there any more is no other's typing error.
        meant = set(known).difference(n.rpartition("/")[2] for n in told) if len(said) < len(names) else set()
        # To look for the nearest of thousands takes milliseconds.
        for i, n in enumerate(sorted(names.difference(said))):
            text = f"health() tells of {printable(n)}, which is no device of this node: it is ignored"
            said[n] = text + (did_you_mean(n.rpartition("/")[2], meant) if i < _SOUGHT else "")
        log_sample(log, logging.WARNING, "%s", sorted(set(said.values()).difference(self._strangers.values())))
        self._strangers, self._known = said, frozenset(known)
