"""ResourceSlices: packs devices into slices, and keeps the API server's slices equal to the inventory."""

from .leadership import Leadership
from .publisher import Publisher
from .scope import ClusterScope, NodeScope, Scope
from .status import PublisherStatus

__all__ = [
    "ClusterScope",
    "Leadership",
    "NodeScope",
    "Publisher",
    "PublisherStatus",
    "Scope",
]
