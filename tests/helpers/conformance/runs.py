"""Runs the conformance suite in tests, with small sizes and short waits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_conformance import ConformanceProfile, ConformanceRun, run_checks, select_checks
from dra_conformance.driver_command import DriverCommand
from dra_conformance.profile import ConformanceLimits, Pace

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


SHORT = Pace(
    calls=10,
    warm_up=10,
    pings=0.5,
    rejection=3.0,
    slow=1.0,
    returned=8.0,
    watched=2.0,
    writes=4,
    quiet=3.0,
    report=3.0,
    first_health=3.0,
    retry=5.0,
    call=5.0,
)
"""Fewer calls and shorter waits, for the slowest checks."""
PATIENT = replace(SHORT, returned=60.0)
"""For a slow machine, and for drivers that wait before they publish again."""


async def run(
    command: str,
    checks: Sequence[str] = (),
    *,
    rules: Sequence[Mapping[str, Any]] = RULES,
    **profile: Any,
) -> ConformanceRun:
    """Runs checks on a driver. ``profile`` contains fields of the profile."""
    chosen = ConformanceProfile(**{"limits": LIMITS, "pace": SHORT, **PARAMETERS, **profile})
    return await run_checks(DriverCommand.parse(command), chosen, select_checks(checks), rules=rules)


def explained(run_result: ConformanceRun) -> str:
    """Returns the failures of a run, for the message of an assertion."""
    lines = [f"{o.check.id}: expected {o.expected}; got {o.got}\n{o.log}" for o in run_result.outcomes if o.expected]
    return "\n".join([run_result.fault, *lines])
