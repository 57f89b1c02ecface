"""Manifests as users write them: read whole before anything is applied, and each fault told with its file and object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...errors import ApiError
from ..cluster import LocalCluster, resource_of

JSON = dict[str, Any]


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


def read(paths: list[Path], option: str = "--apply ", *, served: bool = True) -> list[Manifest]:
    """All objects of all files, lists taken apart.

    Raises :class:`ManifestError` with all faults, each with ``option`` and file; kinds that are not served count where ``served``.
    """
    faults: list[str] = []
    out: list[Manifest] = []
    for path in paths:
        try:
            found = list(yaml.safe_load_all(path.read_text()))
        except OSError as e:
            faults.append(f"{option}{path}: {e.strerror or e}")
        except UnicodeDecodeError:
            faults.append(f"{option}{path} is no text")
        except yaml.MarkedYAMLError as e:
            line = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
            faults.append(f"{option}{path}{line}: no YAML: {e.problem or e.context or e}")
        except yaml.YAMLError as e:
            faults.append(f"{option}{path}: no YAML: {e}")
        else:
            for number, document in enumerate(found, 1):
                if document is not None:
                    out += _objects(f"{option}{path}, document {number}", document, faults)
    for manifest in out if served else ():
        try:
            resource_of(manifest.document)
        except ValueError as e:
            faults.append(f"{manifest.place}: {e}")
    if faults:
        raise ManifestError(*faults)
    return out


def _objects(place: str, document: object, faults: list[str]) -> list[Manifest]:
    if not isinstance(document, dict):
        faults.append(f"{place}: {type(document).__name__} in place of an object with apiVersion and kind")
        return []
    kind, items = document.get("kind"), document.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        return [m for i, item in enumerate(items) for m in _objects(f"{place}, items[{i}]", item, faults)]
    missing = [key for key in ("apiVersion", "kind") if not isinstance(document.get(key), str)]
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name") or meta.get("generateName"), str):
        missing.append("metadata.name")
    if missing:
        faults.append(f"{place}: {', '.join(missing)} missing")
        return []
    return [Manifest(place, document)]


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
