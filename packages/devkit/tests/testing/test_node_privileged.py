"""A driver that writes to sysfs without ``privileged = True`` fails in a test as on a real node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_devkit.testing import PodError, node_with
from dra_kubeletplugin import Claim, Device, Driver, PreparedClaim, PreparedDevice

FIRMWARE = "bus/pci/devices/0000:19:00.0/firmware"
HOST = {"functions": [{"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "attributes": {"firmware": "0"}}]}


class Writer(Driver):
    """Loads firmware in prepare."""

    name = "card.example.com"

    def devices(self) -> list[Device]:
        return [fn.device() for fn in self.host.pci(vendor=0x10EE)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.host.write(FIRMWARE, "4.2")
        return [device.prepared() for device in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        pass


class Privileged(Writer):
    privileged = True


class Daemon(Privileged):
    """Starts a process in its own session, which outlives the plugin."""

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        (self.settings.plugin_dir / "daemon").write_text(str(daemon.pid))
        return super().prepare(claim)


async def test_a_write_without_the_attribute_privileged_fails_the_pod() -> None:
    async with node_with(Writer, host=HOST) as node:
        with pytest.raises(PodError, match="set `privileged = True` in class Writer") as raised:
            await node.run_pod()
        assert FIRMWARE in str(raised.value)
        node.write_sysfs(FIRMWARE, "from the vendor's tool")  # a test may always change the hardware


async def test_a_reboot_undoes_a_privileged_write() -> None:
    async with node_with(Privileged, host=HOST) as node:
        await node.run_pod()
        firmware = node.settings.sysfs_root / FIRMWARE
        assert firmware.read_text() == "4.2"
        await node.reboot()
        assert firmware.read_text() == "0\n"


@pytest.mark.full
async def test_a_reboot_ends_the_processes_that_a_driver_started() -> None:
    async with node_with(Daemon, host=HOST, process=True) as node:
        await node.run_pod()
        pid = int((node.settings.plugin_dir / "daemon").read_text())
        command = Path(f"/proc/{pid}/cmdline")
        try:
            await node.kill()
            assert b"sleep" in command.read_bytes(), "a kill of the plugin does not end the daemon"
            await node.start()
            await node.reboot()

            async def has_ended() -> bool:
                return not command.exists() or not command.read_bytes()  # empty for a zombie

            await node.api.wait("the daemon's end", has_ended)
        finally:
            if command.exists() and b"sleep" in command.read_bytes():
                os.kill(pid, signal.SIGKILL)
