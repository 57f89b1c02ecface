"""The plugin is killed between effects, and the device is absent at the next start.

The device stays published exactly as long as a claim holds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.devices.pool_state import GONE
from tests.helpers.crash.harness import DRIVER, NodeHarness, node_harness

pytestmark = [
    pytest.mark.crash,
    pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity"),
]
PREPARED = [f"prepare: {p}" for p in ("before set-up", "after hardware", "before reply")]
ONLY_C_3 = f'device.attributes["{DRIVER}"].index == 3'


def vanished(b: NodeHarness) -> list[str]:
    """Returns the devices that are published with the taint for devices that vanished in use."""
    slices: list[Any] = b.cluster.slices()
    items = [d for s in slices for d in s["spec"].get("devices") or ()]
    return [d["name"] for d in items if GONE.key in {t["key"] for t in d.get("taints") or ()}]


def published(b: NodeHarness) -> set[str]:
    return {d["name"] for s in b.cluster.slices() for d in s["spec"].get("devices") or ()}


async def start_without_the_device(b: NodeHarness) -> None:
    (b.faults / "device-gone").touch()
    await b.start(RESCAN_INTERVAL="1s")
    await b.until("the publication of the other devices", lambda: {"c-0", "c-1", "c-2"} <= published(b))


async def end(b: NodeHarness) -> None:
    await b.cluster.delete_pod("pod")
    await b.until("everything to be free", b.is_empty)
    await b.until("the removal of the device from the slices", lambda: published(b) == {"c-0", "c-1", "c-2"})


@pytest.mark.parametrize("point", PREPARED)
async def test_a_device_that_vanished_after_a_kill_in_prepare_is_published_if_its_claim_was_committed(
    tmp_path: Path, point: str
) -> None:
    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod", selector=ONLY_C_3)
        await b.died()
        await start_without_the_device(b)
        committed = point == "prepare: before reply"
        await b.until(
            "the rollback of the interrupted prepare",
            lambda: list(b.records().values()) == (["Prepared"] if committed else []),
        )
        await b.until(
            "the publication of c-3 with or without the taint", lambda: vanished(b) == (["c-3"] if committed else [])
        )
        await b.kill()
        await b.start()
        await b.until(
            "the publication of c-3 after another kill", lambda: vanished(b) == (["c-3"] if committed else [])
        )
        b.check()
        await end(b)
