"""What is told of a claim's devices while something else is being written."""

from __future__ import annotations

import asyncio
from typing import Any

from dra_kubeletplugin import DeviceStatus
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.observe.metrics import Metrics
from dra_kubeletplugin.reporting import ClaimKey, StatusReports


async def test_a_report_that_comes_while_one_is_refused_is_still_written() -> None:
    reports = StatusReports(None, "d", "m", Metrics())  # type: ignore[arg-type]
    refused, sent = asyncio.Event(), []

    async def write(_: ClaimKey, wanted: dict[Any, DeviceStatus], *__: Any) -> bool:
        sent.append(dict(wanted))
        if len(sent) == 1:
            await refused.wait()
            raise ApiError("no such thing", status=422)
        return True

    reports.write = write  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(reports.run())
    try:
        async with asyncio.timeout(10):
            claim, device = ClaimKey("ns", "c", "u"), ("p", "d", "")
            odd, good = DeviceStatus(data={"x": 1}), DeviceStatus(data={"x": 2})
            await asyncio.sleep(0)  # it runs
            first = reports.say(claim, {device: odd})
            while not sent:
                await asyncio.sleep(0.01)
            second = reports.say(claim, {device: good})
            await asyncio.sleep(0)
            refused.set()
            assert not await first
            assert await second
        assert sent == [{device: odd}, {device: good}]
    finally:
        running.cancel()
