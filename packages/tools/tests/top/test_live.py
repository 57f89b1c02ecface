"""The live overview is rebuilt after changes of the cluster. The interval between rebuilds is proportional to their CPU time."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_tools.top import live as module
from dra_tools.top.live import LiveOverview


@pytest.mark.parametrize(("used", "seconds"), [(0.01, 1.0), (0.1, 2.4), (0.5, 12.0)])
async def test_a_rebuild_waits_one_second_or_24_times_the_cpu_time_of_the_last_rebuild(
    used: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    async with KubeClient(ApiConfig("http://127.0.0.1:1")) as client:
        live = LiveOverview(client)
        first = live.current()
        live.rest(used)
        live.follower.version += 1
        now += seconds - 0.001
        assert live.current() is first
        now += 0.002
        assert live.current() is not first
