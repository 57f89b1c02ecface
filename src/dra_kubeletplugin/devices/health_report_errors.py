"""Finds errors in a driver's health report: logs each once, and keeps them for readiness while they last."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ..base.telemetry.logs import log_sample
from ..base.text import did_you_mean
from ..driver import Health
from ..errors import printable
from ..resourceapi.types import Taint
from .validation import taint_fault

log = logging.getLogger(__name__)

_MAX_NOTES = 20
_MAX_HINTS = 8  # unknown names of a report for which the nearest name is searched


class HealthReportErrors:
    """The errors of the last report."""

    def __init__(self) -> None:
        self._taints: set[str] = set()
        self._unknown_names: Collection[str] = ()
        self._found: tuple[Collection[str], Collection[str]] = (
            (),
            (),
        )  # the unknown and the known names of the last report

    @property
    def notes(self) -> list[str]:
        """Returns a sentence for each error; if there are many, only the first ones and the number of the others."""
        sentences = sorted(self._taints.union(self._unknown_names))
        more = (
            [f"health() returned {len(sentences) - _MAX_NOTES} more invalid entries"]
            if len(sentences) > _MAX_NOTES
            else []
        )
        return sentences[:_MAX_NOTES] + more

    def without_invalid_taints(self, reports: Mapping[str, Health]) -> dict[str, Health]:
        """Removes taints that the API server would reject. An unhealthy device without another taint then gets the default taint."""
        faults = {n: fault for n, h in reports.items() if h.taints and (fault := _taint_faults(h))}
        sentences = {
            f"a taint that health() returned for {printable(n)} is invalid and is not published: {'; '.join(f.values())}"
            for n, f in faults.items()
        }
        log_sample(log, logging.ERROR, "health() returned an invalid taint: %s", sorted(sentences - self._taints))
        self._taints = sentences
        return dict(reports) | {
            n: replace(reports[n], taints=[t for t in reports[n].taints if t not in f]) for n, f in faults.items()
        }

    def log_unknown_names(self, reports: Collection[str], known: set[str]) -> None:
        """Logs names of the report that are not names of devices. ``known`` are the names of all devices."""
        device_names = {n: n.rpartition("/")[2] for n in reports}
        unknown = sorted(n for n, device in device_names.items() if device not in known)
        if (unknown, known) == self._found:
            return  # searching the nearest of thousands of names takes milliseconds
        # A device that the report also names is not a candidate: the name of a removed card is not a misspelling of another card's name.
        candidates = known.difference(device_names.values()) if unknown else ()
        sentences = [
            f"health() returned {printable(n)}, which is not a device of this node: the entry is ignored"
            + (did_you_mean(device_names[n], candidates) if i < _MAX_HINTS else "")
            for i, n in enumerate(unknown)
        ]
        new_sentences = sorted(set(sentences).difference(self._unknown_names))
        log_sample(log, logging.WARNING, "the health report has an error: %s", new_sentences)
        self._unknown_names, self._found = sentences, (unknown, known)


def _taint_faults(health: Health) -> dict[Taint, str]:
    """Returns the taints that the API server would reject, each with the reason."""
    return {taint: fault for taint in health.taints if (fault := taint_fault(taint))}
