"""Formats ages in one unit. kubectl shows two units for some ages, such as `3m20s`."""

from __future__ import annotations

import time
from datetime import datetime


def age(since: str, now: float | None = None) -> str:
    """Formats the time since ``since`` (RFC 3339): ``42s``, ``17m``, ``3h``, ``9d``; empty if it is unknown."""
    try:
        seconds = (time.time() if now is None else now) - datetime.fromisoformat(since).timestamp()
    except (ValueError, OverflowError):  # a time zone's offset can move a time in the year 1 out of range
        return ""
    return duration(seconds)


def ago(since: str, now: float | None = None) -> str:
    """Returns text to append to a cause that an Event reported at ``since``: ``, reported 3m ago``; empty if ``since`` is empty."""
    if not since:
        return ""
    return f", reported {shown} ago" if (shown := age(since, now)) else f", reported at {since}"


def duration(seconds: float) -> str:
    """Formats an age in seconds, as :func:`age`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
