"""Logs which devices became unhealthy or healthy. Devices of a pool with the same text, such as the partitions of a card, share a line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..base.telemetry.logs import Fields, log_sample
from ..base.text import join_names, natural
from ..errors import printable
from .pool_state import DeviceKey

log = logging.getLogger(__name__)

_Group = tuple[str, str, list[str]]  # the pool, the driver's text, and the names of the devices
_MAX_FIELD = 50  # names in the field `devices` of a log line


def log_unhealthy(reasons: Mapping[DeviceKey, str]) -> None:
    """Logs devices that became unhealthy, each with the driver's text."""
    log_sample(
        log,
        logging.WARNING,
        "devices are unhealthy: %s",
        _groups(reasons.items()),
        lambda group: f"{join_names(group[2])}: {printable(group[1] or 'no reason given')}",
        _fields,
    )


def log_recovered(devices: Iterable[DeviceKey]) -> None:
    """Logs devices that became healthy again."""
    groups = _groups((key, "") for key in devices)
    log_sample(log, logging.INFO, "devices are healthy again: %s", groups, lambda group: join_names(group[2]), _fields)


def _groups(texts: Iterable[tuple[DeviceKey, str]]) -> list[_Group]:
    """Groups devices by pool and text. Names are in natural order."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, text in texts:
        found.setdefault((key.pool, text), []).append(key.device)
    return [(pool, text, sorted(names, key=natural)) for (pool, text), names in found.items()]


def _fields(group: _Group) -> Fields:
    return {"pool": group[0], "devices": group[2][:_MAX_FIELD]}
