"""Questions about a cluster, asked of plain objects: why is it pending, would it fit, who has what.

``Snapshot`` is what is asked: made of objects (:meth:`Snapshot.of`), read from an API server (:func:`take`) or from files
(:func:`from_files`). Nothing here writes, and nothing has to be installed on the cluster.
"""

from .answers import (
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
from .explaining import explain, waiting
from .files import from_files
from .live import Live
from .objects import Gap, Snapshot
from .overviewing import Overview, overview
from .reading import take, with_events
from .simulating import Fit, Placement, Simulation, simulate

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
