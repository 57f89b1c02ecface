"""Decides whether this instance may write slices: only one instance of a driver on a node, or of a controller, does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import describe
from .write_lock import WriteLock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Leadership:
    """The right of this instance to write.

    Attributes:
        leads: whether this instance publishes, i.e. is the newest that lives on the node, or leads the controller's replicas.
        lock: held for each write, because an older instance's write may still be in flight when this instance begins to lead.
    """

    leads: Callable[[], bool] = lambda: True
    lock: WriteLock = field(default_factory=WriteLock)

    def holds(self) -> bool:
        """Whether this instance publishes. If that cannot be read, it does: a node with two publishers is better than none."""
        try:
            return self.leads()
        except OSError as e:
            log.warning("cannot read which instance publishes: %s; this instance publishes", describe(e))
            return True
