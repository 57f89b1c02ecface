"""The plugin calls the driver's checks, and shows their results in readiness and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Check
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.plugin.driver_checks import DriverChecks
from tests.helpers.drivers import Toy
from tests.helpers.waiting import wait_until


class CheckedDriver(Toy):
    results: Any = ()
    counted = 0
    hold: threading.Event | None = None

    def checks(self) -> Any:
        type(self).counted += 1
        if self.hold:
            assert self.hold.wait(60)
        if isinstance(self.results, Exception):
            raise self.results
        return self.results


def make_class() -> type[CheckedDriver]:
    class FreshDriver(CheckedDriver):
        pass

    return FreshDriver


@contextlib.asynccontextmanager
async def running(checks: DriverChecks) -> AsyncIterator[None]:
    task = asyncio.create_task(checks.run())
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_problems_are_notes_or_reasons_and_their_end_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    cls, metrics = make_class(), Metrics()
    checks = DriverChecks(cls(), Calls(), metrics, 60)
    cls.results = [
        Check("library"),
        Check("count", "NVML says 0, PCI says 2", "mount /dev"),
        Check("root", "gone", blocking=True),
    ]
    await checks.once()
    await checks.once()
    assert checks.notes() == ["check count: NVML says 0, PCI says 2: mount /dev"]
    assert checks.not_ready() == ["check root: gone"]
    assert checks.passed() == ["check library: ok"]
    text = metrics.text().decode()
    for name, value in (("library", 0), ("count", 1), ("root", 1)):
        assert f'dra_driver_check_failing{{check="{name}"}} {value}.0' in text
    assert sum("found a problem" in r.getMessage() for r in caplog.records) == 2, "logged once"
    cls.results = [Check("library"), Check("count")]
    await checks.once()
    assert (checks.notes(), checks.not_ready()) == ([], [])
    assert 'dra_driver_check_failing{check="root"} 0.0' in metrics.text().decode(), (
        "also for a check that is no longer returned"
    )


async def test_failing_checks_are_a_note_and_the_last_results_stay() -> None:
    cls = make_class()
    checks = DriverChecks(cls(), Calls(), Metrics(), 60)
    cls.results = [Check("count", "0")]
    await checks.once()
    for results, text in ((OSError("bus"), "checks raised OSError: bus"), (7, "checks() returned 7: it must return")):
        cls.results = results
        await checks.once()
        first, second = checks.notes()
        assert first == "check count: 0" and second.startswith("the driver's checks() failed: ") and text in second
    cls.results = ()
    await checks.once()
    assert checks.notes() == []


async def test_hanging_checks_are_a_note_and_changed_runs_them_at_once() -> None:
    cls = make_class()
    checks = DriverChecks(cls(), Calls(), Metrics(), 600, slow=0.01)
    cls.hold = threading.Event()
    checks.request()  # before the start this call has no effect
    async with running(checks):
        await wait_until(lambda: [n for n in checks.notes() if "the driver's checks() has not returned for" in n])
        cls.hold.set()
        await wait_until(lambda: not checks.notes())
        counted = cls.counted
        await asyncio.to_thread(checks.request)
        await wait_until(lambda: cls.counted > counted, "another call, long before the interval has passed")


async def test_a_plugin_is_not_ready_while_a_blocking_check_fails_and_calls_again_after_changed() -> None:
    cls = make_class()
    cls.results = [Check("library", "libtoy.so is missing", "install libtoy", blocking=True)]
    async with node_with(cls) as node:
        await wait_until(node.plugin.checks.not_ready, "the first call")
        assert await node.plugin.not_ready() == ["check library: libtoy.so is missing: install libtoy"]
        await node.run_pod()  # the node still serves pods: each prepare decides for itself
        cls.results = [Check("library"), Check("count", "0")]
        node.driver.rescan()

        async def is_ready() -> bool:
            return not await node.plugin.not_ready()

        await wait_until(is_ready)
        assert "check count: 0" in await node.plugin.notes()
