"""A ResourceClaim that is decoded only if the driver reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..resourceapi.conversion import GROUP, convert
from ..resourceapi.encoded import from_json


@dataclass(frozen=True)
class EncodedClaim:
    """A ResourceClaim as the API server sent it in a version of resource.k8s.io, not yet decoded.

    Few drivers read the object, and a claim of 1 MB takes up to 30 MB when decoded.
    """

    body: bytes
    version: str = "v1"

    def decoded(self) -> dict[str, Any]:
        """Returns the object in resource.k8s.io/v1 form."""
        found = {**from_json(self.body), "apiVersion": f"{GROUP}/{self.version}", "kind": "ResourceClaim"}
        return found if self.version == "v1" else convert(found, "v1")

    def annotations(self) -> Mapping[str, str]:
        found: _WithAnnotations = from_json(self.body, _WithAnnotations)
        return found.metadata.annotations or {}


class _Annotations(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _WithAnnotations(msgspec.Struct):
    metadata: _Annotations
