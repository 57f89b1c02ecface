"""The faults that tests and ``dra dev`` inject into the API server: outages, delays, conflicts, throttling and dropped fields."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.resourceapi.fields import fields_of

from ...kubernetes_releases import API_VERSIONS

_SLICE = fields_of("ResourceSlice")
GATED = {f.name for f in _SLICE if f.row.gate} - {f.name for f in _SLICE if not f.row.gate}
"""Names of fields of slices that a feature gate removes in some release, wherever they are in a slice."""


@dataclass
class Faults:
    down: bool = False
    delay: float = 0.0  # seconds before each response
    conflicts: int = 0
    throttle: int = 0
    dropped: set[str] = field(default_factory=set)  # names of a slice's fields, e.g. "taints", "sharedCounters"
    served: set[str] | None = None  # served versions of resource.k8s.io; None for the versions that the release serves
    calls: list[tuple[str, str]] = field(default_factory=list)

    def drop(self, fields: Collection[str]) -> None:
        """Sets the fields of slices that the server drops; empty to drop none. Raises ``ValueError`` for an unknown field."""
        _check("field of slices", fields, GATED)
        self.dropped = set(fields)

    def serve(self, versions: Collection[str]) -> None:
        """Sets the versions of resource.k8s.io that the server serves; empty to serve all. Raises ``ValueError`` for an unknown version."""
        _check("version of resource.k8s.io", versions, API_VERSIONS)
        self.served = set(versions) or None


def _check(noun: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f": use one of {', '.join(sorted(known))}"
            raise ValueError(f"{name!r} is not a {noun}{hint}")
