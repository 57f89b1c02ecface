"""Pods with halves of one card, whose firmware must stay loaded until the last pod is deleted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin.cli import main
from tests.helpers.nimbus_n4 import FIRST, HALF, ONE_CARD, QUARTER, Nimbus

pytestmark = pytest.mark.gates("DRAPartitionableDevices")


@contextlib.asynccontextmanager
async def card(*, process: bool = False) -> AsyncIterator[DriverNode[Nimbus]]:
    async with node_with(Nimbus, host=ONE_CARD, process=process) as node:
        yield node


def read(node: DriverNode[Nimbus], name: str = "firmware", address: str = FIRST) -> str:
    text: str = (node.settings.sysfs_root / "bus/pci/devices" / address / name).read_text()
    return text.strip()


async def test_after_a_kill_the_users_are_the_same() -> None:
    async with card(process=True) as node:
        await node.run_pod("one", selector=HALF)
        await node.run_pod("two", selector=HALF)
        await node.kill()
        await node.start()
        await node.delete_pod("one")
        assert read(node) == "4.2"
        await node.kill()
        await node.start()
        await node.delete_pod("two")
        assert (read(node), read(node, "loads")) == ("0", "1")


async def test_after_a_reboot_the_first_pod_loads_the_firmware_again() -> None:
    async with card() as node:
        await node.run_pod("one", selector=HALF, restart_policy="Always")
        await node.run_pod("two", selector=QUARTER, restart_policy="Always")
        await node.reboot()
        await node.api.wait_running("one")
        await node.api.wait_running("two")
        assert (read(node), read(node, "loads")) == ("4.2", "1")  # both were 0 after the reboot
        await node.delete_pod("one")
        assert read(node) == "4.2"
        await node.delete_pod("two")
        assert read(node) == "0"


async def test_dra_claims_shows_each_shared_step_with_its_users(capsys: pytest.CaptureFixture[str]) -> None:
    async with card() as node:
        root = str(node.settings.kubelet_root)
        await node.run_pod("one", selector=HALF)
        await node.run_pod("two", selector=QUARTER)
        names = [(await node.claim_of(pod))["metadata"]["name"] for pod in ("one", "two")]
        assert main(["claims", "--kubelet-root", root, "--cdi-root", str(node.settings.cdi_root)]) == 0
        rows = [line.split() for line in capsys.readouterr().out.partition("\n\n")[2].splitlines()]
        users = ",".join(f"default/{n}" for n in names)
        assert rows == [
            ["DRIVER", "SHARED", "STEP", "HARDWARE", "STATE", "CLAIMS"],
            ["nimbus.example.com", "firmware", "0000:17:00.0", "set", "up", users],
        ]
        assert main(["claims", "--kubelet-root", root, "--cdi-root", str(node.settings.cdi_root), "-o", "json"]) == 0
        (shared_step,) = json.loads(capsys.readouterr().out)["shared"]
        assert (shared_step["step"], shared_step["key"], shared_step["ready"]) == ("firmware", FIRST, True)
        assert shared_step["claims"] == [f"default/{n}" for n in names]
        await node.delete_pod("one")
        await node.delete_pod("two")
        assert main(["claims", "--kubelet-root", root, "--cdi-root", str(node.settings.cdi_root)]) == 0
        assert "SHARED" not in capsys.readouterr().out
