"""Manifests as users write them: read whole before anything is applied, and each fault told with its file and object."""

from __future__ import annotations

from pathlib import Path

from ...base.yaml import manifests
from ...base.yaml.manifests import Manifest, ManifestError
from ...errors import ApiError
from ...resourceapi.kubernetes_releases import Features
from ..apiserver import offline
from ..cluster import LocalCluster

_OPTION = "--apply "


def read(paths: list[Path], features: Features) -> list[Manifest]:
    """All objects of all files, lists taken apart.

    Raises :class:`ManifestError` with everything for which ``kubectl apply`` would refuse them, each with option, file and line.
    """
    faults: list[str] = []
    try:
        found = manifests.read(paths, faults)
    except OSError as e:
        raise ManifestError(f"{_OPTION}{e.filename}: {e.strerror or e}") from None
    for manifest in found:
        told, known = offline.told(manifest, features)
        if not known:
            value = manifest.value
            told.append(manifest.told(f"{value['apiVersion']} {value['kind']} is not served by the local cluster"))
        faults += map(manifest.sentence, told)
    if faults:
        raise ManifestError(*(f"{_OPTION}{text}" for text in faults))
    return found


async def apply(cluster: LocalCluster, given: list[Manifest]) -> None:
    """In order. Raises :class:`ManifestError` for the first that the API server refuses; those before it stay."""
    for manifest in given:
        try:
            await cluster.apply(manifest.value)
        except ApiError as e:
            raise ManifestError(_OPTION + manifest.sentence(manifest.told(str(e)))) from None


__all__ = ["apply", "read"]
