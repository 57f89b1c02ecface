"""Devices on servers that drop fields, the reports about those devices, and the stored times of taints."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, CounterSet, Device, Driver, Gate, Health, Nodes, Pool, PreparedDevice, Taint
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.device_events import DeviceEvents
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices import ClusterScope
from dra_kubeletplugin.driver import Role
from dra_kubeletplugin.errors import NotReadyError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.event_recorder import EventRecorder
from dra_kubeletplugin.kube.resource import SLICES
from tests.helpers.publisher import (
    DRIVER,
    ScriptedApiServer,
    json_response,
    make_inventory,
    running_publisher,
    scripted_api_server,
)
from tests.helpers.waiting import wait_until

LISTS = {"ints", "bools", "strings", "versions"}
NOEXECUTE = Taint(key="example.com/sick", effect="NoExecute")


async def current(publisher: Any) -> Any:
    return await asyncio.wait_for(publisher.current(), 60)


def sent(server: ScriptedApiServer) -> dict[str, dict[str, Any]]:
    return {d["name"]: d for s in server.slices() for d in s["spec"].get("devices") or []}


async def test_a_field_that_needs_a_gate_is_never_on_a_server_that_drops_it() -> None:
    """The publisher first checks the server with a dry-run slice."""
    parts = [Device(f"p{i}", consumes_counters={"gpu": {"c": 1}}) for i in range(3)]
    seen: list[set[str]] = []

    def look(request: Request) -> Response | None:
        seen.append(set(sent(server)))
        return None

    async with scripted_api_server() as server:
        server.injected_faults.dropped |= {
            "sharedCounters",
            "consumesCounters",
            "taints",
            "bindingConditions",
            "bindingFailureConditions",
        }
        server.instead = look
        inventory = Inventory("node")
        bound = Device("bound", binding_conditions=["example.com/a"], binding_failure_conditions=["example.com/b"])
        devices = [*parts, Device("tainted", taints=[NOEXECUTE]), bound, Device("plain")]
        await inventory.update([Pool("node", devices, [CounterSet("gpu", {"c": 3})])])
        async with running_publisher(server, inventory) as publisher:
            status = await current(publisher)
        assert set().union(*seen) <= {"plain"}
        assert set(sent(server)) == {"plain"}
        assert status.gates_off == {Gate.PARTITIONS, Gate.TAINTS, Gate.BINDING}
        assert set(status.rejected) == {"p0", "p1", "p2", "tainted", "bound"}
        assert b'dra_feature_gate_disabled{gate="DRADeviceTaints"} 1.0' in publisher.metrics.text()
        assert b"dra_devices_not_published 5.0" in publisher.metrics.text()


async def test_the_publisher_detects_dropped_fields_from_a_write_if_dry_runs_fail() -> None:
    def no_dry_run(request: Request) -> Response | None:
        return (
            json_response({"kind": "Status", "code": 403, "message": "no"}, 403) if "dryRun" in request.query else None
        )

    async with scripted_api_server() as server:
        server.injected_faults.dropped.add("taints")
        server.instead = no_dry_run
        inventory = await make_inventory(Device("a", taints=[NOEXECUTE]), "b")
        async with running_publisher(server, inventory) as publisher:
            status = await current(publisher)
        assert set(sent(server)) == {"b"}
        assert status.gates_off == {Gate.TAINTS}


async def test_the_publisher_omits_list_attributes_if_the_server_rejects_them() -> None:
    async with scripted_api_server() as server:
        server.injected_faults.dropped |= LISTS
        inventory = await make_inventory(Device("a", attributes={"x": ["1", "2"], "y": 3}), "b")
        async with running_publisher(server, inventory) as publisher:
            status = await current(publisher)
        assert sent(server)["a"]["attributes"] == {"y": {"int": 3}}
        assert (status.gates_off, dict(status.rejected)) == ({Gate.LISTS}, {})


async def test_an_unhealthy_device_is_withheld_until_it_recovers_if_the_server_drops_taints() -> None:
    async with scripted_api_server() as server:
        server.injected_faults.dropped.add("taints")
        inventory = await make_inventory("a", "b")
        async with running_publisher(server, inventory) as publisher:
            await current(publisher)
            server.written.clear()
            await inventory.set_health({"a": Health(False, "hot", taints=[NOEXECUTE])}, at=1.0)
            await wait_until(lambda: set(sent(server)) == {"b"})
            assert [method for method, _ in server.written] == ["PUT"], (
                "the device is not written without its taint first"
            )
            await wait_until(lambda: set(inventory.rejected) == {"a"})
            await inventory.set_health({}, at=2.0)
            await wait_until(lambda: set(sent(server)) == {"a", "b"})
            await wait_until(lambda: inventory.rejected == {})


async def test_a_pool_with_nodes_for_each_device_names_its_gate_although_the_device_with_own_nodes_has_a_fault() -> (
    None
):
    inventory = Inventory("", role=Role.CONTROLLER)
    faulty = Device("b", nodes=Nodes.named("n"), consumes_counters={"unknown": {"memory": 1}})
    await inventory.update([Pool("p", [Device("a"), faulty], nodes=Nodes.all())])
    scope = ClusterScope(DRIVER, "default")
    async with (
        scripted_api_server(Features.of("1.34")) as server,
        running_publisher(server, inventory, scope=scope) as publisher,
    ):
        status = await current(publisher)
    assert status.gates_off == {Gate.PARTITIONS}
    assert "each device of the pool selects its own nodes" in status.rejected["pool p"]


async def test_an_enabled_gate_costs_one_dry_run_and_a_driver_without_gates_sends_none() -> None:
    dry_runs: list[str] = []

    def look(request: Request) -> Response | None:
        dry_runs.extend(["dry"] * ("dryRun" in request.query))
        return None

    async with scripted_api_server() as server:
        server.instead = look
        inventory = await make_inventory("a")
        async with running_publisher(server, inventory) as publisher:
            await current(publisher)
            assert dry_runs == []
            for value in range(3):
                await inventory.update([Pool("node", [Device("a", attributes={"v": value}, taints=[NOEXECUTE])])])
                await current(publisher)
        assert dry_runs == ["dry"]


async def test_a_misspelt_key_of_a_policy_is_not_mistaken_for_a_gate() -> None:
    """A real server ignores unknown fields; the test's server rejects them."""

    def ignore_unknown(request: Request) -> Response | None:
        if request.method == "POST" and "fieldValidation" not in request.query:
            request.query["fieldValidation"] = "Warn"
        return None

    async with scripted_api_server() as server:
        server.instead = ignore_unknown
        inventory = await make_inventory(Device("a", extra={"madeUp": {"x": 1}}))
        async with running_publisher(server, inventory) as publisher:
            status = await current(publisher)
            assert (status.gates_off, status.dropped) == (frozenset(), {"spec.devices[].madeUp"})
            assert len(server.written) == 1


# --- times of taints --------------------------------------------------------------------------------


def time_of(server: ScriptedApiServer) -> str:
    return str(sent(server)["a"]["taints"][0]["timeAdded"])


@pytest.mark.gates("DRADeviceTaints")
async def test_the_time_of_a_taint_survives_a_deletion_of_the_slices() -> None:
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        inventory = await make_inventory(Device("a", taints=[NOEXECUTE]))
        async with running_publisher(server, inventory) as publisher:
            await current(publisher)
            (found,) = (await client.list(SLICES))["items"]
            found["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
            await client.update(SLICES, found)  # the publisher ignores this difference
            await inventory.update([Pool("node", [Device("a", taints=[NOEXECUTE]), Device("b")])])
            await current(publisher)
            for obj in (await client.list(SLICES))["items"]:
                await client.delete(SLICES, obj["metadata"]["name"])
            await wait_until(lambda: "a" in sent(server))
            assert time_of(server) == "2026-01-01T00:00:00Z"
            # A taint that is removed and added again is a new taint.
            for taints in ([], [NOEXECUTE]):
                await inventory.update([Pool("node", [Device("a", taints=taints)])])
                await current(publisher)
                await wait_until(lambda taints=taints: bool(taints) == ("taints" in sent(server)["a"]))  # type: ignore[misc]
            assert time_of(server) != "2026-01-01T00:00:00Z"


# --- owners -----------------------------------------------------------------------------------------


@pytest.mark.full
async def test_the_publisher_restores_a_removed_owner_reference_without_a_new_generation() -> None:
    async with (
        scripted_api_server() as server,
        KubeClient(server.config) as client,
        running_publisher(server, await make_inventory("a")) as publisher,
    ):
        await current(publisher)
        (found,) = (await client.list(SLICES))["items"]
        before = found["metadata"]["ownerReferences"]
        await client.update(SLICES, {**found, "metadata": {**found["metadata"], "ownerReferences": []}})
        await wait_until(lambda: server.slices()[0]["metadata"].get("ownerReferences") == before)
        assert server.slices()[0]["spec"]["pool"]["generation"] == 1


# --- the whole plugin -------------------------------------------------------------------------------


class Split(Driver):
    """Returns two pools of a node and one pool of the controller. A pool has partitions if the server supports them, else the whole device."""

    name = "split.example.com"

    def pools(self) -> list[Pool]:
        node = self.settings.node_name
        gpus = Pool(node, [Device("gpu-0")])
        if Gate.PARTITIONS not in self.gates_off:
            parts = [Device(f"gpu-0-{i}", consumes_counters={"gpu-0": {"slices": 1}}) for i in range(2)]
            gpus = Pool(node, parts, [CounterSet("gpu-0", {"slices": 2})])
        return [
            gpus,
            Pool(f"{node}/nic", [Device("nic", attributes={"kind": "nic"})]),
            Pool("fabric", [Device("f")], nodes=Nodes.all()),
        ]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


def devices_of(node: Any) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for s in node.cluster.slices(Split.name):
        out.setdefault(s["spec"]["pool"]["name"], []).extend(d["name"] for d in s["spec"].get("devices") or [])
    return out


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_driver_s_pools_of_a_node_are_published_and_claims_of_each_are_prepared() -> None:
    async with node_with(Split) as node:
        name = node.cluster.node.name
        status = await node.plugin.published(60)
        assert devices_of(node) == {name: ["gpu-0-0", "gpu-0-1"], f"{name}/nic": ["nic"]}
        assert [(p.name, p.slices, p.devices) for p in status.pools] == [(name, 2, 2), (f"{name}/nic", 1, 1)]
        assert (status.current, status.fault, status.leads) == (True, "", True)
        await node.run_pod("one", selector='"kind" in device.attributes["split.example.com"]')
        held = await node.plugin.claims.held()
        assert set(held) == {(f"{name}/nic", "nic")}


@pytest.mark.gates("DRAPartitionableDevices")
async def test_devices_that_the_driver_withdrew_are_published_when_the_gate_is_on_again() -> None:
    async with node_with(Split) as node:
        name, faults = node.cluster.node.name, node.cluster.api.injected_faults
        faults.dropped |= {"sharedCounters", "consumesCounters"}
        await node.restart()
        await wait_until(lambda: devices_of(node).get(name) == ["gpu-0"])
        faults.dropped.clear()
        node.cluster.api.drop_connections()  # as when the server is restarted with the gate
        await wait_until(lambda: devices_of(node).get(name) == ["gpu-0-0", "gpu-0-1"])
        assert node.driver.gates_off == set()


class SplitAndInvalid(Split):
    has_invalid_device = False

    def pools(self) -> list[Pool]:
        odd = [Device("odd", consumes_counters={"nowhere": {"c": 1}})] if self.has_invalid_device else []
        return [*super().pools(), Pool(f"{self.settings.node_name}/odd", odd)]


async def test_a_result_that_changes_after_the_gate_check_is_not_reported_as_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the driver's result after the gate check counts: operators see no report on devices that the driver withdraws at once."""
    async with node_with(SplitAndInvalid) as node:
        name = node.cluster.node.name
        node.cluster.api.injected_faults.dropped |= {"sharedCounters", "consumesCounters"}
        await node.restart()
        await wait_until(lambda: devices_of(node).get(name) == ["gpu-0"])
        assert node.driver.gates_off == {Gate.PARTITIONS}
        await wait_until(lambda: not node.plugin.inventory.rejected)
        assert "not published" not in caplog.text
        node.driver.has_invalid_device = True
        node.driver.rescan()
        await wait_until(lambda: node.cluster.events(name) != [])
        assert [e.split()[1] for e in node.cluster.events(name)] == [f"{name}/odd/odd"], "events arrive in order"


class InvalidDevices(Driver):
    name = "odds.example.com"
    bad = True

    def devices(self) -> list[Device]:
        odd = Device("odd", consumes_counters={"nowhere": {"c": 1}})
        return [odd, Device("fine")] if self.bad else [Device("fine")]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return []


async def test_a_device_that_is_not_published_is_reported_once_on_the_node_and_in_readiness() -> None:
    async with node_with(InvalidDevices) as node:
        name = node.cluster.node.name
        await wait_until(lambda: node.cluster.events(name) != [])
        (event,) = node.cluster.events(name)
        assert event.startswith(
            "DeviceNotPublished: odd is not published: it consumes counters of counter set 'nowhere'"
        )
        assert any(line.startswith("odd is not published") for line in await node.plugin.notes())
        await node.restart()
        await node.plugin.published(60)
        await asyncio.sleep(0.5)
        assert node.cluster.events(name) == [event], "the same fault has the same text"


async def test_a_wait_for_slices_reports_why_they_are_missing() -> None:
    async with node_with(InvalidDevices) as node:
        node.cluster.api.injected_faults.down = True
        node.driver.bad = False
        await node.plugin.discovery.call_now()
        await wait_until(lambda: "cannot publish" in node.plugin.publisher.fault)
        with pytest.raises(NotReadyError, match=r"slices are not up to date after 1 s: .*cannot publish"):
            await node.plugin.published(1)
        node.cluster.api.injected_faults.down = False
        assert (await node.plugin.published(60)).current


@contextlib.asynccontextmanager
async def rejection_events(inventory: Inventory) -> AsyncIterator[ScriptedApiServer]:
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        recorder = EventRecorder(client, "d.example.com", "node", Metrics())
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(job()) for job in (recorder.run, DeviceEvents(recorder, inventory, "node").run)
            ]
            yield server
            for task in running:
                task.cancel()


async def test_a_server_that_rejects_events_loses_only_the_events(caplog: pytest.LogCaptureFixture) -> None:
    def no_events(request: Request) -> Response | None:
        status = {"kind": "Status", "code": 500, "message": "no events for you"}
        return json_response(status, 500) if "/events" in request.path else None

    inventory = await make_inventory("a")
    async with rejection_events(inventory) as server:
        server.instead = no_events
        await inventory.reject({"a": "no"})
        await wait_until(lambda: "no events for you" in caplog.text)
        server.instead = lambda request: None
        await inventory.reject({"a": "still no"})
        await wait_until(lambda: len(server.storage.list("events")) == 1)


async def test_hundreds_of_omitted_devices_cause_few_events() -> None:
    inventory = await make_inventory(*(f"d{i}" for i in range(300)))
    await inventory.reject({f"d{i}": f"no, {i}" for i in range(300)})
    async with rejection_events(inventory) as server:
        await wait_until(lambda: len(server.storage.list("events")) == 11)
        await asyncio.sleep(0.2)
        assert len(server.storage.list("events")) == 11
        assert any("are not published: other reasons" in e["message"] for e in server.storage.list("events"))


async def test_omitted_parts_of_a_card_share_one_event_for_one_reason() -> None:
    inventory = await make_inventory(*(f"card-{i}" for i in range(12)), "other")
    await inventory.reject({f"card-{i}": "the gate is off" for i in range(12)} | {"other": "its name is wrong"})
    async with rejection_events(inventory) as server:
        await wait_until(lambda: len(server.storage.list("events")) == 2)
        assert {e["message"] for e in server.storage.list("events")} == {
            "card-0, card-1, card-2 and 9 more are not published: rejected by the API server: the gate is off",
            "other is not published: rejected by the API server: its name is wrong",
        }


async def test_a_fault_with_changing_text_does_not_flood_the_server_with_events() -> None:
    inventory = await make_inventory("a")
    async with rejection_events(inventory) as server:
        for n in range(25):  # each device has its own event up to the limit
            await inventory.reject({"a": f"<object at {n:#x}>"})
            await wait_until(lambda n=n: len(server.storage.list("events")) == n + 1)  # type: ignore[misc]
        for n in range(25, 60):
            await inventory.reject({"a": f"<object at {n:#x}>"})
            await asyncio.sleep(0.02)
        assert len(server.storage.list("events")) == 25
