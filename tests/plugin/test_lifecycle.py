"""Start and stop in bounded time, background work whose end is the process's, and the probes."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from dra_kubeletplugin.base.http_server.server import Request
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError, DriverError, SettingsError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.plugin import lifecycle as module
from dra_kubeletplugin.plugin.lifecycle import Probes, start_driver, start_tasks, stop_with_timeout, unwrap_single_error
from dra_kubeletplugin.testing import node_with
from tests.helpers.drivers import make_toy_class


async def test_each_part_of_a_stop_is_done_in_reverse_whatever_the_others_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STOP", 0.01)
    order: list[str] = []

    async def fine() -> None:
        order.append("fine")

    async def hangs() -> None:
        order.append("hangs")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("cancelled")
            raise

    async def fails() -> None:
        order.append("fails")
        raise KeyError("odd")

    async with contextlib.AsyncExitStack() as stack:
        for what, stop in (("a", fine), ("b", hangs), ("c", fails)):
            stop_with_timeout(stack, what, stop)
        assert order == []
    await asyncio.sleep(0)
    assert order in (["fails", "hangs", "cancelled", "fine"], ["fails", "hangs", "fine", "cancelled"])
    told = [r.getMessage() for r in caplog.records]
    assert told == [
        "a step of the stop failed: c: KeyError: 'odd'",
        "a step of the stop took more than 0.01 s and is abandoned: b",
    ]


class Slow(Driver):
    name = "slow.example.com"

    def __init__(self) -> None:
        self.done: list[str] = []
        self.wait = False

    async def start(self) -> None:
        if self.wait:
            await asyncio.Event().wait()
        self.done.append("start")

    async def stop(self) -> None:
        self.done.append("stop")


async def test_a_driver_that_was_started_is_stopped_and_one_that_was_not_is_a_fault() -> None:
    driver = Slow()
    async with contextlib.AsyncExitStack() as stack:
        await start_driver(stack, driver, Calls(), 5)
        assert driver.done == ["start"]
    assert driver.done == ["start", "stop"]
    driver = Slow()
    driver.wait = True
    with pytest.raises(DriverError, match=r"start\(\) of Slow has not returned within 0.01s"):
        async with contextlib.AsyncExitStack() as stack:
            await start_driver(stack, driver, Calls(), 0.01)
    assert driver.done == []


async def test_one_error_of_a_group_is_itself_and_several_are_a_group() -> None:
    with pytest.raises(KeyError) as e:
        async with unwrap_single_error():
            raise BaseExceptionGroup("g", [KeyError("one")])
    assert e.value.__suppress_context__
    with pytest.raises(BaseExceptionGroup) as group:
        async with unwrap_single_error():
            raise BaseExceptionGroup("g", [KeyError("one"), SystemExit(2)])
    assert len(group.value.exceptions) == 2


@pytest.mark.parametrize("fault", [None, ValueError("odd")])
async def test_background_work_that_ends_ends_all(fault: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    go_on = asyncio.Event()

    async def ends() -> None:
        await go_on.wait()
        if fault:
            raise fault

    async def lasts() -> None:
        await asyncio.Event().wait()

    jobs: list[asyncio.Task[None]] = []
    with pytest.raises(ValueError if fault else DraError, match="odd" if fault else "'mine' ended by itself"):
        async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
            jobs = start_tasks(tasks, {"mine": ends, "other": lasts})
            assert [j.get_name() for j in jobs] == ["mine", "other"]
            go_on.set()
    assert jobs[1].cancelled()
    assert ("a background task failed, so the process ends: mine: ValueError: odd" in caplog.text) == bool(fault)


# --- probes -------------------------------------------------------------------------------------------------


class State:
    def __init__(self) -> None:
        self.measured = 0
        self.faults: list[str] = []
        self.remarks: list[str] = []
        self.passed: list[str] = []

    async def measure(self) -> None:
        self.measured += 1

    async def not_ready(self) -> list[str]:
        return self.faults

    async def notes(self) -> list[str]:
        return self.remarks


@contextlib.asynccontextmanager
async def served(state: State, address: str) -> AsyncIterator[str]:
    async with contextlib.AsyncExitStack() as stack:
        probes = Probes(Metrics(), state.measure, state.not_ready, state.notes, passed=lambda: state.passed)
        yield await probes.serve(stack, address)


async def asked(url: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    return await asyncio.to_thread(ask)


async def test_what_each_probe_answers() -> None:
    state = State()
    async with served(state, "127.0.0.1:0") as url:
        assert await asked(f"{url}/healthz") == (200, "ok\n")
        assert await asked(f"{url}/readyz") == await asked(f"{url}/readyz?verbose") == (200, "ok\n")
        state.passed = ["check a: ok"]
        assert await asked(f"{url}/readyz?verbose") == (200, "check a: ok\n")
        assert await asked(f"{url}/readyz") == (200, "ok\n")
        state.remarks = ["a", "b"]
        assert await asked(f"{url}/readyz") == (200, "note: a\nnote: b\n")
        state.faults = ["x", "y"]
        assert await asked(f"{url}/readyz") == (503, "x\ny\nnote: a\nnote: b\n")
        assert await asked(f"{url}/healthz") == (200, "ok\n")
        assert state.measured == 0
        status, text = await asked(f"{url}/metrics")
        assert (status, state.measured) == (200, 1)
        assert "# HELP" in text
        assert await asked(f"{url}/other") == (404, "/metrics, /healthz or /readyz\n")
    with pytest.raises(urllib.error.URLError):
        await asked(f"{url}/healthz")


async def test_notes_are_reported_over_the_loopback_alone_and_faults_to_everybody() -> None:
    state = State()
    state.faults, state.remarks = ["x"], ["the record of claim ml/secret cannot be read"]
    probes = Probes(Metrics(), state.measure, state.not_ready, state.notes)
    asked_from = Request("GET", "/readyz", {}, {"host": "10.0.0.2:8080"}, b"", peer="10.0.0.7")
    found = await probes._handle(asked_from)
    assert found.status == 503
    assert found.body.startswith(b"x\nnote: 1 more, shown only on the loopback")
    assert b"secret" not in found.body
    here = await probes._handle(replace(asked_from, headers={"host": "localhost:8080"}, peer="::ffff:127.0.0.1"))
    assert b"ml/secret" in here.body


async def test_without_an_address_there_are_no_probes_and_with_a_bad_one_no_start() -> None:
    async with served(State(), "") as url:
        assert url == ""
    for address in ("256.0.0.1:0", "a..b:0"):
        with pytest.raises(SettingsError, match=r"--http-address \(HTTP_ADDRESS\)"):
            async with served(State(), address):
                pass


# --- a plugin -----------------------------------------------------------------------------------------------


async def test_a_plugin_closes_its_connections_and_its_probes_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    close = KubeClient.close

    async def counted(self: KubeClient) -> None:
        closed.append(self)
        await close(self)

    monkeypatch.setattr(KubeClient, "close", counted)
    async with node_with(make_toy_class()) as node:
        plugin = cast(Any, node.plugin)
        assert plugin.client not in closed
    assert plugin.client in closed
    assert (plugin.serving, plugin.stopping, await plugin.not_ready()) == (True, True, ["stopping"])
