"""Describes a device's state in a few words, for the screen and for the table."""

from __future__ import annotations

import time
from datetime import datetime

from ...resourceapi.usage.rows import DeviceRow, DeviceUse, HealthRow


def health(row: DeviceRow) -> str:
    """Describes a device's health; the worst condition wins."""
    if row.use is DeviceUse.VANISHED:
        return "✕ vanished"
    if row.taints:
        more = f" +{len(row.taints) - 1}" if len(row.taints) > 1 else ""
        return f"▲ {row.taints[0].partition('/')[2] or row.taints[0]}{more}"
    broken = [c for h in row.holders for c in h.conditions]
    if row.health is HealthRow.UNHEALTHY or broken:
        return f"▲ {row.message or (broken[0] if broken else 'unhealthy')}"
    return {HealthRow.HEALTHY: "✓ healthy", HealthRow.UNKNOWN: "? unknown"}.get(row.health, "")


def holder(row: DeviceRow) -> str:
    """Returns the first holder, as its pod or else its claim, and the number of further holders."""
    names = [f"{h.pods[0] if h.pods else h.claim}{' (admin)' if h.admin else ''}" for h in row.holders]
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0] + more if names else ""


def age(since: str, now: float | None = None) -> str:
    """Formats an age as kubectl does: ``42s``, ``17m``, ``3h``, ``9d``; empty if it is unknown."""
    try:
        seconds = (time.time() if now is None else now) - datetime.fromisoformat(since).timestamp()
    except (ValueError, OverflowError):  # a time zone's offset can move a time in the year 1 out of range
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
