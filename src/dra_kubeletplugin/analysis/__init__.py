"""Questions about a cluster, asked of plain objects: why is it pending, would it fit, who has what.

``Snapshot`` is what is asked: made of objects (:meth:`Snapshot.of`), read from an API server (:func:`take`) or from files
(:func:`from_files`). Nothing here writes, and nothing has to be installed on the cluster.
"""

from .explain.explain import explain, waiting
from .explain.model import (
    Change,
    ClaimState,
    Example,
    Explanation,
    HeldDevice,
    Kind,
    NodeGroup,
    Reason,
    RequestOnNodes,
    State,
)
from .files import from_files
from .reader import take, with_events
from .simulate.simulate import Fit, Placement, Simulation, simulate
from .snapshot import Gap, Snapshot
from .top.live import Live
from .top.overview import Overview, overview

__all__ = [
    "Change",
    "ClaimState",
    "Example",
    "Explanation",
    "Fit",
    "Gap",
    "HeldDevice",
    "Kind",
    "Live",
    "NodeGroup",
    "Overview",
    "Placement",
    "Reason",
    "RequestOnNodes",
    "Simulation",
    "Snapshot",
    "State",
    "explain",
    "from_files",
    "overview",
    "simulate",
    "take",
    "waiting",
    "with_events",
]
