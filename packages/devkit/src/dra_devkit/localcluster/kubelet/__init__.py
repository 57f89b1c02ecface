"""The kubelet of a node: registers plugins, prepares and unprepares claims, starts pods, and wipes slices.

It behaves like the kubelet 1.36.2.
"""

from .kubelet import LocalKubelet
from .timers import Timers

__all__ = ["LocalKubelet", "Timers"]
