"""What goes wrong on purpose."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Faults:
    down: bool = False
    delay: float = 0.0  # seconds before each answer
    conflicts: int = 0
    throttle: int = 0
    dropped: set[str] = field(default_factory=set)  # names of a slice's fields, e.g. "taints", "sharedCounters"
    served: set[str] | None = None  # the versions of resource.k8s.io that there are; None for all
    calls: list[tuple[str, str]] = field(default_factory=list)
