"""A driver may write to sysfs only if its class is privileged. An error of a read-only sysfs contains the likely cause."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from dra_devkit.hosts import described
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import Driver, attach
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.host import Host

FIRMWARE = "bus/pci/devices/0000:19:00.0/firmware"
MACHINE = {
    "functions": [{"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "attributes": {"firmware": "0"}}]
}


class Unprivileged(Driver):
    name = "quiet.example.com"


class Privileged(Unprivileged):
    privileged = True


def attached(cls: type[Driver], sysfs: Path) -> Host:
    driver = cls()
    attach(driver, Host(sysfs), Settings(node_name="node-1"))
    return driver.host


@pytest.mark.parametrize("described_host", [True, False], ids=["a described host", "this machine"])
def test_a_write_of_an_unprivileged_class_is_rejected_on_every_host(tmp_path: Path, described_host: bool) -> None:
    sysfs = described.build(tmp_path / "sys", MACHINE)
    if not described_host:
        (sysfs / ".described-host").unlink()
    with pytest.raises(DriverError) as raised:
        attached(Unprivileged, sysfs).write(FIRMWARE, "4.2")
    assert str(raised.value) == (
        f"Host.write() to {FIRMWARE}: set `privileged = True` in class Unprivileged, because sysfs is read-only in a container that is not "
        "privileged"
    )
    assert (sysfs / FIRMWARE).read_text() == "0\n"
    attached(Privileged, sysfs).write(FIRMWARE, "4.2")
    assert (sysfs / FIRMWARE).read_text() == "4.2"


def test_the_error_of_a_read_only_sysfs_has_the_likely_cause_and_the_errno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens if the class is privileged but the manifest's container is not, for example because of Helm values."""
    (tmp_path / "devices").mkdir()

    def fail(self: Path, text: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(
        OSError, match=r"Read-only file system; is the plugin's container privileged .*values\.yaml"
    ) as raised:
        attached(Privileged, tmp_path).write("devices/x", "1")
    assert (raised.value.errno, raised.value.filename) == (errno.EROFS, str(tmp_path / "devices/x"))


def test_a_write_to_a_described_host_without_the_devkit_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".described-host").touch()
    monkeypatch.setitem(sys.modules, "dra_devkit.hosts.kernel", None)
    with pytest.raises(DriverError, match="needs dra-devkit: pip install dra-devkit"):
        Host(tmp_path).write("bus/pci/drivers_probe", "0000:19:00.0")
