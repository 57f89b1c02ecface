"""Decides whether a claim's devices are ready for binding its pod: their binding conditions (KEP-5007).

As in Kubernetes' scheduler, the status of a device is found by driver, pool and name; the share id is ignored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..cel.library_strings import GO_ESCAPES

TIMEOUT = 600.0  # seconds after the allocation
TIMED_OUT = "device binding timeout"


class Readiness(Enum):
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class BindingState:
    """The state of one allocated claim. ``reason`` is for the pod's event, ``remaining`` the seconds until the timeout."""

    readiness: Readiness
    reason: str = ""
    remaining: float = 0.0

    @property
    def must_deallocate(self) -> bool:
        """Whether the allocation must be removed."""
        return self.readiness in {Readiness.FAILED, Readiness.TIMED_OUT}


def state_of(claim: ReadOnlyJSON, timeout: float = TIMEOUT) -> BindingState:
    """Returns the state of an allocated claim. ``timeout`` is in seconds.

    As in Kubernetes, the first device that is not ready decides. The failure of a later device counts only when all devices before it
    are ready.
    """
    status = claim["status"]
    allocation = status["allocation"]
    known: dict[tuple[str, str, str], dict[str, ReadOnlyJSON]] = {}
    for device in status.get("devices") or []:  # if two shares of a device have entries, the first entry counts
        known.setdefault(_key(device), {c["type"]: c for c in device.get("conditions") or []})
    for result in results_of(claim):
        wanted = result.get("bindingConditions")
        if not wanted:
            continue
        conditions = known.get(_key(result), {})
        for name in result.get("bindingFailureConditions") or []:
            found = conditions.get(name)
            if found and found["status"] == "True":
                details = f"reason={found['reason']}, message={_quoted(found.get('message', ''))}"
                return BindingState(
                    Readiness.FAILED, f"device binding failed: claim={claim['metadata']['name']}, {details}"
                )
        if any(conditions.get(n, {}).get("status") != "True" for n in wanted):
            remaining = _since(allocation.get("allocationTimestamp")) + timeout - time.time()
            return (
                BindingState(Readiness.TIMED_OUT, TIMED_OUT)
                if remaining <= 0
                else BindingState(Readiness.WAITING, remaining=remaining)
            )
    return BindingState(Readiness.READY)


def _key(device: ReadOnlyJSON) -> tuple[str, str, str]:
    return device["driver"], device["pool"], device["device"]


def _since(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else time.time()


def _quoted(text: str) -> str:
    """Quotes a text as Go's ``%q`` does."""
    return '"' + "".join(GO_ESCAPES.get(c) or (c if c.isprintable() else _escaped(ord(c))) for c in text) + '"'


def _escaped(code: int) -> str:
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
