"""Components live as long as the cluster; what is wrong with one object concerns no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.resource import CLAIMS, EVENTS, NAMESPACES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.controllers.base import Controller, Key
from dra_kubeletplugin.localcluster.event_recorder import EventRecorder
from dra_kubeletplugin.localcluster.informer import Informers
from dra_kubeletplugin.localcluster.supervision import ComponentEnded, Supervisor
from tests.helpers.objects import claim, claim_spec, device_class, pod, slice_of, template

JSON = dict[str, Any]


async def test_a_component_that_ends_ends_all_with_its_name_and_cause() -> None:
    async def fails() -> None:
        raise ZeroDivisionError("no good")

    with pytest.raises(ComponentEnded, match="scheduler failed: ZeroDivisionError: no good") as told:
        async with Supervisor() as supervisor:
            forever = supervisor.start("forever", asyncio.Event().wait)
            supervisor.start("scheduler", fails)
            await asyncio.Event().wait()
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert forever.cancelled()


async def test_a_component_that_returns_is_a_fault_and_one_that_is_stopped_is_none() -> None:
    async def returns() -> None:
        return

    async with Supervisor() as supervisor:
        await supervisor.stop(supervisor.start("kubelet", asyncio.Event().wait))
    with pytest.raises(ComponentEnded, match="kubelet ended"):
        async with Supervisor() as supervisor:
            supervisor.start("kubelet", returns)
            await asyncio.Event().wait()


async def test_a_component_that_fails_ends_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_kubeletplugin.localcluster.controllers import ControllerManager

    async def fails(self: ControllerManager) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(ControllerManager, "run", fails)
    with pytest.raises(ComponentEnded, match="controllers failed: RuntimeError: a fault of ours"):
        async with LocalCluster():
            await asyncio.Event().wait()


async def test_a_write_that_is_refused_starves_no_other_object() -> None:
    """C3: a template that the server refuses, and another pod's claim is made at once."""
    async with LocalCluster(()) as cluster:
        label = "resource.kubernetes.io/admin-access"
        await cluster.client.patch(NAMESPACES, "default", {"metadata": {"labels": {label: "true"}}})
        await cluster.apply(device_class())
        await cluster.apply(template("bad", claim_spec(admin=True)), template("good", claim_spec()))
        await cluster.client.patch(NAMESPACES, "default", {"metadata": {"labels": {label: None}}})
        await cluster.apply(pod("first", templates=["bad"]))

        async def refused() -> bool:
            return any(
                "FailedResourceClaimCreation: PodResourceClaim t0: create ResourceClaim : " in e
                for e in cluster.events("first")
            )

        await cluster.wait("the refusal to be told", refused)
        await cluster.apply(pod("second", templates=["good"]))

        async def made() -> bool:
            return any(c["metadata"]["name"].startswith("second-t0-") for c in cluster.claims())

        await cluster.wait("the claim of the other pod", made)


async def test_an_object_that_goes_while_it_is_looked_at_is_no_fault_and_another_that_is_missing_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Looks(Controller):
        name = "looks"

        async def reconcile(self, key: Key) -> None: ...

    async with LocalCluster() as cluster:
        controller = Looks(cluster.client, Informers(cluster.client, {}), ())
        for name, told in (("gone", False), ("other", True)):
            caplog.clear()
            with pytest.raises(ApiError) as e:
                await cluster.client.update(
                    CLAIMS, {"metadata": {"name": "gone", "namespace": "default"}, "spec": claim_spec()}
                )
            controller._failed(Key(CLAIMS, "default", name), e.value)
            assert any("looks" in r.message for r in caplog.records if r.levelname == "WARNING") is told


async def test_repeated_events_are_counted_and_similar_ones_combined() -> None:
    async with LocalCluster(()) as cluster:
        [made] = await cluster.apply(pod("noisy"))
        recorder = EventRecorder(cluster.client, "tester")
        running = asyncio.ensure_future(recorder.run())
        for _ in range(5):
            recorder.warn(made, "Pod", "Same", "the same words")
        for number in range(15):
            recorder.warn(made, "Pod", "Similar", f"words {number}")

        async def counted() -> list[JSON]:
            found: list[JSON] = (await cluster.client.list(EVENTS, "default"))["items"]
            return found if sum(e["count"] for e in found if e["reason"] == "Similar") == 15 else []

        found = await cluster.wait("all events", counted)
        running.cancel()
        same = [e for e in found if e["reason"] == "Same"]
        assert [(e["count"], e["reportingComponent"]) for e in same] == [(5, "tester")]
        similar = {e["message"]: e["count"] for e in found if e["reason"] == "Similar"}
        assert len(similar) == 10
        assert similar["(combined from similar events): words 14"] == 6


async def test_a_flood_of_events_is_one_line_in_the_log_and_its_losses_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LocalCluster(()) as cluster:
        made = await cluster.apply(pod("a"), pod("b"))
        recorder = EventRecorder(cluster.client, "tester", combine=False)
        for number in range(1010):
            recorder.warn(made[number % 2], "Pod", "Flood", f"words {number}")
        running = asyncio.ensure_future(recorder.run())

        async def lost() -> list[str]:
            return [r.message for r in caplog.records if r.message.startswith("dropped events")]

        assert await cluster.wait("the losses", lost) == ["dropped events of tester: 10"]
        running.cancel()
        assert [r.message for r in caplog.records if r.levelname == "WARNING" and "tester" in r.message] == [
            "events of tester are dropped: more than 1000 events are queued",
            "dropped events of tester: 10",
        ]
        for name, first in (("a", 0), ("b", 1)):  # of each object in order
            told = [e for e in cluster.events(name) if e.startswith("Flood")]
            assert told == [f"Flood: words {n}" for n in range(first, 1000, 2)]


async def test_a_claim_is_written_once_for_each_pod_that_goes(caplog: pytest.LogCaptureFixture) -> None:
    """What the controller wrote and its copies do not show yet is not written again. The claims are nobody's: nobody else writes them."""
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

        async def free() -> bool:
            return not any(c["status"].get("allocation") or c["metadata"].get("finalizers") for c in cluster.claims())

        await cluster.wait("the claims to be free", free)
        written = [p.removesuffix("/status") for m, p in cluster.api.injected_faults.calls if m == "PUT"]
        paths = [CLAIMS.path("default", c["metadata"]["name"]) for c in cluster.claims()]
        assert sorted(p for p in written if p in paths) == sorted([*paths, *paths])  # the status, then the finalizer
        assert not [r.message for r in caplog.records if "resource_claim" in r.message and r.levelname == "WARNING"]


async def test_a_claim_is_deallocated_in_one_write_once_its_pod_has_finished() -> None:
    """Behaviours 13 and 14 of scheduler-behaviour.md."""
    async with LocalCluster(()) as cluster:
        await cluster.apply(device_class(), template("t", claim_spec()))
        [made] = await cluster.apply(pod("job", templates=["t"]))

        async def generated() -> JSON | None:
            return next(iter(cluster.claims()), None)

        found = await cluster.wait("the claim", generated)
        assert found["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Pod", "name": "job", "uid": made["metadata"]["uid"], "controller": True}
        ]
        assert found["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "t0"}
        await cluster.client.patch(PODS, "job", {"status": {"phase": "Succeeded"}}, "default", "status")

        async def gone() -> bool:
            return not cluster.claims()

        await cluster.wait("the claim to go", gone)
        told = (await cluster.client.get(PODS, "job", "default"))["status"]["resourceClaimStatuses"]
        assert told == [{"name": "t0", "resourceClaimName": found["metadata"]["name"]}]
        with pytest.raises(ApiError):
            await cluster.client.get(CLAIMS, found["metadata"]["name"], "default")
