"""ResourceSlices: packing devices into them, and keeping the API server's copy as it should be."""

from .pack import SliceContent, pack
from .publisher import Publisher

__all__ = ["Publisher", "SliceContent", "pack"]
