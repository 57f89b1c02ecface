"""Device status that drivers report in claims (KEP-4817), through real sockets: written after a prepare, next to other
writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin import Claim, Condition, Device, DeviceStatus, Driver, NetworkData, PreparedDevice
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.claims.device_status import ClaimIdentity
from dra_kubeletplugin.errors import DriverError, InvalidObjectError
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.resourceapi.defaulting import now
from tests.helpers.ports import refusing_port

NAME = "net.example.com"
UP = DeviceStatus(
    conditions=[Condition("Ready", True, "LinkUp", "100 Gb/s")],
    data={"vlan": 7},
    network_data=NetworkData(interface_name="eth1", ips=["10.0.0.2/24"], hardware_address="02:00:00:00:00:01"),
)


class Net(Driver):
    name = NAME
    hook: Callable[[Claim], object] | None = None

    async def devices(self) -> list[Device]:
        return [Device("n0"), Device("n1")]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        if hook := type(self).hook:
            hook(claim)
        return [d.prepared(status=UP) for d in claim.devices]


@pytest.fixture
def refusing_url() -> Iterator[str]:
    with refusing_port() as port:
        yield f"http://127.0.0.1:{port}"


async def wait_for_status(node: DriverNode, check: Callable[[list[JSON]], bool], pod: str = "pod") -> list[JSON]:
    claim = await node.claim_of(pod)

    async def read_status() -> list[JSON] | None:
        obj = await node.cluster.client.get(CLAIMS, claim["metadata"]["name"], "default")
        devices = obj["status"].get("devices") or []
        return devices if check(devices) else None

    out: list[JSON] = await node.cluster.wait("the status of devices", read_status)
    return out


async def test_the_status_that_prepare_reports_is_in_the_claim() -> None:
    async with node_with(Net) as node:
        await node.run_pod()
        (device,) = await wait_for_status(node, bool)
        assert (device["driver"], device["pool"], device["device"]) == (NAME, "node-1", "n0")
        assert device["data"] == {"vlan": 7}
        assert device["networkData"] == {
            "interfaceName": "eth1",
            "ips": ["10.0.0.2/24"],
            "hardwareAddress": "02:00:00:00:00:01",
        }
        (condition,) = device["conditions"]
        assert condition.items() >= {"type": "Ready", "status": "True", "reason": "LinkUp"}.items()


async def test_reports_that_cannot_be_written_fail_no_prepare_and_are_written_later(refusing_url: str) -> None:
    async with node_with(Net) as node, KubeClient(ApiConfig(refusing_url), timeout=1.0) as refusing_client:
        reports = node.plugin.claims.reports
        server, reports.client = reports.client, refusing_client
        await node.run_pod()

        async def is_noted() -> bool:
            return any("cannot write device status" in n for n in await node.plugin.notes())

        await node.cluster.wait("the fault to be noted", is_noted)
        assert await node.plugin.not_ready() == []
        reports.client = server
        await wait_for_status(node, bool)

        async def is_note_removed() -> bool:
            return not await is_noted()

        await node.cluster.wait("the removal of the note", is_note_removed)


async def test_entries_and_conditions_of_other_writers_are_unchanged() -> None:
    async with node_with(Net) as node:
        Net.hook = lambda claim: claim.report(claim.devices[0], DeviceStatus(data={"early": True})) and None
        await node.run_pod()
        Net.hook = None
        await wait_for_status(node, lambda d: bool(d) and d[0].get("data") == {"vlan": 7})
        claim = await node.claim_of("pod")
        condition = {"type": "Others", "status": "True", "reason": "R", "message": "", "lastTransitionTime": now()}
        entry = {"driver": NAME, "pool": "node-1", "device": "n0", "conditions": [condition]}
        meta = claim["metadata"]
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": meta["name"]}}
        await node.cluster.client.call(
            "PATCH",
            CLAIMS.path("default", meta["name"], "status"),
            {**body, "status": {"devices": [entry]}},
            query={"fieldManager": "other"},
            content_type="application/apply-patch+yaml",
        )
        key = ("node-1", "n0", "")
        reports = node.plugin.claims.reports
        write_task = reports.queue(
            ClaimIdentity("default", meta["name"], meta["uid"]),
            {key: DeviceStatus(conditions=[Condition("Ready", False, "LinkDown")])},
        )
        assert await write_task is True
        (device,) = await wait_for_status(node, lambda d: len(d[0]["conditions"]) == 2)
        assert {c["type"]: c["status"] for c in device["conditions"]} == {"Ready": "False", "Others": "True"}
        assert "data" not in device, "a later report replaces the earlier report of the same writer"


async def test_a_new_process_keeps_the_reports_of_the_earlier_process_on_other_devices() -> None:
    async with node_with(Net) as node:
        await node.run_pod(count=2)
        status_before = await wait_for_status(node, lambda d: len(d) == 2)
        await node.restart()
        claim = await node.claim_of("pod")
        meta = claim["metadata"]
        key = ClaimIdentity("default", meta["name"], meta["uid"])
        await node.plugin.claims.reports.queue(key, {("node-1", "n1", ""): DeviceStatus(data={"vlan": 8})})
        status_after = await wait_for_status(node, lambda d: any(e.get("data") == {"vlan": 8} for e in d))
        assert status_after[0] == status_before[0]


def test_a_claim_without_its_plugin_and_devices_of_other_claims_are_refused() -> None:
    claim = Claim(namespace="n", name="c", uid="u", devices=())
    with pytest.raises(DriverError):
        claim.report(object(), UP)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "create",
    [
        lambda: Condition("not valid!", True),
        lambda: Condition("Ready", True, "two words"),
        lambda: Condition("Ready", "True"),  # type: ignore[arg-type]
        lambda: DeviceStatus(conditions=[Condition("A", True), Condition("A", False)]),
        lambda: DeviceStatus(conditions=[Condition(f"A{i}", True) for i in range(9)]),
        lambda: DeviceStatus(data=[1]),
        lambda: DeviceStatus(data={"a": float("nan")}),
        lambda: DeviceStatus(data={"a": "x" * 10_240}),
        lambda: NetworkData(ips=["10.0.0.2"]),
        lambda: NetworkData(ips=["10.0.0.2/24"] * 2),
        lambda: NetworkData(ips=["10.0.0.2/255.255.255.0"]),
        lambda: NetworkData(ips=["2001:DB8::1/64"]),
        lambda: NetworkData(ips="10.0.0.2/24"),
        lambda: NetworkData(ips=[5]),  # type: ignore[list-item]
        lambda: NetworkData(ips=[f"10.0.0.{i}/24" for i in range(17)]),
        lambda: NetworkData(hardware_address="\ud800"),
        lambda: NetworkData(hardware_address=None),  # type: ignore[arg-type]
        lambda: NetworkData(interface_name="x" * 257),
    ],
)
def test_an_invalid_status_is_refused_at_its_creation(create: Callable[[], object]) -> None:
    with pytest.raises(InvalidObjectError):
        create()


def test_the_time_of_a_condition_is_unchanged_while_its_status_is() -> None:
    old_condition = {"type": "Ready", "status": "True", "reason": "Old", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    same_status = Condition("Ready", True, "New").json(old_condition, "2026-02-02T00:00:00Z")
    other_status = Condition("Ready", None).json(old_condition, "2026-02-02T00:00:00Z")
    assert same_status["lastTransitionTime"] == "2026-01-01T00:00:00Z" and same_status["reason"] == "New"
    assert other_status["lastTransitionTime"] == "2026-02-02T00:00:00Z" and other_status["status"] == "Unknown"
