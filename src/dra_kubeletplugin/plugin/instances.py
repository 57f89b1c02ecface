"""Decides which living instance of a plugin on a node publishes slices: the one that started last.

A rolling update runs two instances for a while. Each instance keeps a locked file for its life, see
:mod:`dra_kubeletplugin.claims.instance_lock`; the kernel releases the lock of an instance that was killed. An instance has started when
it has this lock, which is before the driver's ``start()``.
Which instance the kubelet calls is the kubelet's decision: see `grpc/registration.py`.
"""

from __future__ import annotations

from ..claims.instance_lock import InstanceLock


def is_newest(own: InstanceLock) -> bool:
    """Returns whether no other living instance started after ``own``.

    Raises:
        OSError: the files of the other instances cannot be read.
    """
    return all((other.since, other.id) < (own.since, own.id) for other in own.others())
