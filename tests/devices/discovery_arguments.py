"""Arguments of DeviceDiscovery for tests: short intervals, and a record without held devices."""

from __future__ import annotations

from dra_kubeletplugin.devices.discovery import Intervals
from dra_kubeletplugin.devices.pool_state import Held

QUICK = Intervals(interval=0.05, hang=0.2, settle=0.01, apart=0.01, retry=0.01)


async def nothing_held() -> Held:
    return {}
