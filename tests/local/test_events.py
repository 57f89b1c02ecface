"""Hardware that comes and goes is noticed: by the kernel's own events where there are any, by looking elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dra_kubeletplugin.host import described
from dra_kubeletplugin.host.events import changes
from dra_kubeletplugin.testing import node_with
from tests.drivers import toy

UEVENT = Path("/sys/class/mem/null/uevent")


@pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason="needs root and a writable /sys")
async def test_a_real_kernel_event_is_a_reason_to_look() -> None:
    """The event is made by writing to the null device's uevent file, which changes nothing."""
    reasons = changes(Path("/sys"), interval=30, subsystems=("mem",))
    waiting = asyncio.ensure_future(anext(reasons))
    async with asyncio.timeout(10):
        while not waiting.done():
            UEVENT.write_text("change")
            await asyncio.wait({waiting}, timeout=0.3)
    assert waiting.result() == "event"
    await reasons.aclose()  # type: ignore[attr-defined]


async def test_without_events_the_interval_is_the_reason(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": []})
    reasons = changes(root, interval=0.01)
    assert await anext(reasons) == "interval"
    await reasons.aclose()  # type: ignore[attr-defined]


async def test_a_device_that_is_plugged_in_is_published_within_the_interval() -> None:
    cls = toy()
    async with node_with(cls, host={"functions": []}, rescan_interval=0.05) as node:
        cls.count = 6

        async def published() -> bool:
            return len(node.cluster.slices()[0]["spec"]["devices"]) == 6

        await node.cluster.wait("six devices", published)
        cls.count = 2

        async def fewer() -> bool:
            return len(node.cluster.slices()[0]["spec"]["devices"]) == 2

        await node.cluster.wait("two devices", fewer)
        generation = node.cluster.slices()[0]["spec"]["pool"]["generation"]
        assert generation == 1


async def test_devices_that_cannot_be_listed_leave_the_last_answer_in_force() -> None:
    cls = toy()
    async with node_with(cls) as node:

        async def broken(self: object) -> list[object]:
            raise OSError("the bus is gone")

        original = cls.devices
        cls.devices = broken  # type: ignore[assignment]
        await node.plugin._scan_again()
        assert len(node.plugin.inventory) == 4
        cls.devices = original  # type: ignore[method-assign]
        await node.run_pod()
