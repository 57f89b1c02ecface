"""ResourceSlices: packing devices into them, and keeping the API server's copy as it should be."""

from .pack import SliceContent, pack
from .publisher import Publisher
from .scope import ClusterScope, NodeScope, Scope

__all__ = ["ClusterScope", "NodeScope", "Publisher", "Scope", "SliceContent", "pack"]
