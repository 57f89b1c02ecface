"""Start and stop in bounded time, background work that ends the process when it ends, and the probes."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError, DriverError, SettingsError
from dra_kubeletplugin.plugin.lifecycle import Probes, start_driver, start_tasks, stop_with_timeout, unwrap_single_error
from tests.helpers.drivers import make_toy_class


async def test_each_part_of_a_stop_runs_in_reverse_order_whatever_other_parts_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    order: list[str] = []

    async def succeed() -> None:
        order.append("fine")

    async def hang() -> None:
        order.append("hangs")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("cancelled")
            raise

    async def fail() -> None:
        order.append("fails")
        raise KeyError("odd")

    async with contextlib.AsyncExitStack() as stack:
        for name, stop in (("a", succeed), ("b", hang), ("c", fail)):
            stop_with_timeout(stack, name, stop, 0.01)
        assert order == []
    await asyncio.sleep(0)
    assert order in (["fails", "hangs", "cancelled", "fine"], ["fails", "hangs", "fine", "cancelled"])
    messages = [r.getMessage() for r in caplog.records]
    assert messages == [
        "a step of the stop failed: c: KeyError: 'odd'",
        "a step of the stop took more than 0.01 s and is abandoned: b",
    ]


class Slow(Driver):
    name = "slow.example.com"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.wait = False

    async def start(self) -> None:
        if self.wait:
            await asyncio.Event().wait()
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")


async def test_a_started_driver_is_stopped_and_a_driver_that_does_not_start_is_a_fault() -> None:
    driver = Slow()
    async with contextlib.AsyncExitStack() as stack:
        await start_driver(stack, driver, Calls(), 5)
        assert driver.calls == ["start"]
    assert driver.calls == ["start", "stop"]
    driver = Slow()
    driver.wait = True
    with pytest.raises(DriverError, match=r"start\(\) of Slow has not returned within 0.01s"):
        async with contextlib.AsyncExitStack() as stack:
            await start_driver(stack, driver, Calls(), 0.01)
    assert driver.calls == []


async def test_a_group_with_one_error_becomes_this_error_and_a_group_of_several_stays_a_group() -> None:
    with pytest.raises(KeyError) as e:
        async with unwrap_single_error():
            raise BaseExceptionGroup("g", [KeyError("one")])
    assert e.value.__suppress_context__
    with pytest.raises(BaseExceptionGroup) as group:
        async with unwrap_single_error():
            raise BaseExceptionGroup("g", [KeyError("one"), SystemExit(2)])
    assert len(group.value.exceptions) == 2


@pytest.mark.parametrize("fault", [None, ValueError("odd")])
async def test_the_end_of_one_background_task_ends_all(
    fault: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    resume = asyncio.Event()

    async def end_or_fail() -> None:
        await resume.wait()
        if fault:
            raise fault

    async def wait_forever() -> None:
        await asyncio.Event().wait()

    jobs: list[asyncio.Task[None]] = []
    with pytest.raises(ValueError if fault else DraError, match="odd" if fault else "'mine' ended by itself"):
        async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
            jobs = start_tasks(tasks, {"mine": end_or_fail, "other": wait_forever})
            assert [j.get_name() for j in jobs] == ["mine", "other"]
            resume.set()
    assert jobs[1].cancelled()
    assert ("a background task failed, so the process ends: mine: ValueError: odd" in caplog.text) == bool(fault)


# --- probes -------------------------------------------------------------------------------------------------


class FakePlugin:
    def __init__(self) -> None:
        self.measured = 0
        self.faults: list[str] = []
        self.plugin_notes: list[str] = []
        self.passed: list[str] = []

    async def measure(self) -> None:
        self.measured += 1

    async def not_ready(self) -> list[str]:
        return self.faults

    async def notes(self) -> list[str]:
        return self.plugin_notes


@contextlib.asynccontextmanager
async def serve_probes(state: FakePlugin, address: str) -> AsyncIterator[str]:
    async with contextlib.AsyncExitStack() as stack:
        probes = Probes(Metrics(), state.measure, state.not_ready, state.notes, passed=lambda: state.passed)
        yield await probes.serve(stack, address)


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    return await asyncio.to_thread(fetch)


async def test_each_probe_has_its_status_and_text() -> None:
    state = FakePlugin()
    async with serve_probes(state, "127.0.0.1:0") as url:
        assert await get(f"{url}/healthz") == (200, "ok\n")
        assert await get(f"{url}/readyz") == await get(f"{url}/readyz?verbose") == (200, "ok\n")
        state.passed = ["check a: ok"]
        assert await get(f"{url}/readyz?verbose") == (200, "check a: ok\n")
        assert await get(f"{url}/readyz") == (200, "ok\n")
        state.plugin_notes = ["a", "b"]
        assert await get(f"{url}/readyz") == (200, "note: a\nnote: b\n")
        state.faults = ["x", "y"]
        assert await get(f"{url}/readyz") == (503, "x\ny\nnote: a\nnote: b\n")
        assert await get(f"{url}/healthz") == (200, "ok\n")
        assert state.measured == 0
        status, text = await get(f"{url}/metrics")
        assert (status, state.measured) == (200, 1)
        assert "# HELP" in text
        assert await get(f"{url}/other") == (404, "/metrics, /healthz or /readyz\n")
    with pytest.raises(urllib.error.URLError):
        await get(f"{url}/healthz")


async def test_notes_are_sent_only_over_loopback_and_faults_to_every_client() -> None:
    state = FakePlugin()
    state.faults, state.plugin_notes = ["x"], ["the record of claim ml/secret cannot be read"]
    async with serve_probes(state, "127.0.0.1:0") as url:
        status, text = await get(f"{url}/readyz", {"X-Forwarded-For": "10.0.0.7"})
        assert status == 503
        assert text.startswith("x\nnote: 1 more, shown only on the loopback") and "secret" not in text
        assert "ml/secret" in (await get(f"{url}/readyz"))[1]


async def test_without_an_address_there_are_no_probes_and_a_wrong_address_stops_the_start() -> None:
    async with serve_probes(FakePlugin(), "") as url:
        assert url == ""
    for address in ("256.0.0.1:0", "a..b:0"):
        with pytest.raises(SettingsError, match=r"--http-address \(HTTP_ADDRESS\)"):
            async with serve_probes(FakePlugin(), address):
                pass


# --- a plugin -----------------------------------------------------------------------------------------------


async def test_a_plugin_closes_its_probes_at_its_end() -> None:
    async with node_with(make_toy_class(), http_address="127.0.0.1:0") as node:
        plugin = node.plugin
        assert (await get(f"{plugin.http_url}/healthz"))[0] == 200
    assert (plugin.serving, plugin.stopping, await plugin.not_ready()) == (True, True, ["stopping"])
    with pytest.raises(urllib.error.URLError):
        await get(f"{plugin.http_url}/healthz")


@pytest.mark.parametrize(
    ("host", "shown"), [("", "port {port} of every address"), ("127.0.0.1", "http://127.0.0.1:{port}")]
)
async def test_the_log_names_the_addresses_at_which_clients_can_connect(
    host: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serve_probes(FakePlugin(), f"{host}:0") as url:
        (line,) = [t for r in caplog.records if (t := r.getMessage()).startswith("serving metrics")]
        assert line == f"serving metrics and probes at {shown.format(port=url.rpartition(':')[2])}"
