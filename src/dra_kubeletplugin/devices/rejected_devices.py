"""The log of what is not published: each device once for each reason, and once when that is over."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..base.telemetry.logs import log_sample

log = logging.getLogger("dra_kubeletplugin.devices.inventory")


class RejectedDevicesLog:
    """Of one inventory."""

    def __init__(self) -> None:
        self._told: Mapping[str, str] = {}

    def tell(self, out: Mapping[str, str]) -> None:
        """``out``: what is left out now, by name as it is shown, each with the reason."""
        news = [(name, fault) for name, fault in out.items() if self._told.get(name) != fault]
        log_sample(log, logging.ERROR, "%s", news, lambda n: f"{n[0]} is not published: {n[1]}")
        log_sample(log, logging.INFO, "%s is left out no longer", [n for n in self._told if n not in out])
        self._told = out


__all__ = ["RejectedDevicesLog"]
