"""Explains why a pod does not run: merges its events and decides whether waiting longer can help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dra_devkit.event_messages import age
from dra_kubeletplugin.errors import (
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

from ..event_messages import time_of, without_prefixes

_PERMANENT: tuple[type[DraError], ...] = (
    PermanentError,
    ConfigError,
    BadAnswerError,
    DriverError,
    InvalidObjectError,
    InvalidSpecError,
)
_PERMANENT_CODES = tuple(f"[{e.code}]" for e in _PERMANENT)  # `DraError.event()` puts the code at the end of its text
# The kubelet retries these, mostly with the same result.
_RETRIED_CODES = tuple(f"[{e.code}]" for e in (DriverFailedError, HostPathMissingError))
_UNSCHEDULABLE = ("FailedScheduling", "FailedResourceClaimCreation")
_TRANSIENT = (
    "device binding"  # in the message if a binding failed or timed out: the scheduler then retries by itself (KEP-5007)
)


@dataclass(frozen=True)
class Event:
    """An Event with the number of its repeats.

    Args:
        type: ``Normal`` or ``Warning``.
        source: the component that reported it.
        time: when it was last reported, RFC 3339; equal Events may have other times.
    """

    type: str
    reason: str
    message: str
    source: str
    count: int = 1
    time: str = field(default="", compare=False)

    @property
    def head(self) -> str:
        """The event without its message."""
        times = f" (x{self.count})" if self.count > 1 else ""
        # Only a warning states a cause, which may have changed since.
        since = f" {shown} ago" if self.type == "Warning" and (shown := age(self.time)) else ""
        return f"{self.type} {self.reason}{times} from {self.source}{since}"

    def __str__(self) -> str:
        return f"{self.head}: {self.message}"


class PodError(AssertionError):
    """Raised if a pod did not reach the expected state. The text lists the pod's events, each once.

    An event whose message is in ``why`` is listed without its message.

    Args:
        why: one sentence.
        events: the pod's events, oldest first.
    """

    def __init__(self, why: str, events: Sequence[Event]) -> None:
        self.why = why
        self.events = tuple(events)
        lines = (
            "".join(f"\n  {e.head}, as above" if reason_of(e) in why else f"\n  {e}" for e in events) or "\n  no events"
        )
        super().__init__(f"{why}{lines}")


def merge_events(objects: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Merges ``v1`` Event objects with equal text into one event with the sum of their counts, oldest first."""
    out: dict[Event, int] = {}
    times: dict[Event, str] = {}
    for obj in sorted(objects, key=_sort_key):
        source = (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""
        event = Event(obj.get("type") or "", obj.get("reason") or "", obj.get("message") or "", source)
        series = obj.get("series") or {}
        out[event] = out.get(event, 0) + int(obj.get("count") or series.get("count") or 1)
        times[event] = max(times.get(event, ""), time_of(obj))
    return [replace(event, count=count, time=times[event]) for event, count in out.items()]


def has_run(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Running", "Succeeded"}


def permanent_failure(name: str, pod: Mapping[str, Any] | None, events: Sequence[Event]) -> str:
    """Returns one sentence that says why the pod will never run, or "" if it may still run."""
    if pod is None:
        return f"pod {name} is gone"
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted"
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return f"pod {name} failed: {status.get('message') or status.get('reason') or 'no reason given'}"
    refused = next((e for e in events for mark in _PERMANENT_CODES if mark in e.message), None)
    return f"pod {name} will not run: {reason_of(refused)}" if refused else ""


def reason_of(event: Event) -> str:
    """Returns the cause in the event's message, without the prefixes of kubelet and controllers."""
    return without_prefixes(event.message)


def last_warning(events: Sequence[Event]) -> str:
    """Returns the message of the newest warning, to append to a sentence, or "" if there is no warning."""
    found = next((e for e in reversed(events) if e.type == "Warning"), None)
    return f": {reason_of(found)}" if found else ""


def prepare_failure(events: Sequence[Event]) -> str:
    """Returns why the newest attempt to prepare the pod's claims failed: the driver's exception, or a path that the host lacks.

    Returns "" if preparing is not the cause of the delay.
    """
    # The "Scheduled" event is written in the background and may arrive late.
    last = next((e for e in reversed(events) if e.reason != "Scheduled"), None)
    return reason_of(last) if last and any(mark in last.message for mark in _RETRIED_CODES) else ""


def unschedulable_reason(pod: Mapping[str, Any], events: Sequence[Event]) -> str:
    """Returns the reason why the pod is unschedulable, or "" if it is not. The text changes only when the cause changes."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    waits = [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    refused = [e for e in events if e.reason in _UNSCHEDULABLE]
    if pod["spec"].get("nodeName") or not refused or _TRANSIENT in refused[-1].message:
        return ""
    return "; ".join([*(c.get("message") or c.get("reason") or "" for c in waits), refused[-1].message])


def _sort_key(obj: Mapping[str, Any]) -> tuple[str, int]:
    version = obj["metadata"].get("resourceVersion", "0")
    when = obj["metadata"].get("creationTimestamp") or ""
    return when, int(version) if version.isdecimal() else 0
