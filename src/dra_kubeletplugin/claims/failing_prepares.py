"""The claims whose last prepare failed: what readiness and the status page show while pods wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from ..base.age import duration
from ..errors import DraError, StoppingError
from .claim_fields import ClaimIdentity

_MAX = 1_000  # claims that are remembered
# The kubelet retries a prepare at least every two minutes. Without a call for this time in seconds, it does not want the claim any more.
_FORGET_AFTER = 600.0


class _Failure(msgspec.Struct):
    claim: ClaimIdentity
    pod: str
    error: str
    since: float
    last: float
    tries: int = 0


class FailingPrepares:
    """The failed prepares of one instance. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failure] = {}  # by UID

    def failed(self, claim: ClaimIdentity, error: DraError, pod: str = "") -> None:
        """Records a failed prepare.

        Args:
            pod: ``namespace/name`` of the pod that waits for the claim; empty if it is not known.
        """
        if isinstance(error, StoppingError):
            return
        now = self._clock()
        failure = self._failures.setdefault(claim.uid, _Failure(claim, pod, "", now, now))
        failure.error, failure.last, failure.tries = error.event(), now, failure.tries + 1
        failure.pod = pod or failure.pod
        while len(self._failures) > _MAX:
            del self._failures[next(iter(self._failures))]

    def ended(self, uid: str) -> None:
        """Call it when a claim is prepared or unprepared."""
        self._failures.pop(uid, None)

    def lines(self) -> Iterator[str]:
        """Yields a sentence for each claim that cannot be prepared now: the claim, its pod, the error, since when, and the last try."""
        now = self._clock()
        for uid in [uid for uid, f in self._failures.items() if now - f.last > _FORGET_AFTER]:
            del self._failures[uid]
        for f in self._failures.values():
            pod = f"pod {f.pod} does not start" if f.pod else "its pod does not start"
            last = f"last try {duration(now - f.last)} ago"
            tries = f"for {duration(now - f.since)}, {f.tries} tries, {last}" if f.tries > 1 else last
            yield f"claim {f.claim} cannot be prepared, and {pod} ({tries}): {f.error}"

    def __len__(self) -> int:
        return sum(1 for _ in self.lines())
