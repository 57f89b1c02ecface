"""What goes wrong on purpose."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass, field

GATED = {
    "allowMultipleAllocations", "bindingConditions", "bindingFailureConditions", "bindsToNode", "bools", "consumesCounters", "ints",
    "perDeviceNodeSelection", "requestPolicy", "sharedCounters", "strings", "taints", "versions",
}  # fmt: skip
"""Fields of slices that a feature gate of some version takes away."""
VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")


@dataclass
class Faults:
    down: bool = False
    delay: float = 0.0  # seconds before each answer
    conflicts: int = 0
    throttle: int = 0
    dropped: set[str] = field(default_factory=set)  # names of a slice's fields, e.g. "taints", "sharedCounters"
    served: set[str] | None = None  # the versions of resource.k8s.io that there are; None: as the release has them
    calls: list[tuple[str, str]] = field(default_factory=list)

    def drop(self, fields: Collection[str]) -> None:
        """Drops these fields of slices from now on, none where there are none. Raises ``ValueError`` for what is no such field."""
        _check("field of slices", fields, GATED)
        self.dropped = set(fields)

    def serve(self, versions: Collection[str]) -> None:
        """Serves only these, all where there are none. Raises ``ValueError`` for what is no version of ``resource.k8s.io``."""
        _check("version of resource.k8s.io", versions, VERSIONS)
        self.served = set(versions) or None


def _check(what: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ValueError(f"no {what} {name!r}, only {', '.join(sorted(known))}{hint}")
