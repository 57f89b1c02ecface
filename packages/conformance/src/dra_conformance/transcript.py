"""The transcript of a run: gRPC calls of the suite, HTTP requests of the driver, and events of the driver's process."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dra_devkit.localcluster.apiserver.access import AccessRequest

_KEPT = 20_000  # maximum number of entries
_CAUSED_BY_CONTENT = frozenset({400, 404, 409, 410, 413, 422})  # malformed, absent, changed or invalid objects
_TEXT = 2_000  # maximum characters of a request or response


@dataclass(frozen=True)
class TranscriptEntry:
    """One call or event. ``at`` is in seconds since the start of the run."""

    at: float
    kind: str  # gRPC, HTTP or driver
    summary: str
    request: str = ""
    response: str = ""


@dataclass(frozen=True)
class HttpCall:
    """A request of the driver to the API server.

    Args:
        access: the access that the request needs, without its namespace; empty texts for a path without a resource.
        error: the message of a rejected request.
    """

    at: float
    method: str
    path: str
    access: AccessRequest
    status: int
    dry_run: bool = False
    error: str = ""


@dataclass
class Transcript:
    """Entries and requests of the driver, in order of time: the last 20,000 of each."""

    began: float = field(default_factory=time.monotonic)
    entries: deque[TranscriptEntry] = field(default_factory=lambda: deque(maxlen=_KEPT))
    calls: deque[HttpCall] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def add(self, kind: str, summary: str, request: Any = "", response: Any = "") -> None:
        self.entries.append(TranscriptEntry(self.now, kind, summary, cut(request), cut(response)))

    def since(self, at: float) -> list[TranscriptEntry]:
        return [e for e in self.entries if e.at >= at]

    def calls_since(self, at: float) -> list[HttpCall]:
        return [c for c in self.calls if c.at >= at]

    def writes_since(self, at: float) -> list[HttpCall]:
        """Returns the driver's requests that change ResourceSlices."""
        found = (c for c in self.calls_since(at) if c.access.resource == "resourceslices" and not c.dry_run)
        return [c for c in found if c.method not in {"GET", "HEAD"}]

    def refusals(self) -> list[str]:
        """Returns the rejected requests that the driver does not cause by their content, with the message of the API server."""
        found = (c for c in self.calls if c.status >= 400 and c.status not in _CAUSED_BY_CONTENT)
        return [f"{c.method} {c.path} -> {c.status} {c.error}" for c in found]


def cut(value: Any) -> str:
    """Returns the value as text, which is cut if it is too long."""
    text = (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ... ({len(text)} characters)"
