"""Reads Kubernetes' Events about pods with devices: the cause without its prefixes, the objects that it names, and its time.

Sources: pkg/kubelet/cm/dra/manager.go, pkg/kubelet/kuberuntime and pkg/controller/resourceclaim of Kubernetes 1.31 to 1.37.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dra_kubeletplugin.base.text import duration

_NAME = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Each component that returns an error puts such a text before it.
_PREFIX = re.compile(
    r"(?:"
    r"\(combined from similar events\)"
    r"|failed to prepare dynamic resources"
    r"|prepare dynamic resources"
    rf"|(?:NodePrepareResources failed for|fetch) (?:ResourceClaim|claim) (?P<claim>(?:{_NAME}/)?{_NAME})"
    r"|NodePrepareResources(?: failed)?"
    rf"|Pod(?:Group)?ResourceClaim {_NAME}"
    r"|(?:failed to )?create ResourceClaim ?"
    r'|resourceclaims\.resource\.k8s\.io "[^"]+" is forbidden'
    r"|rpc error"
    r"):\s+(?:code = \w+ desc = )?",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"\b(?P<kind>(?:resource)?claim|pod) \"?(?P<namespace>{_NAME})/(?P<name>{_NAME})\"?"
    rf"(?:[: ]\(?(?:UID )?(?P<uid>{_UUID}))?"
    rf"|\b(?P<by_uid>(?:resource)?claim|pod)(?: UID)? (?P<only>{_UUID})",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"\b(?P<kind>resourceclaimtemplate|resourceclaim|deviceclass|pod)(?:e?s)?(?:\.resource\.k8s\.io)? "
    r"\"(?P<name>[^\"]+)\" not found",
    re.IGNORECASE,
)


class NamedObject(NamedTuple):
    """An object that a message names. ``kind`` is the kind in lower case, such as ``claim``; empty fields are not known.

    ``absent`` is set if the message says that the object does not exist.
    """

    kind: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    absent: bool = False

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where or f'with UID {self.uid}'}"


def without_prefixes(message: str) -> str:
    """Returns the cause in a message, without the prefixes that kubelet and controllers add for every failed claim."""
    rest = message
    while (found := _PREFIX.match(rest)) and found.end() < len(rest):
        rest = rest[found.end() :]
    return rest


def named_objects(message: str) -> Iterator[NamedObject]:
    """Yields the claims, pods, templates and classes that a message names. The kubelet names a claim without its namespace."""
    rest = message
    while (prefix := _PREFIX.match(rest)) and prefix.end() < len(rest):
        if claim := prefix["claim"]:
            namespace, _, name = claim.rpartition("/")
            yield NamedObject("claim", namespace, name)
        rest = rest[prefix.end() :]
    for found in _NAMED.finditer(rest):
        kind = (found["kind"] or found["by_uid"]).lower().removeprefix("resource")
        yield NamedObject(kind, found["namespace"] or "", found["name"] or "", found["uid"] or found["only"] or "")
    for found in _ABSENT.finditer(rest):
        kind = found["kind"].lower()
        yield NamedObject("claim" if kind == "resourceclaim" else kind, name=found["name"], absent=True)


_CORE_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}


def as_core_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an Event of events.k8s.io, as ``kubectl get events.events.k8s.io`` writes it, in the form of v1."""
    return {_CORE_NAMES.get(name, name): value for name, value in event.items()} | {"apiVersion": "v1"}


def time_of(event: Mapping[str, Any]) -> str:
    """Returns when an Event was last seen, in seconds and UTC, so that texts compare like times."""
    series = event.get("series") or {}
    created = (event.get("metadata") or {}).get("creationTimestamp")
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or created or ""
    return re.sub(r"\.[0-9]+Z$", "Z", str(time))


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
