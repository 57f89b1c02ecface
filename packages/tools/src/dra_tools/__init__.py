"""Answers questions about a cluster from plain objects: why a pod is pending, whether it would fit, which claim has which device.

All questions take a ``Snapshot``. :func:`take` reads it from an API server. :meth:`Snapshot.of` builds it from objects,
for example from those that :func:`from_files` reads. Nothing here writes, and the cluster needs no installed component.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_kubeletplugin.base.lazy_names import lazy_names

if TYPE_CHECKING:
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

# `dra --help` loads this package, and shows only the names of its commands.
__getattr__ = lazy_names(
    __name__,
    {
        ".explanation.explain": "explain waiting",
        ".explanation.model": "ClaimState Example Explanation ExplanationState HeldDevice NodeGroup Reason ReasonKind "
        "RequestOnNodes SuggestedChange",
        ".files": "from_files",
        ".reader": "take with_events",
        ".simulation.simulate": "Fit Placement Simulation simulate",
        ".snapshot": "Gap Snapshot",
        ".top.live": "LiveOverview",
        ".top.overview": "overview",
        ".usage.rows": "Overview",
    },
)

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
