"""Logs devices that are not published: once per device and reason, and once when the reason is gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..base.telemetry.logs import log_sample

log = logging.getLogger("dra_kubeletplugin.devices.inventory")


class RejectedDevicesLog:
    """The log for one inventory."""

    def __init__(self) -> None:
        self._logged: Mapping[str, str] = {}

    def log(self, out: Mapping[str, str]) -> None:
        """Logs the changes. ``out`` contains the devices that are left out now, by display name, each with the reason."""
        news = [(name, fault) for name, fault in out.items() if self._logged.get(name) != fault]
        log_sample(log, logging.ERROR, "not published: %s", news, lambda n: f"{n[0]}: {n[1]}")
        log_sample(
            log,
            logging.INFO,
            "published now, or no longer returned by the driver: %s",
            [n for n in self._logged if n not in out],
        )
        self._logged = out


__all__ = ["RejectedDevicesLog"]
