"""A task is woken from any thread, and a late request from a thread does no harm."""

from __future__ import annotations

import asyncio

from dra_kubeletplugin.base.wakeup import Wakeup


async def test_requests_from_threads_during_the_work_cause_one_repetition() -> None:
    wakeup = Wakeup()
    wakeup.request()  # before the first work
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
