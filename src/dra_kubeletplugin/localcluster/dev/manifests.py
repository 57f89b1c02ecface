"""Reads the manifests of ``--apply``. Validates all manifests before the first one is applied."""

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
    """Returns the objects of all files; lists are split into their items.

    Raises:
        ManifestError: ``kubectl apply`` would refuse an object. The text contains each fault with option, file and line.
    """
    faults: list[str] = []
    try:
        found = manifests.read(paths, faults)
    except OSError as e:
        raise ManifestError(f"{_OPTION}{e.filename}: {e.strerror or e}") from None
    for manifest in found:
        object_faults, known = offline.manifest_errors(manifest, features)
        if not known:
            value = manifest.value
            object_faults.append(
                manifest.located(f"{value['apiVersion']} {value['kind']} is not served by the local cluster")
            )
        faults += map(manifest.sentence, object_faults)
    if faults:
        raise ManifestError(*(f"{_OPTION}{text}" for text in faults))
    return found


async def apply(cluster: LocalCluster, objects: list[Manifest]) -> None:
    """Applies the manifests in order.

    Raises:
        ManifestError: the API server refused an object. The objects before it stay.
    """
    for manifest in objects:
        try:
            await cluster.apply(manifest.value)
        except ApiError as e:
            raise ManifestError(_OPTION + manifest.sentence(manifest.located(str(e)))) from None


__all__ = ["apply", "read"]
