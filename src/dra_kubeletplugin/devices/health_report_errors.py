"""Finds errors in a driver's health report. Logs each error once, and keeps the errors of the last report for readiness."""

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
_MAX_HINTS = 8  # unknown names of a report for which a similar name is suggested


class HealthReportErrors:
    """The errors of the last report."""

    def __init__(self) -> None:
        self._taints: set[str] = set()
        self._unknown: dict[str, str] = {}  # a sentence for each unknown name

    @property
    def notes(self) -> list[str]:
        """Returns a sentence for each error. If there are more than 20, returns 20 of them and a sentence with the number of the rest."""
        sentences = sorted(self._taints.union(self._unknown.values()))
        more = (
            [f"health() returned {len(sentences) - _MAX_NOTES} more invalid entries"]
            if len(sentences) > _MAX_NOTES
            else []
        )
        return sentences[:_MAX_NOTES] + more

    def without_invalid_taints(self, reports: Mapping[str, Health]) -> dict[str, Health]:
        """Returns the reports without taints that the API server would reject.

        An unhealthy device without a remaining taint gets the default taint: see :meth:`.HealthPolicy.taints_for`.
        """
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
        """Logs each name in the report that is not the name of a device. ``known`` contains the names of all devices."""
        device_names = {n: n.rpartition("/")[2] for n in reports}
        unknown = sorted(n for n, device in device_names.items() if device not in known)
        new = [n for n in unknown if n not in self._unknown]
        # Devices of the report are not suggested: if the report contains gpu-1 and the removed gpu-2, gpu-2 is not a misspelling of gpu-1.
        # The search for similar names among thousands of names takes milliseconds, so it happens only for new names.
        candidates = known.difference(device_names.values()) if new else ()
        sentences = {
            n: f"health() returned {printable(n)}, which is not a device of this node: the entry is ignored"
            + (did_you_mean(device_names[n], candidates) if i < _MAX_HINTS else "")
            for i, n in enumerate(new)
        }
        log_sample(log, logging.WARNING, "the health report has an error: %s", list(sentences.values()))
        self._unknown = {n: sentences.get(n) or self._unknown[n] for n in unknown}


def _taint_faults(health: Health) -> dict[Taint, str]:
    """Returns the taints that the API server would reject, each with the reason."""
    return {taint: fault for taint in health.taints if (fault := taint_fault(taint))}
