"""Finds the metadata files in a container and reads them, also while their writer is at it.

A container has the file itself mounted, so a writer can only change it in place, and some empty it first. Each version in the
stream says the same, so one that is half written is known by that, or is no JSON at all: it is read again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..errors import MetadataError
from .document import Device, Document, decode, is_whole
from .paths import CLAIMS, CONTAINER_ROOT, SUFFIX, TEMPLATES, base_request

ROOT_VARIABLE = "DRA_DEVICE_METADATA_ROOT"
_AGAIN = (0.001, 0.005, 0.02, 0.05, 0.1)  # seconds before each further look at a file that is no whole one


def devices(
    *,
    claim: str = "",
    request: str = "",
    driver: str = "",
    root: Path | None = None,
) -> list[Device]:
    """The devices of this container, by claim, request and driver, then in the driver's order.

    Args:
        claim: as the pod's ``spec.resourceClaims`` has it for a claim made from a template, else the ResourceClaim's name; all where empty.
        request: with or without the alternative that was chosen; all where empty.
        driver: all where empty.
        root: for tests; the well-known folder, or the one that DRA_DEVICE_METADATA_ROOT names, when left out.

    Raises :class:`MetadataError` where a file cannot be read. A container without metadata has no devices: an empty list.
    """
    found = [
        d for document in documents(claim=claim, request=request, driver=driver, root=root) for d in document.devices
    ]
    return [d for d in found if not request or request in (d.request, base_request(d.request))]


def documents(*, claim: str = "", request: str = "", driver: str = "", root: Path | None = None) -> list[Document]:
    """The files themselves, each in the first version that is known here. Arguments and errors as of :func:`devices`."""
    top = root or Path(os.environ.get(ROOT_VARIABLE) or CONTAINER_ROOT)
    out = []
    for kind in (CLAIMS, TEMPLATES):
        for path in _files(top / kind):
            of_claim, of_request = path.parts[-3:-1]
            wanted = (
                (not claim or of_claim == claim)
                and (not request or of_request == base_request(request))
                and (not driver or path.name == driver + SUFFIX)
            )
            if wanted:
                out.append(_read(path))
    return out


def _read(path: Path) -> Document:
    """What the file says; where it stays odd however often it is read, the first version that can be read."""
    for pause in _AGAIN:
        data = _content(path)
        try:
            document = decode(data, path)
            if is_whole(data, document):
                return document
        except MetadataError:
            pass  # its writer may be at it
        time.sleep(pause)
    return decode(_content(path), path)


def _files(top: Path) -> list[Path]:
    """``<claim>/<request>/<driver>-metadata.json`` below ``top``, in order; nothing where there is no such folder."""
    try:
        return sorted(p for claim in _folders(top) for request in _folders(claim) for p in _named(request))
    except OSError as e:
        raise MetadataError(f"{e.filename}: {e.strerror}") from None


def _folders(top: Path) -> list[Path]:
    try:
        return [p for p in top.iterdir() if p.is_dir()]
    except FileNotFoundError:
        return []


def _named(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.endswith(SUFFIX)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise MetadataError(f"{path}: {e.strerror}") from None
