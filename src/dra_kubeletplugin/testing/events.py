"""Why a pod does not run: its events, folded, and whether waiting is of any use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import (
    BadAnswerError,
    ConfigError,
    DraError,
    DriverError,
    DriverFailedError,
    HostPathMissingError,
    InvalidObjectError,
    InvalidSpecError,
    PermanentError,
)

JSON = dict[str, Any]
_HOPELESS: tuple[type[DraError], ...] = (
    PermanentError, ConfigError, BadAnswerError, DriverError, InvalidObjectError, InvalidSpecError
)  # fmt: skip
_MARKS = tuple(f"[{e.code}]" for e in _HOPELESS)  # as `DraError.event` ends
# Tried again, and most often the same again.
_FAILS = tuple(f"[{e.code}]" for e in (DriverFailedError, HostPathMissingError))
_OF_CLAIM = re.compile(r"^Failed to prepare dynamic resources: .* for ResourceClaim [^ :]+: ", re.DOTALL)
_STUCK = ("FailedScheduling", "FailedResourceClaimCreation")
_PASSING = "device binding"  # failed or timed out: the scheduler tries again by itself (KEP-5007)


@dataclass(frozen=True)
class Event:
    """An Event, with its repeats counted.

    Args:
        type: ``Normal`` or ``Warning``.
        source: the component that told it.
    """

    type: str
    reason: str
    message: str
    source: str
    count: int = 1

    def __str__(self) -> str:
        times = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.type} {self.reason}{times} from {self.source}: {self.message}"


class PodError(AssertionError):
    """A pod does not do what was waited for. The text has its events, each once.

    Args:
        why: one sentence.
        events: the pod's, oldest first.
    """

    def __init__(self, why: str, events: Sequence[Event]) -> None:
        self.why = why
        self.events = tuple(events)
        told = "".join(f"\n  {e}" for e in events) or "\n  no event was told about it"
        super().__init__(f"{why}{told}")


def folded(objects: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Event objects of ``v1``, oldest first; those that say the same are one with the sum of the counts."""
    out: dict[Event, int] = {}
    for obj in sorted(objects, key=_first_told):
        source = (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""
        event = Event(obj.get("type") or "", obj.get("reason") or "", obj.get("message") or "", source)
        series = obj.get("series") or {}
        out[event] = out.get(event, 0) + int(obj.get("count") or series.get("count") or 1)
    return [replace(event, count=count) for event, count in out.items()]


def has_run(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Running", "Succeeded"}


def hopeless(name: str, pod: Mapping[str, Any] | None, events: Sequence[Event]) -> str:
    """Why the pod will never run, as one sentence; empty while it may."""
    if pod is None:
        return f"pod {name} is gone"
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted"
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return f"pod {name} failed: {status.get('message') or status.get('reason') or 'no reason given'}"
    refused = next((e for e in events for mark in _MARKS if mark in e.message), None)
    return f"pod {name} will not run: {reason_of(refused)}" if refused else ""


def reason_of(event: Event) -> str:
    """What an event says, without what the kubelet says of every claim that cannot be prepared."""
    return _OF_CLAIM.sub("", event.message)


def last_fault(events: Sequence[Event]) -> str:
    """What went wrong last, to be put behind a sentence; empty where nothing did."""
    found = next((e for e in reversed(events) if e.type == "Warning"), None)
    return f": {reason_of(found)}" if found else ""


def fails(events: Sequence[Event]) -> str:
    """What comes of each try to prepare the pod's claims: what the driver raises, or the path that the host has not.

    Empty where that is not what is in the way.
    """
    # That a pod was placed is told in the background, and perhaps late.
    last = next((e for e in reversed(events) if e.reason != "Scheduled"), None)
    return reason_of(last) if last and any(mark in last.message for mark in _FAILS) else ""


def stuck(pod: Mapping[str, Any], events: Sequence[Event]) -> str:
    """What the pod waits for as one text, which stays the same until somebody changes something; empty while work is under way."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    waits = [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    refused = [e for e in events if e.reason in _STUCK]
    if pod["spec"].get("nodeName") or not refused or _PASSING in refused[-1].message:
        return ""
    return "; ".join([*(c.get("message") or c.get("reason") or "" for c in waits), refused[-1].message])


def _first_told(obj: Mapping[str, Any]) -> tuple[str, int]:
    version = obj["metadata"].get("resourceVersion", "0")
    when = obj["metadata"].get("creationTimestamp") or ""
    return when, int(version) if version.isdecimal() else 0
