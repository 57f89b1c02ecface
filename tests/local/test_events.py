"""Hardware that comes and goes is noticed: by the kernel's own events where there are any, by looking elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dra_kubeletplugin.host import described
from dra_kubeletplugin.host.events import kernel_events
from dra_kubeletplugin.testing import node_with
from tests.drivers import toy

UEVENT = Path("/sys/class/mem/null/uevent")


@pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason="needs root and a writable /sys")
async def test_a_real_kernel_event_is_told_to_who_asked_for_its_subsystem_only() -> None:
    """The event is made by writing to the null device's uevent file, which changes nothing."""
    told, others = asyncio.Event(), asyncio.Event()
    sysfs = Path("/sys")
    with (
        kernel_events(sysfs, others.set, ("vfio-dev",)) as first,
        kernel_events(sysfs, told.set, ("mem",)) as second,
    ):
        assert (first, second) == (True, True)
        UEVENT.write_text("change")
        async with asyncio.timeout(10):
            await told.wait()
        await asyncio.sleep(0)
        assert not others.is_set()


@pytest.mark.skipif(not os.access(UEVENT, os.W_OK), reason="needs root and a writable /sys")
async def test_events_that_were_lost_are_a_reason_to_look() -> None:
    """More than the socket's buffer holds, before the loop reads any: the kernel says ENOBUFS, and what is left comes too."""
    told = asyncio.Event()
    with kernel_events(Path("/sys"), told.set, ("vfio-dev",)):
        for _ in range(2000):
            UEVENT.write_text("change")
        async with asyncio.timeout(10):
            await told.wait()


async def test_a_described_host_has_no_events(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": []})
    with kernel_events(root, lambda: None) as works:
        assert not works


async def test_a_device_that_is_plugged_in_is_published_within_the_interval() -> None:
    cls = toy()
    async with node_with(cls, host={"functions": []}, rescan_interval=0.1) as node:
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
