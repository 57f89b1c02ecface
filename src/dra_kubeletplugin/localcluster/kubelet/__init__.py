"""The kubelet: watches for plugins, prepares claims, starts pods, unprepares, wipes slices. Observed on a real 1.36.2."""

from .kubelet import Kubelet
from .timers import Timers

__all__ = ["Kubelet", "Timers"]
