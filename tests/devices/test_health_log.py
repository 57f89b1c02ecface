"""The log lines for devices that become unhealthy or healthy again."""

from __future__ import annotations

import logging

import pytest

from dra_kubeletplugin import Device, Health, Pool
from dra_kubeletplugin.devices.health_policy import HealthPolicy
from dra_kubeletplugin.devices.inventory import Inventory

PARTS = [f"card-part-{i}" for i in range(12)]


async def test_one_log_line_names_all_parts_of_a_card(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dra_kubeletplugin.devices.health_log")
    inventory = Inventory("node", HealthPolicy(healthy_after=1))
    await inventory.update([Pool("node", [Device(n) for n in (*reversed(PARTS), "other")])])
    await inventory.set_health(dict.fromkeys(PARTS, Health(False, "too hot")) | {"other": Health(False)}, 0.0)
    await inventory.set_health(dict.fromkeys(PARTS, Health(False, "too hot")), 1.0)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "devices are unhealthy: card-part-0, card-part-1, card-part-2 and 9 more: too hot"),
        ("WARNING", "devices are unhealthy: other: no reason given"),
        ("INFO", "devices are healthy again: other"),
    ]
    fields = [(vars(r)["pool"], vars(r)["devices"]) for r in caplog.records]
    assert fields == [("node", PARTS), ("node", ["other"]), ("node", ["other"])]
