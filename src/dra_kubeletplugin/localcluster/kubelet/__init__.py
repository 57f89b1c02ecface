"""The node's kubelet: registers plugins, prepares claims, starts pods, unprepares and wipes slices.

Its behavior follows a real kubelet 1.36.2.
"""

from .kubelet import LocalKubelet
from .timers import Timers

__all__ = ["LocalKubelet", "Timers"]
