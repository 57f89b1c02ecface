"""Finds and reads the metadata files in a container, also while a driver is writing them.

Each file itself is mounted, so a driver can only change it in place, and some drivers truncate it first. A complete file has
the same content in all versions. A partly written file has versions that differ, or invalid JSON, so it is read again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..errors import MetadataError
from .document import Device, Document, decode, decode_whole
from .paths import CLAIMS, CONTAINER_ROOT, SUFFIX, TEMPLATES, base_request

ROOT_VARIABLE = "DRA_DEVICE_METADATA_ROOT"
_RETRY_PAUSES = (0.001, 0.005, 0.02, 0.05, 0.1)  # seconds before each new read of a partly written file


def devices(
    *,
    claim: str = "",
    request: str = "",
    driver: str = "",
    root: Path | None = None,
) -> list[Device]:
    """Returns the devices of this container, sorted by claim, request and driver, then in the driver's order.

    Args:
        claim: the claim's name: for a claim from a template, its name in the pod's ``spec.resourceClaims``; else the
            ResourceClaim's name. Empty means all claims.
        request: the name of the request, with or without the chosen alternative. Empty means all requests.
        driver: the driver's name. Empty means all drivers.
        root: for tests: the folder of the files. By default it is the environment variable DRA_DEVICE_METADATA_ROOT, or else
            the folder that KEP-5304 defines.

    Raises :class:`MetadataError` if a file cannot be read. Without metadata files the result is empty.
    """
    found = [
        d for document in documents(claim=claim, request=request, driver=driver, root=root) for d in document.devices
    ]
    return [d for d in found if not request or request in (d.request, base_request(d.request))]


def documents(*, claim: str = "", request: str = "", driver: str = "", root: Path | None = None) -> list[Document]:
    """Returns the files, each in its first known version. Arguments and errors as for :func:`devices`."""
    top = root or Path(os.environ.get(ROOT_VARIABLE) or CONTAINER_ROOT)
    names = f"{claim or '*'}/{base_request(request) or '*'}/{driver or '*'}{SUFFIX}"
    return [_read(path) for kind in (CLAIMS, TEMPLATES) for path in sorted((top / kind).glob(names))]


def _read(path: Path) -> Document:
    """Reads a file. If it never becomes consistent, returns the first version that can be decoded."""
    for pause in _RETRY_PAUSES:
        if document := decode_whole(_content(path), path):
            return document
        time.sleep(pause)  # a driver may be writing the file
    return decode(_content(path), path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise MetadataError(f"{path}: {e.strerror}") from None
