"""The page of `dra dev` follows the cluster again if a request arrives while the previous follow task ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dra_kubeletplugin.kube import ApiConfig
from dra_tools.page import dev_page


async def test_a_request_during_the_end_of_a_follow_task_starts_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ending, may_end = asyncio.Event(), asyncio.Event()

    class Live:
        def __init__(self, client: object) -> None:
            pass

        @contextlib.asynccontextmanager
        async def running(self) -> AsyncIterator[None]:
            yield
            ending.set()
            await may_end.wait()

    monkeypatch.setattr(dev_page, "LiveOverview", Live)
    monkeypatch.setattr(dev_page, "_FOLLOW_SECONDS", 0.01)
    page = dev_page.DevPage(ApiConfig("http://127.0.0.1:1"))
    async with page.serving():
        first = await page._live_overview()
        await ending.wait()
        monkeypatch.setattr(dev_page, "_FOLLOW_SECONDS", 60.0)
        second = await page._live_overview()
        assert second is not None
        assert second is not first
        may_end.set()
        while len(page._follow_tasks) > 1:
            await asyncio.sleep(0)
        assert await page._live_overview() is second, "the end of the first overview must not end the second"
