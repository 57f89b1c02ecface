"""The objects that a plugin creates before its claim manager."""

from __future__ import annotations

import msgspec

from ..base.settings import Settings
from ..base.telemetry.metrics import Metrics
from ..devices.inventory import Inventory
from ..driver import Driver
from ..driver.calls import Calls
from ..kube import KubeClient


class PluginContext(msgspec.Struct, frozen=True):
    """The objects that a plugin creates before its claim manager."""

    driver: Driver
    calls: Calls
    client: KubeClient
    inventory: Inventory
    settings: Settings
    metrics: Metrics
