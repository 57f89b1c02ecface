"""What ConfigMaps and Secrets hold, for volumes and for the environment of containers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ...errors import ApiError
from ...kube import KubeClient, Resource
from ...kube.resource import SECRETS

JSON = Mapping[str, Any]


class MissingError(Exception):
    """Something that a volume or an environment is made of; the text is the kubelet's."""


async def data_of(
    client: KubeClient, resource: Resource, name: str, namespace: str, *, optional: bool, binary: bool = False
) -> dict[str, bytes]:
    """Nothing where the object is missing and ``optional``. ``binary`` says whether a ConfigMap's ``binaryData`` counts: an
    environment cannot have it.

    Raises :class:`MissingError`, and :class:`ApiError` where the API server does not answer.
    """
    try:
        found: JSON = await client.get(resource, name, namespace)
    except ApiError as e:
        if e.status != 404:
            raise
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
