"""If the plugin cannot open a netlink socket for udev events, it scans devices by interval and logs the cause once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.host import events
from tests.helpers.drivers import make_toy_class

SRC = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOSPC, errno.EACCES])
async def test_without_events_devices_are_found_by_interval_and_the_cause_is_logged_once(
    fault: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(events, "_uevents", fail)
    async with node_with(cls := make_toy_class(), rescan_interval=0.1) as node:
        cls.count = 2
        await node.wait_published(lambda devices: len(devices) == 2)
        assert await node.plugin.not_ready() == []
    assert [
        r.message
        for r in caplog.records
        if "cannot receive udev events" in r.message and os.strerror(fault) in r.message
    ]
    assert len([r for r in caplog.records if "cannot receive udev events" in r.message]) == 1


def test_nothing_uses_inotify() -> None:
    """Exhausted inotify instances and watches (fs.inotify.max_user_*) therefore do not affect the plugin."""
    assert not [p for p in SRC.rglob("*.py") if "inotify" in p.read_text(encoding="utf-8").lower()]
