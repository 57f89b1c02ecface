"""Finds and reads the metadata files in a container, also while a driver is writing them.

The file itself is mounted, so a driver can only change it in place, and some drivers truncate it first. A complete file contains one
object per API version, and all objects have the same content. A partly written file contains different objects or invalid JSON. Such a
file is read again. No program is notified of a change: it calls :func:`devices` again and compares ``generation``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..base.files import read_file
from ..errors import MetadataError
from .document import Device, Document, decode, decode_whole
from .paths import CLAIMS, CONTAINER_ROOT, SUFFIX, TEMPLATES, base_request

ROOT_VARIABLE = "DRA_DEVICE_METADATA_ROOT"
_RETRY_PAUSES = (0.001, 0.005, 0.02, 0.05, 0.1)  # seconds before each repeated read of a partly written file


def devices(
    *,
    claim: str = "",
    request: str = "",
    driver: str = "",
    root: Path | None = None,
) -> list[Device]:
    """Returns the devices of this container.

    Devices of claims without a template come first. Devices are sorted by claim, request and driver; devices of one driver and request
    are in the driver's order.

    Args:
        claim: the name of a claim. For a claim from a template, this is the name in the pod's ``spec.resourceClaims``; for other claims,
            the name of the ResourceClaim. Empty means all claims.
        request: the name of the request, with or without the chosen alternative. Empty means all requests.
        driver: the driver's name. Empty means all drivers.
        root: for tests: the folder of the files. The default is the environment variable DRA_DEVICE_METADATA_ROOT; if it is not set, the
            folder that KEP-5304 defines.

    Raises :class:`MetadataError` if a file cannot be read. Without metadata files the result is empty.
    """
    found = [
        d for document in documents(claim=claim, request=request, driver=driver, root=root) for d in document.devices
    ]
    return [d for d in found if not request or request in (d.request, base_request(d.request))]


def documents(*, claim: str = "", request: str = "", driver: str = "", root: Path | None = None) -> list[Document]:
    """Returns the decoded files. The arguments and errors are those of :func:`devices`."""
    top = root or Path(os.environ.get(ROOT_VARIABLE) or CONTAINER_ROOT)
    names = f"{claim or '*'}/{base_request(request) or '*'}/{driver or '*'}{SUFFIX}"
    return [_read(path) for kind in (CLAIMS, TEMPLATES) for path in sorted((top / kind).glob(names))]


def _read(path: Path) -> Document:
    """Reads and decodes a file. If the file is still partly written after the last retry, decodes its first object of a known version."""
    for pause in _RETRY_PAUSES:
        if document := decode_whole(_content(path), path):
            return document
        time.sleep(pause)  # a driver may be writing the file
    return decode(_content(path), path)


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as e:
        raise MetadataError(f"{path}: {e.strerror}") from None
