"""Tests the Events that the plugin writes on a claim, its pods and the node, and the limits on their number."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin import Health, RetryableError
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims.record import VERSION
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import ForbiddenError
from dra_kubeletplugin.kube.event_recorder import EventRecorder, Subject, claim_subject, node_subject
from tests.helpers.crash.record_stores import set_version
from tests.helpers.drivers import HealthReportingDriver, make_toy_class
from tests.helpers.publisher import scripted_api_server
from tests.helpers.waiting import wait_until


def events_of(storage: Any, reason: str = "") -> list[Any]:
    found = [e for e in storage.list("events") if e.get("reportingComponent") == "toy.example.com"]
    found = [e for e in found if (e["involvedObject"]["kind"], e["reason"]) != ("Node", "DeviceUnhealthy")]
    return [e for e in found if not reason or e["reason"] == reason]


def on_claim_and_pod(node: DriverNode, reason: str) -> dict[str, Any]:
    """Returns the only Event of each kind of object."""
    found: dict[str, Any] = {}
    for event in events_of(node.cluster.api.storage, reason):
        assert event["involvedObject"]["kind"] not in found, "the same fault is one Event"
        found[event["involvedObject"]["kind"]] = event
    return found


async def event_notes(node: DriverNode, reason: str) -> dict[str, Any]:
    await wait_until(lambda: {"ResourceClaim", "Pod"} <= on_claim_and_pod(node, reason).keys())
    return on_claim_and_pod(node, reason)


async def test_a_failed_unprepare_is_reported_on_the_claim_and_its_pod_with_references_to_each_other() -> None:
    driver = make_toy_class()
    async with node_with(driver) as node:
        pod = await node.run_pod()
        (claim,) = node.cluster.claims()
        driver.fail_unprepare = RetryableError("the board\nis \x07 busy")
        await node.api.delete("Pod", "pod", "default")
        found = await event_notes(node, "UnprepareFailed")
        on_claim, on_pod = found["ResourceClaim"], found["Pod"]
        assert on_claim["message"] == on_pod["message"]
        assert on_claim["message"].startswith(
            "cannot unprepare the claim; its devices stay held, and the plugin retries: the board"
        )
        assert on_claim["message"].isprintable()
        assert on_claim["involvedObject"]["uid"] == on_pod["related"]["uid"] == claim["metadata"]["uid"]
        assert on_pod["involvedObject"]["uid"] == on_claim["related"]["uid"] == pod["metadata"]["uid"]
        assert on_claim["metadata"]["namespace"] == on_pod["metadata"]["namespace"] == "default"
        assert (on_claim["type"], on_claim["reportingInstance"]) == ("Warning", node.cluster.node.name)
        assert await node.plugin.not_ready() == []
        driver.fail_unprepare = None
        await wait_until(lambda: not node.cluster.api.storage.get("pods", "default", "pod"))
        assert len(events_of(node.cluster.api.storage)) == 2, "each retry repeats the same Event"


async def test_a_failed_rollback_after_a_failed_prepare_is_one_event() -> None:
    driver = make_toy_class()
    driver.fail = RetryableError("no")
    driver.fail_unprepare = RetryableError("stuck")
    async with node_with(driver) as node:
        running = asyncio.create_task(node.run_pod())
        found = await event_notes(node, "RollbackFailed")
        assert "cannot roll back the claim" in found["Pod"]["message"] and "stuck" in found["Pod"]["message"]
        driver.fail = driver.fail_unprepare = None
        await running


async def test_only_devices_in_use_are_reported_when_they_become_unhealthy_or_disappear() -> None:
    class FailingDevices(HealthReportingDriver):
        unhealthy: ClassVar[dict[str, Health]] = {}
        gone: ClassVar[set[str]] = set()

        def health(self) -> dict[str, Health]:
            return self.unhealthy

        async def devices(self) -> Any:
            return [d for d in await super().devices() if d.name not in self.gone]

    async with node_with(FailingDevices, health_interval=3600.0) as node:
        await node.run_pod()
        ((pool, device),) = await node.plugin.claims.held()
        FailingDevices.unhealthy = {f"toy-{i}": Health(False, "hot") for i in range(4)}
        node.plugin.driver.rescan()
        found = await event_notes(node, "DeviceUnhealthy")
        assert found["Pod"]["message"] == f"device {pool}/{device} of this claim is unhealthy: hot"
        assert len(events_of(node.cluster.api.storage)) == 2
        FailingDevices.gone = {f"toy-{i}" for i in range(4)}
        node.plugin.driver.rescan()
        found = await event_notes(node, "DeviceVanished")
        assert found["ResourceClaim"]["message"] == f"device {pool}/{device} of this claim is no longer on the node"
        assert len(events_of(node.cluster.api.storage)) == 4
        count = found["ResourceClaim"]["count"]
        await node.plugin.claims.alerts.check()
        await node.plugin.claims.alerts.check()
        assert on_claim_and_pod(node, "DeviceVanished")["ResourceClaim"]["count"] == count == 1, (
            "the fault continues, so there is no new Event"
        )


async def test_an_unreadable_record_and_repaired_records_are_reported() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        (record,) = await node.plugin.claims.store.all()
        set_version(node.plugin.settings.records_path, record.uid, VERSION + 1)
        await node.plugin.claims.store.check_files()
        await node.plugin.claims.alerts.check()
        found = await event_notes(node, "RecordUnreadable")
        assert (
            "the record of this claim on the node cannot be read, so its devices stay held" in found["Pod"]["message"]
        )
        node.plugin.claims.store.folder.report.append("the records were damaged")
        await node.plugin.claims.alerts.check()
        await wait_until(lambda: events_of(node.cluster.api.storage, "RecordsDamaged"))
        (event,) = events_of(node.cluster.api.storage, "RecordsDamaged")
        assert event["involvedObject"]["kind"] == "Node"


async def test_forbidden_events_are_logged_once_and_do_not_affect_claims_or_readiness(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []
    driver = make_toy_class()
    async with node_with(driver) as node:
        real = node.plugin.client.create

        async def create(resource: Resource, obj: Any, namespace: str = "") -> Any:
            if resource.plural != "events":
                return await real(resource, obj, namespace)
            attempts.append(obj["reason"])
            raise ForbiddenError("events is forbidden")

        monkeypatch.setattr(node.plugin.client, "create", create)
        await node.run_pod()
        driver.fail_unprepare = RetryableError("busy")
        await node.api.delete("Pod", "pod", "default")
        await wait_until(lambda: driver.calls.count(("unprepare", driver.calls[0][1])) >= 3)
        await wait_until(lambda: attempts)
        assert await node.plugin.not_ready() == []
        driver.fail_unprepare = None
        await wait_until(lambda: not node.cluster.api.storage.get("pods", "default", "pod"))
        assert 'dra_events_total{result="forbidden"} ' in node.plugin.metrics.text().decode()
    lines = [r.getMessage() for r in caplog.records if "cannot write an Event" in r.getMessage()]
    assert len(lines) == 1
    assert "docs/deploy.md" in lines[0]


class Server:
    """Accepts Events and has one claim."""

    def __init__(self, *reserved: Any) -> None:
        self.reserved = list(reserved)
        self.created: list[Any] = []
        self.patched: list[Any] = []
        self.hold: asyncio.Event | None = None

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", "v1", plural, namespaced=True)

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Any:
        return {"metadata": {"name": name, "uid": "u"}, "status": {"reservedFor": self.reserved}}

    async def create(self, resource: Resource, obj: Any, namespace: str = "") -> Any:
        if self.hold:
            await self.hold.wait()
        self.created.append(obj)
        return obj

    async def patch(self, resource: Resource, name: str, obj: Any, namespace: str = "") -> Any:
        self.patched.append(obj)
        return obj


def events_to(server: Server) -> EventRecorder:
    return EventRecorder(server, "d.example.com", "node", Metrics())  # type: ignore[arg-type]


CLAIM = claim_subject("ns", "c", "u")


async def sent(events: EventRecorder, until_true: Any) -> None:
    task = asyncio.create_task(events.run())
    await wait_until(until_true)
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()


async def test_an_event_is_written_for_each_known_user_of_a_claim_and_unknown_users_are_ignored() -> None:
    server = Server(
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "g"},
        {"apiGroup": "example.com", "resource": "novelties", "name": "n", "uid": "n"},
        {"resource": "pods", "name": 3},
        {"resource": "pods", "name": "p", "uid": "p"},
    )
    events = events_to(server)
    events.warn_claim(CLAIM, "Odd", "it is odd")
    await sent(events, lambda: len(server.created) == 3)
    subjects = [
        (e["involvedObject"]["kind"], e["involvedObject"]["name"], e["metadata"]["namespace"]) for e in server.created
    ]
    assert subjects == [("ResourceClaim", "c", "ns"), ("PodGroup", "gang", "ns"), ("Pod", "p", "ns")]
    assert server.created[0]["related"] == {"kind": "PodGroup", "namespace": "ns", "name": "gang", "uid": "g"}


@pytest.mark.parametrize("reserved", [None, "pods", [3], {"a": 1}])
async def test_the_event_of_a_claim_is_written_for_any_value_of_reserved_for(reserved: Any) -> None:
    server = Server()
    server.reserved = reserved
    events = events_to(server)
    events.warn_claim(CLAIM, "Odd", "it is odd")
    await sent(events, lambda: len(server.created) == 1)


async def test_repeated_reports_update_the_count_of_one_event_and_never_block() -> None:
    server = Server()
    server.hold = asyncio.Event()
    events = events_to(server)
    events.count_interval = 0.1
    task = asyncio.create_task(events.run())
    for _ in range(50):
        events.warn(CLAIM, "Odd", "it is odd")
        await asyncio.sleep(0)
    server.hold.set()
    await wait_until(lambda: server.patched)
    assert len(server.created) == 1
    assert server.patched[-1]["count"] == 50
    task.cancel()


async def test_many_events_of_one_object_do_not_use_up_the_limit_of_other_objects() -> None:
    server = Server()
    events = events_to(server)
    for n in range(500):
        events.warn(CLAIM, "Odd", f"number {n}")
    events.warn(claim_subject("ns", "other", "o"), "Odd", "the other's")
    await sent(events, lambda: any(e["message"] == "the other's" for e in server.created))
    assert len(server.created) == 26


async def test_messages_are_one_printable_line_of_at_most_1024_bytes_and_names_are_valid() -> None:
    server = Server()
    events = events_to(server)
    events.warn(Subject("Pod", "p" * 253, "u", "ns"), "Odd", "ß\n\ud800\x1b[0m" * 2000)
    await sent(events, lambda: server.created)
    (event,) = server.created
    assert len(event["message"].encode()) <= 1024
    assert event["message"].isprintable()
    assert len(event["metadata"]["name"]) <= 253


async def test_the_api_server_accepts_the_recorded_events_in_both_groups() -> None:
    async with scripted_api_server() as server, KubeClient(server.config) as client:
        for _ in range(2):  # a repeated write of another process updates the same Event
            events = EventRecorder(client, "toy.example.com", "node", Metrics())
            events.warn(node_subject("node"), "Odd", "it is odd")
            await sent(events, lambda: events_of(server.storage))
        newer = await client.list(Resource("events.k8s.io", "v1", "events", namespaced=True), "default")
        (event,) = newer["items"]
        assert (event["reportingController"], event["reportingInstance"], event["note"]) == (
            "toy.example.com",
            "node",
            "it is odd",
        )
