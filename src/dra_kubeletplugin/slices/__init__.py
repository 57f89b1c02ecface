"""ResourceSlices: packing devices into them, and keeping the API server's copy as it should be."""

from .notices import Notices
from .pack import SliceContent, pack
from .publisher import Publisher
from .scope import ClusterScope, NodeScope, Scope
from .status import PoolStatus, PublisherStatus

__all__ = [
    "ClusterScope",
    "NodeScope",
    "Notices",
    "PoolStatus",
    "Publisher",
    "PublisherStatus",
    "Scope",
    "SliceContent",
    "pack",
]
