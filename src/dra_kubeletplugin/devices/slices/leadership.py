"""Decides whether this instance may write slices: only one plugin instance on a node, or one replica of a controller, writes them."""

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
        leads: returns whether this instance publishes: it is the newest living instance on the node, or the leader of the controller's
            replicas.
        lock: held for each write, because an older instance's write may still be in flight when this instance begins to lead.
    """

    leads: Callable[[], bool] = lambda: True
    lock: WriteLock = field(default_factory=WriteLock)

    def holds(self) -> bool:
        """Whether this instance publishes. If that cannot be read, it publishes: two publishers on a node are better than none."""
        try:
            return self.leads()
        except OSError as e:
            log.warning("cannot read which instance publishes: %s; this instance publishes", describe(e))
            return True
