"""The node of a test: its pods, and the values that a test reads from its host."""

from __future__ import annotations

import asyncio

import pytest

from dra_devkit.testing import ClaimSpec, FaultError, PodError, node_with, pods
from dra_kubeletplugin import Claim, Device, Driver, Health, PreparedDevice

FIRMWARE = "bus/pci/devices/0000:19:00.0/firmware"
HOST = {"functions": [{"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "attributes": {"firmware": "0"}}]}


class Cards(Driver):
    name = "card.example.com"
    privileged = True

    def devices(self) -> list[Device]:
        return [Device("old", attributes={"year": 2020}), Device("new", attributes={"year": 2026})]

    def health(self) -> dict[str, Health]:
        return {}

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.host.write(FIRMWARE, "4.2")
        return [device.prepared() for device in claim.devices]


class OneAtATime(Driver):
    """Two claims cannot use the devices at the same time."""

    name = "card.example.com"

    def devices(self) -> list[Device]:
        return [Device("a"), Device("b")]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        claim.shared_step(self.setup_use, "card", claim=claim.uid)
        return [device.prepared() for device in claim.devices]

    def setup_use(self, key: str, claim: str) -> None:
        pass

    def teardown_use(self, key: str, claim: str) -> None:
        pass


def of_year(year: int) -> str:
    return f'device.attributes["card.example.com"].year == {year}'


async def test_a_second_pod_with_the_same_name_is_rejected() -> None:
    async with node_with(Cards, host=HOST) as node:
        await node.run_pod()
        with pytest.raises(FaultError, match="there is a pod pod already: choose another name"):
            await node.run_pod()


async def test_a_pod_with_the_name_of_a_deleted_pod_gets_its_own_claim() -> None:
    async with node_with(Cards, host=HOST) as node:
        for year, device in ((2020, "old"), (2026, "new")):
            await node.run_pod(selector=of_year(year))
            assert await node.allocated("pod") == [device]
            await node.delete_pod()


async def test_the_claim_of_a_pod_is_not_one_of_a_deleted_pod_with_its_name() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "deleted-pod", "controller": True}
    claim = pods.claim("a", ClaimSpec())  # its name sorts before the name of the generated claim
    claim["metadata"] |= {"ownerReferences": [owner], "finalizers": ["example.com/keep"]}
    async with node_with(Cards, host=HOST) as node:
        await node.api.apply(claim)
        await node.run_pod()
        assert (await node.claim_of("pod"))["metadata"]["name"].startswith("pod-")


async def test_a_test_reads_the_host_of_a_driver_in_its_own_process() -> None:
    async with node_with(Cards, host=HOST, process=True) as node:
        assert node.host.is_real is False
        await node.run_pod()
        fn = node.host.function("0000:19:00.0")
        assert fn is not None and fn.read("firmware") == "4.2"
        with pytest.raises(FaultError, match=r"use node\.host to read the host"):
            _ = node.driver
        with pytest.raises(FaultError, match="run the test without process=True"):
            await node.health("old")


async def test_run_pod_waits_while_another_claim_uses_the_card_with_other_state() -> None:
    async with node_with(OneAtATime) as node:
        await node.run_pod("first")
        second = asyncio.create_task(node.run_pod("second", progress_timeout=0.0))
        await node.api.wait_event("second", "SHARED_STEP")
        await node.delete_pod("first")
        assert (await second)["status"]["phase"] == "Running"


async def test_a_wait_for_a_pod_whose_card_stays_in_use_ends_with_the_reason() -> None:
    async with node_with(OneAtATime) as node:
        await node.run_pod("first")
        with pytest.raises(PodError, match="for pod second to run: SHARED_STEP"):
            await node.run_pod("second", timeout=1.0, progress_timeout=0.0)
