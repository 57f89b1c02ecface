"""Reads the metadata of a container's devices from mounted files, without access to the API server (KEP-5304).

If a driver writes metadata, a container has one mounted file for each request that it uses and each driver of that request. Programs
need only this package to read the files::

    from dra_kubeletplugin import metadata

    for device in metadata.devices():
        print(device.request, device.name, device.attributes.get("model"))

A driver may change a file while the container runs. No program is notified: call :func:`devices` again and compare ``generation``,
which each change increases by 1.

``python -m dra_kubeletplugin.metadata`` prints the devices as a table; with ``-o json`` it prints JSON.
"""

from ..errors import MetadataError
from .document import ClaimRef, Device, Document, Network, Value
from .paths import CONTAINER_ROOT
from .reader import devices, documents

__all__ = [
    "CONTAINER_ROOT",
    "ClaimRef",
    "Device",
    "Document",
    "MetadataError",
    "Network",
    "Value",
    "devices",
    "documents",
]
