"""ResourceSlices: packs devices into slices, and keeps the API server's slices equal to the inventory."""

from .leadership import Leadership, WriteLock
from .publisher import Publisher
from .rejection_events import RejectionEvents
from .scope import ClusterScope, NodeScope, Scope
from .status import PublisherStatus
from .taint_times import TaintTimes

__all__ = [
    "ClusterScope",
    "Leadership",
    "NodeScope",
    "Publisher",
    "PublisherStatus",
    "RejectionEvents",
    "Scope",
    "TaintTimes",
    "WriteLock",
]
