"""Manifests as users write them: read whole before anything is applied, and each fault told with its file and object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import documents
from ...errors import ApiError
from ..cluster import LocalCluster, resource_of

JSON = dict[str, Any]
_OPTION = "--apply "


class ManifestError(Exception):
    """Each of ``faults`` is a sentence with the place."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Manifest:
    """One object of a file. ``place`` is for errors."""

    place: str
    document: JSON


def read(paths: list[Path]) -> list[Manifest]:
    """All objects of all files, lists taken apart.

    Raises :class:`ManifestError` with all faults, each with option, file and line.
    """
    faults: list[str] = []
    out: list[Manifest] = []
    for path in paths:
        odd: list[str] = []
        for document in documents.read(path, odd):
            out += _objects(f"{_OPTION}{document.place()}", document, faults)
            faults += [f"{_OPTION}{place}: {text}" for place, text in document.faults]
        faults += [f"{_OPTION}{text}" for text in odd]
    for manifest in out:
        try:
            resource_of(manifest.document)
        except ValueError as e:
            faults.append(f"{manifest.place}: {e}")
    if faults:
        raise ManifestError(*faults)
    return out


def _objects(place: str, document: documents.Document, faults: list[str]) -> list[Manifest]:
    value = document.value
    if not isinstance(value, dict):
        faults.append(f"{place}: {type(value).__name__} in place of an object with apiVersion and kind")
        return []
    kind, items = value.get("kind"), value.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        return [
            m
            for item in document.items("items")
            for m in _objects(f"{place.rpartition(':')[0]}:{item.place().rpartition(':')[2]}", item, faults)
        ]
    missing = [key for key in ("apiVersion", "kind") if not isinstance(value.get(key), str)]
    meta = value.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name") or meta.get("generateName"), str):
        missing.append("metadata.name")
    if missing:
        faults.append(f"{place}: {', '.join(missing)} missing")
        return []
    return [Manifest(place, value)]


async def apply(cluster: LocalCluster, manifests: list[Manifest]) -> None:
    """In order. Raises :class:`ManifestError` for the first that the API server refuses; those before it stay."""
    for manifest in manifests:
        try:
            await cluster.apply(manifest.document)
        except ApiError as e:
            document = manifest.document
            name = document["metadata"].get("name") or document["metadata"].get("generateName")
            raise ManifestError(f"{manifest.place}: {document['kind']} {name}: {e}") from None


__all__ = ["Manifest", "ManifestError", "apply", "read"]
