"""The plugin is killed with SIGKILL between two effects. Then the pod has its device, or the device is free.

A device never has two holders.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from bench.soak import kills
from tests.helpers.crash.driver import PREPARE_POINTS, UNPREPARE_POINTS
from tests.helpers.crash.harness import node_harness

# The waits of a test have limits of their own, up to a minute each; together they can take longer than a test's usual limit.
pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


@pytest.mark.parametrize("point", PREPARE_POINTS)
async def test_after_a_kill_in_prepare_and_a_restart_the_pod_gets_its_device(tmp_path: Path, point: str) -> None:
    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod")
        await b.died()
        b.check()
        await b.start()
        await b.cluster.wait_running("pod")
        b.check_quiet()
        (claim,) = b.cluster.claims()
        assert b.holders() == {"c-0": claim["metadata"]["uid"]}
        await b.cluster.delete_pod("pod")
        assert b.is_empty(), (b.device_files(), b.files(), b.records())


@pytest.mark.parametrize("point", PREPARE_POINTS)
async def test_after_a_kill_in_prepare_and_the_deletion_of_the_pod_the_device_is_free(
    tmp_path: Path, point: str
) -> None:
    from dra_kubeletplugin.kube.resource import PODS

    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod")
        await b.died()
        await b.cluster.client.delete(PODS, "pod", "default")
        await b.start()
        await b.until("the pod to disappear", lambda: not b.cluster.api.storage.get("pods", "default", "pod"))
        await b.until("everything to be free", b.is_empty)
        await b.apply_pod("next")
        await b.cluster.wait_running("next")
        b.check_quiet()


@pytest.mark.parametrize("point", UNPREPARE_POINTS)
async def test_after_a_kill_in_unprepare_and_a_restart_the_device_is_free(tmp_path: Path, point: str) -> None:
    async with node_harness(tmp_path) as b:
        await b.start()
        await b.apply_pod("pod")
        await b.cluster.wait_running("pod")
        await b.kill()
        await b.start(KILL_AT=point)
        from dra_kubeletplugin.kube.resource import PODS

        await b.cluster.client.delete(PODS, "pod", "default")
        await b.died()
        b.check()
        await b.start()
        await b.until("the pod to disappear", lambda: not b.cluster.api.storage.get("pods", "default", "pod"))
        assert b.is_empty(), (b.device_files(), b.files(), b.records())


@pytest.mark.full
async def test_random_kills_leak_nothing_and_allocate_no_device_twice() -> None:
    totals = await kills(12, random.Random(7))
    assert totals.kills == 12


@pytest.mark.full
async def test_rolling_updates_leak_nothing_and_allocate_no_device_twice() -> None:
    totals = await kills(6, random.Random(11), rolling=True)
    assert totals.kills == 6


# asyncio leaks a connection that is closed during its creation. The leak is in the proxy, not in the plugin.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_random_kills_during_faults_leak_nothing_and_every_call_gets_a_response() -> None:
    totals = await kills(12, random.Random(7), faults=True)
    assert totals.kills == 12
    assert len(totals.faults) >= 6  # number of kinds; which ones occur is random
