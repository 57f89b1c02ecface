"""The kubelet's times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timers:
    """Seconds. The defaults make tests quick; a real kubelet has 0.5, 45, 30, 60, 5, 10 and 300."""

    look: float = 0.05  # between looks at plugins_registry
    call: float = 45.0  # for one call of a plugin
    wipe: float = 30.0  # from the last instance's disconnect to the wiping of its slices
    retry: float = 0.5  # between tries for one pod
    health: float = 5.0  # until a health stream that ended is opened again
    crash: float = 10.0  # before the second restart of a container; it doubles with each
    longest_crash: float = 300.0
