"""Checks the result of ``Driver.health()``: its types, its taints and its names. An error costs only the entry that has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..base.text import did_you_mean
from ..driver import Health
from ..errors import DriverError, printable, shown
from .validation import taint_fault


def checked_report(report: object) -> dict[str, Health]:
    """Returns the result as a dict with booleans and printable messages. Raises :class:`DriverError` if it is no mapping of such values."""
    if not isinstance(report, Mapping):
        raise DriverError(f"health() returned {type(report).__name__}: it must return a mapping of names to Health")
    out = {}
    for name, health in report.items():
        if not isinstance(name, str) or not isinstance(health, Health):
            raise DriverError(
                f"health() returned {type(name).__name__} → {type(health).__name__}: it must return names → Health"
            )
        if health.healthy not in (True, False, None):
            raise DriverError(
                f"health() returned Health({shown(health.healthy)}) for {printable(name)}: use True, False or None"
            )
        # A vendor's library may return 0 instead of False, but later comparisons with `is` need booleans.
        healthy = None if health.healthy is None else bool(health.healthy)
        out[name] = replace(health, healthy=healthy, message=printable(health.message))
    return out


def without_invalid_taints(report: Mapping[str, Health]) -> tuple[dict[str, Health], list[str]]:
    """Returns the report without taints that the API server would reject, and a sentence for each device with such a taint.

    An unhealthy device without a remaining taint gets the default taint: see :meth:`.HealthPolicy.taints_for`.
    """
    out, errors = dict(report), []
    for name, health in report.items():
        if faults := {taint: fault for taint in health.taints if (fault := taint_fault(taint))}:
            out[name] = replace(health, taints=[t for t in health.taints if t not in faults])
            reasons = "; ".join(faults.values())
            errors.append(
                f"a taint that health() returned for {printable(name)} is invalid and is not published: {reasons}"
            )
    return out, errors


def unknown_names(report: Collection[str], known: Collection[str]) -> list[str]:
    """Returns a sentence for each name in a report that is not the name of a device. ``known`` contains the names of all devices."""
    device_names = {n: n.rpartition("/")[2] for n in report}
    unknown = sorted(n for n, device in device_names.items() if device not in known)
    # The search for a similar name takes milliseconds with thousands of names, so it is done for one name. Devices of the report are not
    # suggested: if the report contains gpu-1 and the removed gpu-2, gpu-2 is not a misspelling of gpu-1.
    hint = did_you_mean(device_names[unknown[0]], set(known).difference(device_names.values())) if unknown else ""
    return [
        f"health() returned {printable(n)}, which is not a device of this node: the entry is ignored{'' if i else hint}"
        for i, n in enumerate(unknown)
    ]
