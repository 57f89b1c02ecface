"""Reads, validates and applies the manifests of ``--apply``. Applies no manifest if one of them is invalid.

Each object gets the annotation that `kubectl apply` writes, so that a later `kubectl apply` of the same file changes nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.errors import NotFoundError

from ...kubernetes_releases import Features
from ...yaml import manifests
from ...yaml.manifests import Manifest, ManifestError
from ..apiserver import manifest_validation
from ..apiserver.kinds import Registry
from ..cluster import LocalCluster, resource_of

_OPTION = "--apply "
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}  # as in JSON that Go writes


def read(paths: list[Path], features: Features) -> list[Manifest]:
    """Returns the objects of all files. A list is split into its items.

    Raises:
        ManifestError: ``kubectl apply`` would refuse an object. The text contains each fault with option, file and line.
    """
    faults: list[str] = []
    try:
        found = manifests.read(paths, faults)
    except OSError as e:
        raise ManifestError(f"{_OPTION}{e.filename}: {e.strerror or e}") from None
    for manifest in found:
        result = manifest_validation.validate_manifest(manifest, features)
        object_faults = result.errors
        if result.not_validated:
            value = manifest.value
            kind = Registry(features).by_kind(value["apiVersion"], value["kind"])
            refused = (
                kind.refused if kind else f"{value['apiVersion']} {value['kind']} is not served by the local cluster"
            )
            object_faults.append(manifest.located(refused))
        faults += map(manifest.sentence, object_faults)
    if faults:
        raise ManifestError(*(f"{_OPTION}{text}" for text in faults))
    return found


async def apply(cluster: LocalCluster, objects: list[Manifest]) -> None:
    """Applies the manifests in order.

    Raises:
        ManifestError: the API server refused an object. The objects that were applied before stay.
    """
    for manifest in objects:
        try:
            await _apply(cluster, manifest.value)
        except ApiError as e:
            raise ManifestError(_OPTION + manifest.sentence(manifest.located(str(e)))) from None


async def _apply(cluster: LocalCluster, value: JSON) -> None:
    """Creates the object, or patches it. The patch also removes the fields that only the last applied manifest set."""
    resource, meta = resource_of(value), dict(value["metadata"])
    if resource.namespaced:
        meta.setdefault("namespace", "default")
    meta["annotations"] = {k: v for k, v in (meta.get("annotations") or {}).items() if k != _LAST_APPLIED}
    applied = {**value, "metadata": meta}
    text = json.dumps(applied, sort_keys=True, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPED) + "\n"
    before: JSON = {}
    with contextlib.suppress(NotFoundError, KeyError, ValueError):
        present = await cluster.client.get(resource, meta["name"], meta.get("namespace", ""))
        before = json.loads(present["metadata"]["annotations"][_LAST_APPLIED])
    patch = _patch(before, applied)
    patch["metadata"]["annotations"][_LAST_APPLIED] = text
    await cluster.apply(patch)


def _patch(before: Mapping[str, Any], now: Mapping[str, Any]) -> JSON:
    """Returns ``now``, with the value None for each field that only ``before`` has, so that a merge patch removes this field."""
    out: JSON = dict.fromkeys(before.keys() - now.keys())
    for name, value in now.items():
        if isinstance(value, Mapping):
            old = before.get(name)
            out[name] = _patch(old if isinstance(old, Mapping) else {}, value)
        else:
            out[name] = value
    return out
