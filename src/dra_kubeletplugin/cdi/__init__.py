"""CDI specs: build, write, remove. Source: Container Device Interface specification 1.1.0."""

from .directory import ClaimSpecs
from .edits import ContainerEdits, DeviceNode, Hook, Mount, NetDevice

__all__ = [
    "ClaimSpecs",
    "ContainerEdits",
    "DeviceNode",
    "Hook",
    "Mount",
    "NetDevice",
]
