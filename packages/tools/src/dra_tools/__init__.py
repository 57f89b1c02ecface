"""Answers questions about a cluster from plain objects: why a pod is pending, whether it would fit, which claim has which device.

All questions take a ``Snapshot``. :func:`take` reads it from an API server. :meth:`Snapshot.of` builds it from objects,
for example from those that :func:`from_files` reads. Nothing here writes, and the cluster needs no installed component.
"""

from .explanation.explain import explain, waiting
from .explanation.model import (
    ClaimState,
    Example,
    Explanation,
    ExplanationState,
    HeldDevice,
    NodeGroup,
    Reason,
    ReasonKind,
    RequestOnNodes,
    SuggestedChange,
)
from .files import from_files
from .reader import take, with_events
from .simulation.simulate import Fit, Placement, Simulation, simulate
from .snapshot import Gap, Snapshot
from .top.live import LiveOverview
from .top.overview import overview
from .usage.rows import Overview

__all__ = [
    "ClaimState",
    "Example",
    "Explanation",
    "ExplanationState",
    "Fit",
    "Gap",
    "HeldDevice",
    "LiveOverview",
    "NodeGroup",
    "Overview",
    "Placement",
    "Reason",
    "ReasonKind",
    "RequestOnNodes",
    "Simulation",
    "Snapshot",
    "SuggestedChange",
    "explain",
    "from_files",
    "overview",
    "simulate",
    "take",
    "waiting",
    "with_events",
]
