"""Runs the conformance suite in tests, with small sizes and short waits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_conformance import ConformanceProfile, ConformanceRun, harness, run_checks, select_checks
from dra_conformance.checks import health, performance, prepare, registration, slices
from dra_conformance.driver_command import DriverCommand
from dra_conformance.profile import ConformanceLimits

ROOT = Path(__file__).parents[3]
PLAIN = f"{shlex.quote(sys.executable)} -m tests.helpers.conformance.plain_driver"
VARIANT = f"{shlex.quote(sys.executable)} -m tests.helpers.conformance.variants"
PARAMETERS = {
    "valid": {"ok.json": {"kind": "PlainConfig", "mode": "fast"}},
    "invalid": {"bad.json": {"kind": "PlainConfig", "mode": "magic"}},
    "errors": {"bad.json": "mode"},
}
"""Fields of a profile for the parameters of the plain driver."""
RULES = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
]
"""The rules of the plain driver's ClusterRole."""
LIMITS = ConformanceLimits(idle=3.0, kills=4, cycles=40)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the slowest checks quick: fewer calls, shorter waits."""
    monkeypatch.setattr(performance, "_CALLS", 10)
    monkeypatch.setattr(performance, "_WARM_UP", 10)
    monkeypatch.setattr(registration, "_PINGS", 0.5)
    monkeypatch.setattr(registration, "_LOG", 3.0)
    monkeypatch.setattr(prepare, "_SLOW", 1.0)
    monkeypatch.setattr(slices, "_RETURN", 8.0)
    monkeypatch.setattr(slices, "_WATCHED", 2.0)
    monkeypatch.setattr(slices, "_MANY_WRITES", 4)
    monkeypatch.setattr(slices, "_REPORT", 3.0)
    monkeypatch.setattr(slices, "_SETTLED", 3.0)
    monkeypatch.setattr(health, "_FIRST", 3.0)
    monkeypatch.setattr(harness, "_RETRY", 5.0)
    monkeypatch.setattr(harness, "CALL_TIMEOUT", 5.0)


async def run(
    command: str,
    checks: Sequence[str] = (),
    *,
    rules: Sequence[Mapping[str, Any]] = RULES,
    **profile: Any,
) -> ConformanceRun:
    """Runs checks on a driver. ``profile`` contains fields of the profile."""
    chosen = ConformanceProfile(**{"limits": LIMITS, **PARAMETERS, **profile})
    return await run_checks(DriverCommand.parse(command), chosen, select_checks(checks), rules=rules)


def explained(run_result: ConformanceRun) -> str:
    """Returns the failures of a run, for the message of an assertion."""
    lines = [f"{o.check.id}: expected {o.expected}; got {o.got}\n{o.log}" for o in run_result.outcomes if o.expected]
    return "\n".join([run_result.fault, *lines])
