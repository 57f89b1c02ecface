"""If the plugin cannot receive udev events, it scans devices by interval and logs the cause once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.host import events
from tests.helpers.drivers import make_toy_class


async def scans_by_interval_and_logs(cause: str, caplog: pytest.LogCaptureFixture) -> bool:
    async with node_with(cls := make_toy_class(), rescan_interval=0.1) as node:
        cls.count = 2
        await node.wait_published(lambda devices: len(devices) == 2)
        assert await node.plugin.not_ready() == []
    logged = [r.getMessage() for r in caplog.records if "cannot receive udev events" in r.getMessage()]
    return len(logged) == 1 and cause in logged[0]


async def test_without_libudev_devices_are_found_by_interval(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyudev._ctypeslib.utils.find_library", lambda name: None)
    assert await scans_by_interval_and_logs("No library named udev", caplog)


async def test_in_a_user_namespace_devices_are_found_by_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "uid_map").write_text("         0     165536      65536\n")
    monkeypatch.setattr(events, "_UID_MAP", str(tmp_path / "uid_map"))
    assert await scans_by_interval_and_logs("hostUsers", caplog)
