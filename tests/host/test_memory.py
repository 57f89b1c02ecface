"""What starting needed goes back to the machine."""

from __future__ import annotations

import asyncio
import gc

from dra_kubeletplugin.host.memory import keep_trimmed


async def test_what_stays_is_collected_once_and_passed_over_after_that() -> None:
    gc.unfreeze()  # another test may have had a whole cluster in this process
    task = asyncio.create_task(keep_trimmed(settled=0.0, interval=60.0))
    try:
        async with asyncio.timeout(30):
            while not gc.get_freeze_count():
                await asyncio.sleep(0)
    finally:
        task.cancel()
        await asyncio.wait({task})
        gc.unfreeze()
