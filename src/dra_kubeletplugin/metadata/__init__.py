"""What a program in a container knows of its devices, without asking the API server (KEP-5304).

A driver that turns it on has a file for each request mounted into the containers that use it. Reading needs nothing but this package::

    from dra_kubeletplugin import metadata

    for device in metadata.devices():
        print(device.request, device.name, device.attributes.get("model"))

``python -m dra_kubeletplugin.metadata`` prints the same as a table, with ``-o json`` for scripts.
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
