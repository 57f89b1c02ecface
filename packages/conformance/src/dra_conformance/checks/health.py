"""HLT: device health. A driver announces the feature in its supported versions."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import Any

import grpc.aio

from dra_kubeletplugin.resourceapi.allocation import results_of

from ..catalogue import CheckFailed, CheckNotApplicable, CheckSkipped, expect, may
from ..harness import Harness
from ..kubelet_client import HEALTH_VERSIONS, first_message
from .slices import idle, require_published

_CHANGE = 45.0  # seconds until a change is reported
_EXPIRY = 30.0  # seconds for which a report without a timeout is valid
_HEALTHY, _UNHEALTHY = 1, 2
_SOURCE = "KEP-4680; kubelet: pkg/kubelet/cm/dra, NodeWatchResources"


def announced(h: Harness) -> list[str]:
    found = [v for v in HEALTH_VERSIONS if v in h.plugin.info.versions]
    if not found:
        raise CheckNotApplicable("the driver announces no health service")
    return found


async def first_report(h: Harness, version: str) -> Mapping[tuple[str, str], Any]:
    try:
        found = await first_message(h.plugin.health(version), h.profile.pace.first_health)
    except grpc.aio.AioRpcError as e:
        raise CheckFailed(f"{version} streams", f"{e.code().name}: {e.details()}") from None
    if found is None:
        if not h.may_change:
            raise CheckSkipped("the driver sends no message: a driver may report prepared devices only")
        raise CheckFailed(f"a message of {version} within {h.profile.pace.first_health:g} s", "none")
    return found


@may(
    "HLT-001",
    "reports the health of prepared devices when the stream opens",
    consequence="the status of pods shows the health Unknown",
    source=_SOURCE,
)
async def full_report(h: Harness) -> None:
    """Prepares a claim, opens the health stream, and waits for a report of its device."""
    version = announced(h)[0]
    claim = await h.prepared_claim()
    await first_report(h, version)
    limit = h.profile.pace.first_health
    for result in results_of(claim):
        key = (result["pool"], result["device"])
        reported = await _reports(h, version, key, limit)
        expect(reported, f"a report for device {'/'.join(key)} within {limit:g} s", "reports for other devices only")


@may(
    "HLT-002",
    "repeats reports before they expire, and reports a change in time",
    consequence="the status of pods shows the health Unknown, or a broken device as healthy",
    source=f"{_SOURCE}: a report expires after its timeout, 30 s by default",
    limit=240,
)
async def repeated(h: Harness) -> None:
    """Compares the pauses between messages with the timeouts of the reports. Runs the hooks make_unhealthy and make_healthy."""
    version = announced(h)[0]
    messages = (await idle(h))["health"]
    expect(messages, "messages while the driver is idle", "none")
    times = [at for at, _ in messages]
    last = messages[-1][1]
    valid = min((d.health_check_timeout_seconds or _EXPIRY for d in last.values()), default=math.inf)
    gaps = [b - a for a, b in zip(times, [*times[1:], times[0] + h.profile.limits.idle], strict=True)]
    expect(max(gaps) <= valid, f"at most {valid:g} s between messages", f"{max(gaps):.0f} s")
    if "make_unhealthy" not in h.profile.hooks:
        h.facts["figures"].append("no change of health was tested: add the hook make_unhealthy to the profile")
        return
    device = sorted(await require_published(h))[0]
    try:
        await h.hook("make_unhealthy", device=device[1])
        reported = await _reports(h, version, device, _CHANGE, _UNHEALTHY)
    finally:
        await h.hook("make_healthy", device=device[1])
    if not await _reports(h, version, device, _CHANGE, _HEALTHY):
        await h.reset()  # because a driver may keep a device unhealthy until its next start
    expect(reported, f"device {device[1]} is reported as unhealthy within {_CHANGE:g} s", "it is not")


async def _reports(
    h: Harness, version: str, device: tuple[str, str], timeout: float, health: int | None = None
) -> bool:
    """Waits until the driver reports this health, or any health, of a device. Returns false after ``timeout`` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout), contextlib.aclosing(h.plugin.health(version)) as stream:
            async for reports in stream:
                if device in reports and health in {None, reports[device].health}:
                    return True
    return False


@may(
    "HLT-003",
    "reports again when the stream is opened again",
    consequence="after a restart of the kubelet the health of devices is Unknown",
    source="e2e_node: health connections recover after a drop",
    attach=True,
)
async def reopened(h: Harness) -> None:
    """Opens the health stream twice, and compares the devices of the first messages."""
    version = announced(h)[0]
    await h.prepare_if_possible()
    first = await first_report(h, version)
    again = await first_report(h, version)
    missing = sorted("/".join(key) for key in set(first) - set(again))
    expect(not missing, "the same devices in the first message of the second stream", f"missing: {missing}")


@may(
    "HLT-004",
    "serves each version of the health service that it announces",
    consequence="kubelets before 1.37, or kubelets from 1.37 on, show the health Unknown",
    source="e2e_node: one stream, of the newest version that both sides know",
    attach=True,
)
async def versions(h: Harness) -> None:
    """Opens the health stream in each version, and compares the devices of the first messages."""
    announced_versions = announced(h)
    await h.prepare_if_possible()
    found = {version: set(await first_report(h, version)) for version in announced_versions}
    expect(len({frozenset(v) for v in found.values()}) == 1, "the same devices in each version", found)
