"""The plugin returns memory to the machine after the start."""

from __future__ import annotations

import asyncio
import gc

from dra_kubeletplugin.host.memory import keep_trimmed


async def test_objects_of_the_start_are_frozen_after_one_collection() -> None:
    gc.unfreeze()  # An earlier test may have frozen objects in this process.
    task = asyncio.create_task(keep_trimmed(settled=0.0, interval=60.0))
    try:
        async with asyncio.timeout(30):
            while not gc.get_freeze_count():
                await asyncio.sleep(0)
    finally:
        task.cancel()
        await asyncio.wait({task})
        gc.unfreeze()
