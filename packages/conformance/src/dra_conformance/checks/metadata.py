"""MET: metadata files for workloads (KEP-5304). A driver offers them with mounts in its CDI specs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dra_kubeletplugin.resourceapi.allocation import results_of

from ..catalogue import CheckFailed, CheckNotApplicable, CheckSkipped, expect, may
from ..harness import REMOVAL, Harness

_TARGET = "/var/run/kubernetes.io/dra-device-attributes/"
_SOURCE = "KEP-5304: device metadata"


async def metadata_files(h: Harness) -> tuple[dict[str, Any], list[Path]]:
    """Prepares a claim. Returns it with its metadata files. Raises :class:`CheckSkipped` if there are none."""
    claim = await h.claim()
    found = await h.prepared(claim)
    mounts = [m for edits in h.cdi.edits_of(found.cdi_ids) for m in edits.get("mounts") or ()]
    files = [h.path_of(m["hostPath"]) for m in mounts if m["containerPath"].startswith(_TARGET)]
    if not files:
        raise CheckNotApplicable("the driver mounts no metadata files")
    return claim, files


def documents(path: Path) -> list[dict[str, Any]]:
    """Returns the JSON documents of a file. Raises :class:`CheckFailed`, or :class:`CheckSkipped` if the file does not exist."""
    if not path.is_file():
        raise CheckSkipped(f"{path.name} does not exist: see MET-001")
    decoder, text, out = json.JSONDecoder(), path.read_text().strip(), []
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError as e:
            raise CheckFailed(f"{path.name} is a stream of JSON objects", str(e)) from None
        out.append(value)
        text = text[end:].lstrip()
    return out


@may(
    "MET-001",
    "mounts metadata files that exist",
    consequence="the container does not start",
    source=_SOURCE,
)
async def exist(h: Harness) -> None:
    """Prepares a claim and looks for the files of its metadata mounts."""
    _, files = await metadata_files(h)
    missing = [str(p) for p in files if not p.is_file()]
    expect(not missing, "each mounted metadata file exists", ", ".join(missing))


@may(
    "MET-002",
    "writes valid metadata with the claim's devices",
    consequence="workloads cannot find out which device they have",
    source=_SOURCE,
)
async def content(h: Harness) -> None:
    """Prepares a claim and compares the metadata with its devices."""
    claim, files = await metadata_files(h)
    allocated = {r["device"] for r in results_of(claim)}
    for path in files:
        found = documents(path)
        expect(found, f"at least one object in {path.name}", "none")
        for document in found:
            version = str(document.get("apiVersion", ""))
            expect(version.startswith("metadata.resource.k8s.io/"), "apiVersion metadata.resource.k8s.io/...", version)
            expect(document.get("kind") == "DeviceMetadata", "kind DeviceMetadata", document.get("kind"))
            devices = {d["name"] for r in document.get("requests") or () for d in r.get("devices") or ()}
            valid = bool(devices) and devices <= allocated
            expect(valid, f"devices of the claim: {sorted(allocated)}", sorted(devices))


@may(
    "MET-003",
    "removes metadata files with unprepare",
    consequence="files of old claims fill the disk of the node",
    source=_SOURCE,
)
async def removed(h: Harness) -> None:
    """Prepares and unprepares a claim, and looks for its metadata files."""
    claim, files = await metadata_files(h)
    await h.unprepared(claim)
    await h.until(lambda: not any(p.exists() for p in files), REMOVAL)
    left = [str(p) for p in files if p.exists()]
    expect(not left, "no metadata file of the claim", ", ".join(left))
