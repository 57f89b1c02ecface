"""Readiness, metrics and errors describe the current state."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Device
from dra_kubeletplugin.errors import NotReadyError
from tests.helpers.drivers import HealthReportingDriver, Toy, make_toy_class


async def test_a_driver_whose_devices_always_fail_is_an_error_with_the_reason_after_a_short_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FailingToy(Toy):
        async def devices(self) -> list[Device]:
            raise OSError("the bus is gone")

    monkeypatch.setattr("dra_devkit.testing.driver_process.PROGRESS_TIMEOUT", 0.2)
    with pytest.raises(
        NotReadyError,
        match=r"the plugin is not ready: the driver's devices raised OSError: the bus is gone \(plugin/test_node_readiness.py:\d+\); no claim",
    ):
        async with node_with(FailingToy):
            pass


async def test_an_overwritten_record_is_detected_and_repaired_without_a_call() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        (path,) = node.settings.records_path.glob("[!_]*.json")
        written = path.read_bytes()
        path.write_bytes(os.urandom(len(written)))

        async def is_repaired() -> bool:
            return any("was damaged; it is written again" in note for note in await node.plugin.notes())

        await node.cluster.wait("the record to be repaired", is_repaired)
        assert path.read_bytes() == written
        assert (await node.leftovers())["held"] == ["toy-0"]
        await node.delete_pod()


async def test_a_stopping_plugin_is_neither_ready_nor_registered() -> None:
    cls = make_toy_class()
    cls.block = asyncio.Event()
    async with node_with(cls) as node:
        await node.apply_pod()
        await node.cluster.wait("a prepare", as_coroutine_function(lambda: cls.calls))
        stop = asyncio.create_task(node.stop())
        await node.cluster.wait("the stop", as_coroutine_function(lambda: node.plugin.stopping))
        assert await node.plugin.not_ready() == ["stopping"]
        assert b"dra_registered 0.0" in node.plugin.metrics.text()
        cls.block.set()
        await stop


async def test_a_failed_prepare_and_its_unprepare_report_no_missing_note(caplog: pytest.LogCaptureFixture) -> None:
    cls = make_toy_class()
    cls.fail = OSError("the toy broke")
    async with node_with(cls) as node:
        await node.apply_pod()
        await node.cluster.wait("a prepare", as_coroutine_function(lambda: cls.calls))
        await node.delete_pod()
    assert not [r for r in caplog.records if "note" in r.getMessage() and r.levelno >= logging.WARNING]


async def test_health_of_an_unknown_device_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    from dra_kubeletplugin import Health

    class MisspelledHealthDriver(HealthReportingDriver):
        def health(self) -> dict[str, Health]:
            return {"toy_0": Health(False, "hot")}

    async with node_with(MisspelledHealthDriver, health_interval=0.1) as node:
        version_before = node.plugin.inventory.health_version
        await node.cluster.wait(
            "three reports", as_coroutine_function(lambda: node.plugin.inventory.health_version > version_before + 2)
        )
    assert sum("toy_0, which is not a device of this node" in r.getMessage() for r in caplog.records) == 1


def as_coroutine_function(check: Any) -> Any:
    async def call_check() -> Any:
        return check()

    return call_check


async def test_a_reconcile_pass_during_the_stop_logs_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        uid = (await node.claim_of("pod"))["metadata"]["uid"]
        claims = node.plugin.claims
        claims.files.specs.path(uid).unlink()
        await claims.stop(1)
        report = await claims.reconciler.once(ask_server=False)
        assert report.still_working == [uid]
        assert not report.failed
    assert "cannot reconcile claim" not in caplog.text
