"""Writes of a driver to sysfs: refused for a driver that does not announce them, and explained where the container refuses them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.host.fake import described

FIRMWARE = "bus/pci/devices/0000:19:00.0/firmware"
MACHINE = {
    "functions": [{"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "attributes": {"firmware": "0"}}]
}


class Quiet(Driver):
    name = "quiet.example.com"


class Loader(Quiet):
    privileged = True


def attached(cls: type[Driver], sysfs: Path) -> Host:
    driver = cls()
    driver.attach(Host(sysfs), Settings(node_name="node-1"))
    return driver.host


@pytest.mark.parametrize("described_host", [True, False], ids=["a described host", "this machine"])
def test_a_write_that_the_class_does_not_announce_is_refused_on_every_host(
    tmp_path: Path, described_host: bool
) -> None:
    sysfs = described.build(tmp_path / "sys", MACHINE)
    if not described_host:
        (sysfs / ".described-host").unlink()
    with pytest.raises(DriverError) as raised:
        attached(Quiet, sysfs).write(FIRMWARE, "4.2")
    assert str(raised.value) == (
        f"Host.write() to {FIRMWARE}: set `privileged = True` in class Quiet, because sysfs is read-only in a container that is not "
        "privileged"
    )
    assert (sysfs / FIRMWARE).read_text() == "0\n"
    attached(Loader, sysfs).write(FIRMWARE, "4.2")
    assert (sysfs / FIRMWARE).read_text() == "4.2"


def test_a_read_only_sysfs_is_explained_and_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose manifest is not privileged although the class announces it, for example through Helm."""
    (tmp_path / "devices").mkdir()

    def refused(self: Path, text: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(
        OSError, match=r"Read-only file system; is the plugin's container privileged .*values\.yaml"
    ) as raised:
        attached(Loader, tmp_path).write("devices/x", "1")
    assert (raised.value.errno, raised.value.filename) == (errno.EROFS, str(tmp_path / "devices/x"))
