"""Decides whether a claim's devices are ready for binding its pod: their binding conditions (KEP-5007).

As in Kubernetes' scheduler, the status of a device is found by driver, pool and name; the share id is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

JSON = Mapping[str, Any]
TIMEOUT = 600.0  # seconds after the allocation


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
    def over(self) -> bool:
        """Whether the allocation must be removed."""
        return self.readiness in {Readiness.FAILED, Readiness.TIMED_OUT}


def state_of(claim: JSON, timeout: float = TIMEOUT) -> BindingState:
    """Returns the state of an allocated claim. ``timeout`` is in seconds."""
    status = claim["status"]
    allocation = status["allocation"]
    known = {_key(d): {c["type"]: c for c in d.get("conditions") or []} for d in status.get("devices") or []}
    waiting = False
    for result in (allocation.get("devices") or {}).get("results") or []:
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
        waiting = waiting or any(conditions.get(n, {}).get("status") != "True" for n in wanted)
    if not waiting:
        return BindingState(Readiness.READY)
    remaining = _since(allocation.get("allocationTimestamp")) + timeout - time.time()
    return (
        BindingState(Readiness.TIMED_OUT, "device binding timeout")
        if remaining <= 0
        else BindingState(Readiness.WAITING, remaining=remaining)
    )


def _key(device: JSON) -> tuple[str, str, str]:
    return device["driver"], device["pool"], device["device"]


def _since(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else time.time()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
