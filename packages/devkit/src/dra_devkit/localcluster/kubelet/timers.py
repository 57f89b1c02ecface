"""The intervals and time limits of the kubelets, the node controller and the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from ...scheduling.framework.binding import TIMEOUT


@dataclass(frozen=True)
class Timers:
    """Intervals in seconds. The defaults keep tests fast.

    A real kubelet uses 0.5, 45, 30, 60, 5, 10, 300, 0.5 and 122 for the first nine fields, in this order. The controllers
    use ``node_monitor_grace_period`` and ``missing_node_wait``, and the scheduler uses ``binding_timeout``; their defaults
    are those of Kubernetes.
    """

    plugin_poll_interval: float = 0.05  # between two reads of plugins_registry
    call_timeout: float = 45.0  # timeout of one call to a plugin
    slice_wipe_delay: float = 30.0  # from the disconnect of a driver's last instance to the deletion of its slices
    pod_sync_backoff: float = 0.5  # after the first failed sync of a pod; doubles up to eight times this value
    health_retry_delay: float = 5.0  # until a health stream that ended is opened again
    crash_loop_backoff: float = 10.0  # before the second restart of a container; doubles with each restart
    crash_loop_backoff_max: float = 300.0
    mount_backoff: float = 0.5  # before failed mounts are retried; doubles with each failure
    mount_backoff_max: float = 122.0
    # From the last renewal of a node's Lease until the node's conditions become Unknown. The kubelet renews its Lease five times in
    # this period.
    node_monitor_grace_period: float = 50.0
    missing_node_wait: float = 40.0  # from the deletion of a node until its pods are deleted
    binding_timeout: float = TIMEOUT  # from a claim's allocation until its binding conditions must be true (KEP-5007)
