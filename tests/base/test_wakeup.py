"""Any thread can wake a task, and a request after the end of the loop has no effect."""

from __future__ import annotations

import asyncio

from dra_kubeletplugin.base.wakeup import Wakeup


async def test_several_requests_from_threads_wake_the_task_once() -> None:
    wakeup = Wakeup()
    wakeup.request()  # before the first wait
    wakeup.clear()
    for _ in range(3):
        await asyncio.to_thread(wakeup.request)
    assert await wakeup.wait(30)
    wakeup.clear()
    assert not await wakeup.wait(0.01)


def test_a_request_after_the_end_of_the_loop_is_ignored() -> None:
    wakeup = Wakeup()

    async def work() -> None:
        wakeup.clear()

    asyncio.run(work())
    wakeup.request()
