"""ResourceSlices: packs devices into slices, and keeps the API server's slices equal to the inventory."""

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
