"""Components run as long as the cluster. A fault of one object does not affect other objects."""

from __future__ import annotations

import asyncio

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.controllers.base import Controller, Key
from dra_devkit.localcluster.event_recorder import EventRecorder
from dra_devkit.localcluster.informer import Informers
from dra_devkit.localcluster.supervision import ComponentEnded, Supervisor
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.errors import InvalidError
from dra_kubeletplugin.kube.resource import CLAIMS, NAMESPACES, PODS
from tests.helpers.objects import claim, claim_spec, device_class, pod, slice_of, template


async def test_a_failed_component_ends_all_components_with_its_name_and_cause() -> None:
    async def raise_error() -> None:
        raise ZeroDivisionError("no good")

    with pytest.raises(ComponentEnded, match="scheduler failed: ZeroDivisionError: no good") as error:
        async with Supervisor() as supervisor:
            forever = supervisor.start("forever", asyncio.Event().wait)
            supervisor.start("scheduler", raise_error)
            await asyncio.Event().wait()
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert forever.cancelled()


async def test_a_component_that_returns_is_a_fault_and_a_stopped_component_is_not() -> None:
    async def return_early() -> None:
        return

    async with Supervisor() as supervisor:
        await supervisor.stop(supervisor.start("kubelet", asyncio.Event().wait))
    with pytest.raises(ComponentEnded, match="kubelet ended"):
        async with Supervisor() as supervisor:
            supervisor.start("kubelet", return_early)
            await asyncio.Event().wait()


async def test_a_rejected_write_does_not_block_other_objects() -> None:
    """C3: the API server rejects the claim of one template. The claim of another pod is created immediately."""
    async with LocalCluster(()) as cluster:
        label = "resource.kubernetes.io/admin-access"
        await cluster.client.patch(NAMESPACES, "default", {"metadata": {"labels": {label: "true"}}})
        await cluster.apply(device_class())
        await cluster.apply(template("bad", claim_spec(admin=True)), template("good", claim_spec()))
        await cluster.client.patch(NAMESPACES, "default", {"metadata": {"labels": {label: None}}})
        await cluster.apply(pod("first", templates=["bad"]))

        async def is_reported() -> bool:
            return any(
                "FailedResourceClaimCreation: PodResourceClaim t0: create ResourceClaim : " in e
                for e in cluster.events("first")
            )

        await cluster.wait("the event of the rejection", is_reported)
        await cluster.apply(pod("second", templates=["good"]))

        async def is_created() -> bool:
            return any(c["metadata"]["name"].startswith("second-t0-") for c in cluster.claims())

        await cluster.wait("the claim of the other pod", is_created)


async def test_a_failure_of_a_deleted_or_replaced_object_is_not_logged_and_other_failures_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class EmptyController(Controller):
        name = "looks"

        async def reconcile(self, key: Key) -> None: ...

    async with LocalCluster() as cluster:
        controller = EmptyController(cluster.client, Informers(cluster.client, {}), ())
        for name, is_logged in (("gone", False), ("other", True)):
            caplog.clear()
            with pytest.raises(ApiError) as e:
                await cluster.client.update(
                    CLAIMS, {"metadata": {"name": "gone", "namespace": "default"}, "spec": claim_spec()}
                )
            controller.report_failure(Key(CLAIMS, "default", name), e.value)
            assert any("looks" in r.message for r in caplog.records if r.levelname == "WARNING") is is_logged
        await cluster.apply(claim("c"))
        for metadata, is_logged in (({"uid": "of-the-deleted"}, False), ({"labels": {"a": "/"}}, True)):
            caplog.clear()
            with pytest.raises(InvalidError) as refused:
                await cluster.client.patch(CLAIMS, "c", {"metadata": metadata}, "default")
            controller.report_failure(Key(CLAIMS, "default", "c"), refused.value)
            assert any("looks" in r.message for r in caplog.records if r.levelname == "WARNING") is is_logged


async def test_a_flood_of_events_logs_one_line_and_counts_dropped_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LocalCluster(()) as cluster:
        created = await cluster.apply(pod("a"), pod("b"))
        recorder = EventRecorder(cluster.client, "tester", combine=False)
        for number in range(1010):
            recorder.warn(created[number % 2], "Pod", "Flood", f"words {number}")
        running = asyncio.ensure_future(recorder.run())

        async def log_lines_of_drops() -> list[str]:
            return [r.message for r in caplog.records if r.message.startswith("dropped events")]

        assert await cluster.wait("the log line", log_lines_of_drops) == ["dropped events of tester: 10"]
        running.cancel()
        assert [r.message for r in caplog.records if r.levelname == "WARNING" and "tester" in r.message] == [
            "events of tester are dropped: more than 1000 events are queued",
            "dropped events of tester: 10",
        ]
        for name, first in (("a", 0), ("b", 1)):  # the events of each object are in order
            events = [e for e in cluster.events(name) if e.startswith("Flood")]
            assert events == [f"Flood: words {n}" for n in range(first, 1000, 2)]


async def test_a_claim_is_written_once_for_each_deleted_pod(caplog: pytest.LogCaptureFixture) -> None:
    """The controller does not repeat a write that its cache does not yet contain. No other component writes these claims."""
    async with LocalCluster(()) as cluster:
        names = [f"p{i}" for i in range(10)]
        claims = [claim(f"c-{n}") for n in names]
        await cluster.apply(device_class(), slice_of("n", [f"d{i}" for i in range(10)]), *claims)
        amounts = {"cpu": "8", "pods": "110"}
        ready = {"allocatable": amounts, "capacity": amounts}
        await cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": ready})
        await cluster.apply(*[pod(n, claims=[f"c-{n}"]) for n in names])

        async def scheduled() -> bool:
            return all([(await cluster.client.get(PODS, n, "default"))["spec"].get("nodeName") for n in names])

        await cluster.wait("all to be scheduled", scheduled)
        cluster.api.injected_faults.calls.clear()
        for name in names:
            await cluster.client.delete(PODS, name, "default", grace=0)

        async def are_released() -> bool:
            return not any(c["status"].get("allocation") or c["metadata"].get("finalizers") for c in cluster.claims())

        await cluster.wait("the release of the claims", are_released)
        written = [p.removesuffix("/status") for m, p in cluster.api.injected_faults.calls if m == "PUT"]
        paths = [CLAIMS.path("default", c["metadata"]["name"]) for c in cluster.claims()]
        assert sorted(p for p in written if p in paths) == sorted(
            [*paths, *paths]
        )  # first the status, then the finalizer
        assert not [r.message for r in caplog.records if "resource_claim" in r.message and r.levelname == "WARNING"]


async def test_the_claim_of_a_finished_pod_is_deleted() -> None:
    """Behaviours 13 and 14 of scheduler-behaviour.md."""
    async with LocalCluster(()) as cluster:
        await cluster.apply(device_class(), template("t", claim_spec()))
        [created] = await cluster.apply(pod("job", templates=["t"]))

        async def generated_claim() -> JSON | None:
            return next(iter(cluster.claims()), None)

        created_claim = await cluster.wait("the claim", generated_claim)
        assert created_claim["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Pod", "name": "job", "uid": created["metadata"]["uid"], "controller": True}
        ]
        assert created_claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "t0"}

        async def claim_names() -> list[JSON]:
            status: JSON = (await cluster.client.get(PODS, "job", "default"))["status"]
            return status.get("resourceClaimStatuses") or []

        await cluster.wait("the name of the claim in the pod's status", claim_names)
        await cluster.client.patch(PODS, "job", {"status": {"phase": "Succeeded"}}, "default", "status")

        async def is_deleted() -> bool:
            return not cluster.claims()

        await cluster.wait("the deletion of the claim", is_deleted)
        assert await claim_names() == [{"name": "t0", "resourceClaimName": created_claim["metadata"]["name"]}]
        with pytest.raises(ApiError):
            await cluster.client.get(CLAIMS, created_claim["metadata"]["name"], "default")
