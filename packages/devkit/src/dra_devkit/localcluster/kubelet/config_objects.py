"""Reads ConfigMaps and Secrets for volumes and for container environments."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import SECRETS


class MissingError(Exception):
    """A ConfigMap or Secret that a volume or an environment needs is missing. The text is the same as a real kubelet's."""


async def data_of(
    client: KubeClient, resource: Resource, name: str, namespace: str, *, optional: bool, binary: bool = False
) -> dict[str, bytes]:
    """Reads the keys and values of a ConfigMap or Secret.

    Args:
        optional: return an empty result if the object is missing.
        binary: include a ConfigMap's ``binaryData``. An environment cannot contain it.

    Raises:
        MissingError: the object is missing and not ``optional``.
        ApiError: the API server failed or could not be reached.
    """
    try:
        found: ReadOnlyJSON = await client.get(resource, name, namespace)
    except NotFoundError:
        if optional:
            return {}
        raise MissingError(f'{resource.plural.removesuffix("s")} "{name}" not found') from None
    data = found.get("data") or {}
    if resource is SECRETS:
        return {k: _decoded(v) for k, v in data.items()}
    out = {k: str(v).encode() for k, v in data.items()}
    return out | {k: _decoded(v) for k, v in (found.get("binaryData") or {}).items()} if binary else out


def _decoded(value: Any) -> bytes:
    try:
        return base64.b64decode(str(value))
    except (ValueError, binascii.Error):
        return b""
