"""`dra explain` names a free card for a pod whose card has another mode, with the selector that a new claim needs to get it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import ClaimSpec, DriverNode, OpaqueConfig, Request, node_with, pods
from dra_kubeletplugin import Claim, Config, ContainerEdits, CounterSet, Device, Driver, Pool, PreparedDevice
from dra_kubeletplugin.cli import main

NAME = "ssd.example.com"


class Mode(Config):
    mode: Literal["latency", "throughput"]


class Cards(Driver):
    """Cards a1, b2 and c3 with two parts each. The value of an attribute is the key of the shared step."""

    name = NAME
    config = Mode

    def pools(self) -> list[Pool]:
        parts = [
            Device(f"{card}-{i}", attributes={"serial": card.upper(), "fast": card != "b2"})
            for card in ("a1", "b2", "c3")
            for i in (0, 1)
        ]
        return [Pool(self.settings.node_name, parts)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for device in claim.devices:
            assert isinstance(device.config, Mode | DefaultMode)
            claim.shared_step(self.setup_mode, device.name.partition("-")[0], mode=device.config.mode)
        return [d.prepared(ContainerEdits(env={"A": "b"})) for d in claim.devices]

    def setup_mode(self, card: str, mode: str) -> None:
        pass

    def teardown_mode(self, card: str, mode: str) -> None:
        pass


class Counted(Cards):
    """No attribute identifies the card: its parts have a common counter set."""

    def pools(self) -> list[Pool]:
        (pool,) = super().pools()
        devices = [
            Device(
                d.name,
                attributes={"fast": d.attributes["fast"]},
                consumes_counters={d.name.partition("-")[0]: {"parts": 1}},
            )
            for d in pool.devices
        ]
        return [Pool(self.settings.node_name, devices, [CounterSet(card, {"parts": 2}) for card in ("a1", "b2", "c3")])]


class WithPlainDevice(Cards):
    """A further device has no serial."""

    def pools(self) -> list[Pool]:
        (pool,) = super().pools()
        return [Pool(self.settings.node_name, [Device("a0", attributes={"fast": False}), *pool.devices])]


class Hidden(Cards):
    """Neither attributes nor counters show which devices are on one card."""

    def pools(self) -> list[Pool]:
        (pool,) = super().pools()
        return [Pool(self.settings.node_name, [Device(d.name, attributes={"fast": True}) for d in pool.devices])]


class DefaultMode(Config):
    mode: Literal["latency", "throughput"] = "throughput"


class ModeByDefault(Cards):
    config = DefaultMode


def wants(mode: str, *selectors: str) -> ClaimSpec:
    request = Request(selectors=[f'device.attributes["{NAME}"].fast', *selectors])
    return ClaimSpec(request, config=[OpaqueConfig(NAME, {"mode": mode})])


WAIT = "wait until the pods of that claim have stopped, or delete them"


async def change_for(node: DriverNode[Any], pod: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Waits until the card of the pod is in another mode, and returns what `dra explain` suggests."""
    await node.api.wait_event(pod, "SHARED_STEP")
    assert isinstance(node.cluster, LocalCluster)
    words = ["explain", pod, "--kubeconfig", str(node.cluster.kubeconfig), "-o", "json"]
    assert await asyncio.to_thread(main, words) == 1
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    return str(reason["change"])


def selector_in(change: str) -> str:
    found = re.search(r": ((?:.serial. in )?device\.attributes.*?)\. Or ", change)
    assert found, change
    return found[1]


async def test_a_pod_on_a_card_in_another_mode_learns_the_selector_for_a_free_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node_with(Cards) as node:
        await node.run_pod("first", wants("latency"))
        assert await node.allocated("first") == ["a1-0"]
        await node.apply_pod("second", wants("throughput"))
        change = await change_for(node, "second", capsys)  # has a1-1; b2 does not match its selector
        assert change == (
            "node-1/c3-0 would do: its card is free. A new pod can get the same card again without a selector. Delete the pod, and "
            "create it with a copy of template second-template that has this selector in request device: "
            f'device.attributes["{NAME}"].serial == "C3". Or {WAIT}'
        )
        await node.delete_pod("second")
        await node.run_pod("second", wants("throughput", selector_in(change)))
        assert await node.allocated("second") == ["c3-0"]
        await node.apply_pod("third", wants("throughput"))  # a1-1; c3-1 is free, but its card is not
        assert await change_for(node, "third", capsys) == f"{WAIT}; no other free card would do"


async def test_a_claim_that_the_pod_names_is_created_again_with_the_pod(capsys: pytest.CaptureFixture[str]) -> None:
    async with node_with(Cards) as node:
        await node.run_pod("first", wants("latency"))
        await node.api.apply(pods.claim("mine", wants("throughput")), pods.pod("second", claims=["mine"]))
        change = await change_for(node, "second", capsys)
        assert "Delete the pod and claim mine, and create both with this selector in request device: " in change


async def test_several_devices_of_free_cards_are_named_by_one_selector(capsys: pytest.CaptureFixture[str]) -> None:
    async with node_with(Cards) as node:
        await node.run_pod("first", wants("latency"))
        three = Request(count=3, selectors=[])
        await node.apply_pod("second", ClaimSpec(three, config=[OpaqueConfig(NAME, {"mode": "throughput"})]))
        change = await change_for(node, "second", capsys)
        assert change.startswith("node-1/b2-0, node-1/b2-1, node-1/c3-0 would do: their cards are free. ")
        assert selector_in(change) == f'device.attributes["{NAME}"].serial in ["B2", "C3"]'


async def test_a_selector_checks_an_attribute_that_some_devices_lack(capsys: pytest.CaptureFixture[str]) -> None:
    async with node_with(WithPlainDevice) as node:
        await node.run_pod("first", wants("latency"))
        await node.apply_pod("second", wants("throughput"))
        selector = selector_in(await change_for(node, "second", capsys))
        assert selector == f'"serial" in device.attributes["{NAME}"] && device.attributes["{NAME}"].serial == "C3"'
        await node.delete_pod("second")
        await node.run_pod("second", wants("throughput", selector))
        assert await node.allocated("second") == ["c3-0"]


async def test_a_free_card_without_an_attribute_of_its_own_cannot_be_selected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node_with(Counted) as node:
        await node.run_pod("first", wants("latency"))
        await node.apply_pod("second", wants("throughput"))
        assert await change_for(node, "second", capsys) == (
            "node-1/c3-0 would do: its card is free, but no selector can name it, because no attribute has a value that only devices "
            f"of this card have. So {WAIT}"
        )


class Functions(Driver):
    """Functions in two IOMMU groups, as in drivers/pci: the key has the name and the number of the group."""

    name = NAME

    def devices(self) -> list[Device]:
        return [Device(f"fn-{i}", attributes={"iommuGroup": 20 + i // 2, "port": i % 2}) for i in range(4)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for device in claim.devices:
            claim.shared_step(self.setup_group, f"iommu-group-{device.attributes['iommuGroup']}", claim=claim.uid)
        return [d.prepared(ContainerEdits(env={"A": "b"})) for d in claim.devices]

    def setup_group(self, group: str, claim: str) -> None:
        pass

    def teardown_group(self, group: str, claim: str) -> None:
        pass


async def test_a_key_of_an_attributes_name_and_number_identifies_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    async with node_with(Functions) as node:
        await node.run_pod("first")
        await node.apply_pod("second")
        change = await change_for(node, "second", capsys)
        assert change.startswith("node-1/fn-2 would do: its card is free. ")
        assert selector_in(change) == f'device.attributes["{NAME}"].iommuGroup == 21'


async def test_no_card_is_named_if_neither_attributes_nor_counters_show_the_cards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node_with(Hidden) as node:
        await node.run_pod("first", wants("latency"))
        await node.apply_pod("second", wants("throughput"))
        assert await change_for(node, "second", capsys) == (
            f"{WAIT}; whether another card would do is not known: neither an attribute with this value nor a common counter set shows which "
            "devices share a1"
        )


async def test_a_pod_with_an_extended_resource_learns_that_it_needs_a_claim_for_another_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    resource = "example.com/ssd"
    async with node_with(ModeByDefault) as node:
        await node.run_pod("first", wants("latency"))
        (found,) = await node.api.get_all("DeviceClass")
        device_class = pods.device_class(found["metadata"]["name"], NAME)
        device_class["spec"]["extendedResourceName"] = resource
        await node.api.apply(device_class)

        async def apply_pod(name: str) -> None:
            pod = pods.pod(name)
            pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
            await node.api.apply(pod)

        await apply_pod("second")  # a1-1
        assert await change_for(node, "second", capsys) == (
            "node-1/b2-0 would do: its card is free. An extended resource cannot name a card, and a new pod can get the same card "
            f"again. Delete the pod, and create it without the resource and with a claim of class {found['metadata']['name']} that has this selector: "
            f'device.attributes["{NAME}"].serial == "B2". Or {WAIT}'
        )
        for card, pod in {"B2": "third", "C3": "fourth"}.items():
            await node.run_pod(
                pod, selector=f'device.attributes["{NAME}"].serial == "{card}"', parameters={"mode": "latency"}
            )
        assert await change_for(node, "second", capsys) == f"{WAIT}; no other free card would do"
