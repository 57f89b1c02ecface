"""Delays between the attempts of work that fails, as `wait.Backoff` of Kubernetes computes them."""

from __future__ import annotations

import dataclasses
import random

_MAX_DOUBLINGS = 32  # a float has no larger powers of two than 2.0 ** 1023


@dataclasses.dataclass
class Backoff:
    """The first delay is ``duration`` seconds, each further delay is twice as long, and none is longer than ``cap``.

    Attributes:
        jitter: the share by which a delay is shortened at most, at random, so that many nodes do not retry at the same time.
        failures: attempts that failed since the last success.
    """

    duration: float
    cap: float
    jitter: float = 0.0
    failures: int = 0

    def next(self) -> float:
        """Counts a failed attempt. Returns the seconds until the next attempt."""
        self.failures += 1
        return self.delay()

    def delay(self) -> float:
        """Returns the seconds between the last failed attempt and the next attempt; 0 if no attempt failed."""
        if self.failures < 1:
            return 0.0
        delay = min(self.cap, self.duration * 2.0 ** min(self.failures - 1, _MAX_DOUBLINGS))
        return delay * random.uniform(1 - self.jitter, 1)

    def reset(self) -> None:
        """Forgets the failures, because an attempt succeeded."""
        self.failures = 0
