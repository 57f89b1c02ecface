"""CDI specs: build, validate, write, remove. Source: Container Device Interface specification 1.1.0."""

from .directory import ClaimSpecs
from .edits import ContainerEdits, DeviceNode, Hook, Mount, NetDevice
from .spec import minimum_version, validate_spec

__all__ = [
    "ClaimSpecs",
    "ContainerEdits",
    "DeviceNode",
    "Hook",
    "Mount",
    "NetDevice",
    "minimum_version",
    "validate_spec",
]
