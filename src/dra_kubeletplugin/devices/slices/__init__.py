"""ResourceSlices: packing devices into them, and keeping the API server's copy as it should be."""

from .pack import SliceContent, pack
from .publisher import Publisher
from .rejection_events import RejectionEvents
from .scope import ClusterScope, NodeScope, Scope
from .status import PoolStatus, PublisherStatus

__all__ = [
    "ClusterScope",
    "NodeScope",
    "PoolStatus",
    "Publisher",
    "PublisherStatus",
    "RejectionEvents",
    "Scope",
    "SliceContent",
    "pack",
]
