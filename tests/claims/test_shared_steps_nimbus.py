"""Pods with halves of one card, whose firmware must stay loaded until the last pod is deleted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from dra_devkit.testing import DriverNode, PodError, node_with
from dra_kubeletplugin import Claim, PreparedDevice
from dra_kubeletplugin.cli import main
from tests.helpers.nimbus_n4 import FIRST, HALF, HOST, ONE_CARD, QUARTER, SECOND, Nimbus

pytestmark = pytest.mark.gates("DRAPartitionableDevices")


@contextlib.asynccontextmanager
async def card(host: object = ONE_CARD, *, process: bool = False) -> AsyncIterator[DriverNode[Nimbus]]:
    async with node_with(Nimbus, host=host, process=process) as node:  # type: ignore[arg-type]
        yield node


def read(node: DriverNode[Nimbus], name: str = "firmware", address: str = FIRST) -> str:
    text: str = (node.settings.sysfs_root / "bus/pci/devices" / address / name).read_text()
    return text.strip()


async def test_the_firmware_stays_loaded_until_the_last_half_is_unprepared() -> None:
    async with card() as node:
        await node.run_pod("one", selector=HALF)
        await node.run_pod("two", selector=HALF)
        assert (read(node), read(node, "loads")) == ("4.2", "1")
        await node.delete_pod("one")
        assert read(node) == "4.2"
        await node.delete_pod("two")
        assert read(node) == "0"
        assert not any((await node.leftovers()).values())


async def test_each_card_has_its_own_firmware() -> None:
    async with card(HOST) as node:
        await node.run_pod(
            "one", selector=f'{HALF} && device.attributes["resource.kubernetes.io"].pciBusID == "{FIRST}"'
        )
        await node.run_pod(
            "two", selector=f'{HALF} && device.attributes["resource.kubernetes.io"].pciBusID == "{SECOND}"'
        )
        await node.delete_pod("one")
        assert (read(node), read(node, address=SECOND)) == ("0", "4.2")


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


async def test_a_failing_claim_keeps_the_firmware_for_the_other_claim() -> None:
    class FailingDriver(Nimbus):
        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            prepared = super().prepare(claim)
            if "bad" in claim.name:
                raise OSError("no")
            return prepared

    async with node_with(FailingDriver, host=ONE_CARD) as node:
        await node.run_pod("one", selector=HALF)
        with pytest.raises(PodError, match="no"):
            await node.run_pod("bad", selector=HALF, progress_timeout=0.1)
        await node.delete_pod("bad")
        assert (read(node), read(node, "loads")) == ("4.2", "1")
        await node.delete_pod("one")
        assert read(node) == "0"


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


async def test_a_new_version_keeps_the_firmware_that_pods_use_and_loads_its_own_after_them() -> None:
    class NewerNimbus(Nimbus):
        firmware = "4.3"

    async with card() as node:
        await node.run_pod("one", selector=HALF)
        await node.upgrade(NewerNimbus)
        await node.apply_pod("two", selector=HALF)
        await node.api.wait_event(
            "two", "SHARED_STEP: the shared step firmware of 0000:17:00.0 is set up for claim default/one"
        )
        assert read(node) == "4.2"
        await node.delete_pod("one")
        await node.api.wait_running("two")
        assert read(node) == "4.3"
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
