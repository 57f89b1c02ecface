"""The kubelet's times, and how long it may be silent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timers:
    """Seconds. The defaults make tests quick; a real kubelet has 0.5, 45, 30, 60, 5, 10, 300, 0.5 and 122. ``away`` is the node
    controller's, of which Kubernetes has 50."""

    look: float = 0.05  # between looks at plugins_registry
    call: float = 45.0  # for one call of a plugin
    wipe: float = 30.0  # from the last instance's disconnect to the wiping of its slices
    retry: float = 0.5  # between tries for one pod
    health: float = 5.0  # until a health stream that ended is opened again
    crash: float = 10.0  # before the second restart of a container; it doubles with each
    longest_crash: float = 300.0
    mount: float = 0.5  # before volumes that cannot be mounted are tried again; it doubles with each failure
    longest_mount: float = 122.0
    away: float = 50.0  # without a sign of life, until the node is unknown; the kubelet gives five in this time
