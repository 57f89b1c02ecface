"""What of a driver's report of health cannot be taken as it was said: told once in the log, and shown while it is so."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from .driver import Health
from .errors import near, printable
from .observe.log import tell_some
from .publishable import taint_fault

log = logging.getLogger(__name__)


class OddReports:
    """Of the last report."""

    def __init__(self) -> None:
        self._taints: set[str] = set()
        self._strangers: set[str] = set()

    @property
    def notes(self) -> list[str]:
        return sorted(self._taints | self._strangers)

    def taintable(self, told: Mapping[str, Health]) -> dict[str, Health]:
        """With the usual taint in place of one that the API server would refuse: a sick device must not look well for it."""
        faults = {n: fault for n, h in told.items() if h.taint is not None and (fault := taint_fault(h.taint))}
        said = {
            f"the taint that health() gives {printable(n)} cannot be published, the usual one is: {f}"
            for n, f in faults.items()
        }
        tell_some(log, logging.ERROR, "%s", sorted(said - self._taints))
        self._taints = said
        return dict(told) | {n: replace(told[n], taint=None) for n in faults}

    def tell_strangers(self, told: Collection[str], known: Collection[str]) -> None:
        """Names that are no devices, among those of the report; ``known`` are the names of devices."""
        names = {n for n in told if n.rpartition("/")[2] not in known}
        said = {
            f"health() tells of {printable(n)}, which is no device of this node: it is ignored"
            f"{near(n.rpartition('/')[2], known)}"
            for n in names
        }
        tell_some(log, logging.WARNING, "%s", sorted(said - self._strangers))
        self._strangers = said


__all__ = ["OddReports"]
