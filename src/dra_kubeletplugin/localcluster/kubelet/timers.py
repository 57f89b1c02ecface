"""The intervals and time limits of the kubelets, and of what reacts to nodes and claims."""

from __future__ import annotations

from dataclasses import dataclass

from ...scheduling.framework.binding import TIMEOUT


@dataclass(frozen=True)
class Timers:
    """Intervals in seconds. The defaults keep tests fast.

    A real kubelet uses 0.5, 45, 30, 60, 5, 10, 300, 0.5 and 122, in the order of the fields. ``node_monitor_grace_period``
    belongs to the node controller; Kubernetes uses 50. ``binding_timeout`` belongs to the scheduler; its default is that of
    Kubernetes.
    """

    plugin_poll_interval: float = 0.05  # between two looks at plugins_registry
    call_timeout: float = 45.0  # limit for one call of a plugin
    slice_wipe_delay: float = 30.0  # from the disconnect of the last instance to the deletion of its slices
    pod_sync_backoff: float = 0.5  # after the first failed attempt for a pod; doubles up to eight times this
    health_retry_delay: float = 5.0  # until a health stream that ended is opened again
    crash_loop_backoff: float = 10.0  # before the second restart of a container; doubles with each restart
    crash_loop_backoff_max: float = 300.0
    mount_backoff: float = 0.5  # before failed mounts are retried; doubles with each failure
    mount_backoff_max: float = 122.0
    # Without a sign of life until the node is unknown; the kubelet renews its lease five times in this time
    node_monitor_grace_period: float = 50.0
    binding_timeout: float = TIMEOUT  # from a claim's allocation until its binding conditions must be true (KEP-5007)
