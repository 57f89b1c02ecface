"""The drivers in docs/drivers.md work as the page describes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import (
    ClaimSpec,
    PodError,
    Request,
    controller_on,
    device_class,
    node_with,
    plugin_on,
    pod,
    template,
)
from dra_kubeletplugin import Quantity
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.metadata.document import decode

GUIDE = (Path(__file__).parents[2] / "docs/drivers.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL))


def load_from_guide(folder: Path, name: str) -> Any:
    (folder / name).write_text(FILES[name])
    return load_driver(str(folder / name))


async def test_the_healthy_card_is_allocated_and_has_the_mode_of_the_claim(tmp_path: Path) -> None:
    cards = tmp_path / "cards"
    for name in ("a1", "b2"):
        (cards / name).mkdir(parents=True)
        (cards / name / "node").write_text("/dev/null")  # The creation of device nodes requires root.
    (cards / "a1/fault").touch()
    async with node_with(load_from_guide(tmp_path, "acme.py"), options={"acme_cards": cards}) as node:
        running = await node.run_pod(parameters={"mode": "Fast"})
        assert node.env(running)["ACME_QUEUES"] == "16"
        assert [d["path"] for d in node.oci(running)["linux"]["devices"]] == ["/dev/null"]
        assert (cards / "b2/mode").read_text() == "Fast"
        await node.delete_pod()
        assert not (cards / "b2/mode").exists()
        assert not any((await node.leftovers()).values())
        with pytest.raises(PodError, match="Invalid enum value 'fast': use one of 'Fast', 'Safe'"):
            await node.run_pod("wrong", parameters={"mode": "fast"})
        await node.delete_pod("wrong")
        with pytest.raises(PodError, match="the claim needs parameters of kind AcmeConfig with a mode"):
            await node.run_pod("none")


async def test_a_port_is_shared_and_a_chip_is_allocated_whole_or_in_halves(tmp_path: Path) -> None:
    domain = 'device.{}["parts.example.com"]'
    async with node_with(load_from_guide(tmp_path, "parts.py"), host="virtual-machine") as node:
        port = Request(
            "port", capacity={"bandwidth": "1500M"}, selectors=["'bandwidth' in " + domain.format("capacity")]
        )
        env = [node.env(await node.run_pod(f"shares-{i}", ClaimSpec(port))) for i in range(4)]
        assert [Quantity(e["BANDWIDTH"]) for e in env] == [Quantity("2G")] * 4  # rounded up to the next step
        chips = ["!('bandwidth' in " + domain.format("capacity") + ")"]
        await node.run_pod("half", ClaimSpec(Request("chip", selectors=chips)))
        await node.run_pod("other", ClaimSpec(Request("chip", selectors=chips)))
        with pytest.raises(
            PodError, match="cannot allocate all claims"
        ):  # The whole chip is partly used, and the other chip is worn.
            await node.run_pod("whole", ClaimSpec(Request("chip", selectors=chips)))


async def test_a_card_s_addresses_are_in_its_metadata_file_and_its_link_state_is_its_health(tmp_path: Path) -> None:
    async with node_with(load_from_guide(tmp_path, "nic.py"), host="virtual-machine", health_interval=3600.0) as node:
        pod = await node.run_pod(claim=ClaimSpec(Request("nic")))
        device = node.env(pod)["NIC"]
        (claim,) = await node.plugin.claims.store.all()
        driver: Any = node.plugin.driver
        await asyncio.to_thread(driver.attached, claim.uid, device, ["10.0.0.2/24"])
        (source,) = [m["source"] for m in node.oci(pod)["mounts"] if m["destination"].endswith("-metadata.json")]
        (described,) = decode(Path(source).read_bytes(), Path(source)).devices
        assert (described.generation, described.network and described.network.ips) == (2, ("10.0.0.2/24",))
        assert described.attributes == {"speed": 100, "queues": 8}
        await asyncio.to_thread(driver.link, device, False)
        async with asyncio.timeout(30):
            while node.plugin.inventory.healthy(device):
                await asyncio.sleep(0.01)


async def test_a_disk_is_attached_to_the_node_of_its_pod(tmp_path: Path) -> None:
    fabric = load_from_guide(tmp_path, "fabric.py")
    async with (
        LocalCluster(("node-1",)) as cluster,
        plugin_on(cluster, fabric, "node-1"),
        controller_on(cluster, fabric),
    ):
        spec = ClaimSpec(Request("disk", device_class="disks"))
        await cluster.apply(device_class("disks", fabric.name), template("t", spec), pod("p", templates=["t"]))
        await cluster.wait_running("p")
        assert fabric.attached == {"disk-0": "node-1"}
        (claim,) = cluster.claims()
        assert claim["status"]["devices"][0]["data"] == {"node": "node-1"}
        await cluster.delete_pod("p")

        async def is_detached() -> bool:
            return fabric.attached == {}

        await cluster.wait("the detachment of the disk", is_detached)


async def test_firmware_is_loaded_for_a_claim_and_unloaded_after_it_or_by_a_reboot(tmp_path: Path) -> None:
    card = {"address": "0000:17:00.0", "vendor": 0x10EE, "device": 0x5000, "attributes": {"firmware": "0"}}
    async with node_with(load_from_guide(tmp_path, "firmware.py"), host={"functions": [card]}) as node:
        firmware = node.settings.sysfs_root / "bus/pci/devices/0000:17:00.0/firmware"
        for end in (node.delete_pod, node.reboot):
            await node.run_pod()
            assert firmware.read_text() == "4.2"
            await end()
            assert firmware.read_text().strip() == "0"


async def test_a_port_that_proc_lists_is_in_its_container_with_the_current_major_number(
    tmp_path: Path,
) -> None:
    table = {"devices": "Character devices:\n240 acme\n", "driver/acme/ports": "7"}
    async with node_with(load_from_guide(tmp_path, "serial.py"), host={"functions": [], "proc": table}) as node:
        running = await node.run_pod()
        (device,) = node.oci(running)["linux"]["devices"]
        assert (device["path"], device["major"], device["minor"]) == ("/dev/acme7", 240, 7)


def test_the_tests_cover_every_file_of_the_guide() -> None:
    assert sorted(FILES) == ["acme.py", "fabric.py", "firmware.py", "nic.py", "parts.py", "serial.py"]
    assert len(FILES) == GUIDE.count("```python")
