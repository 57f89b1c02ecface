"""Parts of the test kit that need no driver: claims as objects, events that fold, verdicts about pods, the thread."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pydoc
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import LocalKubelet
from dra_kubeletplugin.testing import (
    Api,
    AsyncApi,
    ClaimSpec,
    DistinctAttribute,
    DriverNode,
    FirstAvailable,
    Kubelet,
    MatchAttribute,
    Node,
    OpaqueConfig,
    PodError,
    Request,
    SubRequest,
    Toleration,
    claim,
    pod,
)
from dra_kubeletplugin.testing.events import merge_events, permanent_failure, prepare_failure, unschedulable_reason
from dra_kubeletplugin.testing.sync_async import LoopThread, Scope, both
from dra_kubeletplugin.testing.task_context import Hosted

EVERYTHING = ClaimSpec(
    Request(
        "many",
        "gpus",
        count=2,
        selectors=["true", "device.driver == 'a.example.com'"],
        capacity={"memory": "10Gi"},
        tolerations=[
            Toleration(),
            Toleration("broken", "Equal", "yes", "NoExecute", seconds=30),
        ],
    ),
    Request("all", "gpus", all=True, admin_access=True),
    FirstAvailable("nic", [SubRequest("fast", "fast-nics", count=2), SubRequest("any", all=True)]),
    constraints=[
        MatchAttribute("resource.kubernetes.io/pcieRoot", ["many", "nic"]),
        DistinctAttribute("a.example.com/index"),
    ],
    config=[OpaqueConfig("a.example.com", {"kind": "C"}, ["many"]), OpaqueConfig("b.example.com", {})],
)


def test_a_claim_of_every_form_has_the_fields_of_the_api() -> None:
    assert EVERYTHING.to_json() == {
        "devices": {
            "requests": [
                {
                    "name": "many",
                    "exactly": {
                        "deviceClassName": "gpus",
                        "allocationMode": "ExactCount",
                        "count": 2,
                        "selectors": [
                            {"cel": {"expression": "true"}},
                            {"cel": {"expression": "device.driver == 'a.example.com'"}},
                        ],
                        "capacity": {"requests": {"memory": "10Gi"}},
                        "tolerations": [
                            {"operator": "Exists"},
                            {
                                "key": "broken",
                                "operator": "Equal",
                                "value": "yes",
                                "effect": "NoExecute",
                                "tolerationSeconds": 30,
                            },
                        ],
                    },
                },
                {"name": "all", "exactly": {"deviceClassName": "gpus", "allocationMode": "All", "adminAccess": True}},
                {
                    "name": "nic",
                    "firstAvailable": [
                        {"name": "fast", "deviceClassName": "fast-nics", "allocationMode": "ExactCount", "count": 2},
                        {"name": "any", "deviceClassName": "devices", "allocationMode": "All"},
                    ],
                },
            ],
            "constraints": [
                {"requests": ["many", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
                {"distinctAttribute": "a.example.com/index"},
            ],
            "config": [
                {"requests": ["many"], "opaque": {"driver": "a.example.com", "parameters": {"kind": "C"}}},
                {"opaque": {"driver": "b.example.com", "parameters": {}}},
            ],
        }
    }


async def test_the_server_takes_it_strictly_and_reports_what_it_does_not_know() -> None:
    async with LocalCluster(nodes=()) as cluster:
        api = AsyncApi(cluster)
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring", "labels": labels}})
        made = claim("c", EVERYTHING)
        made["metadata"]["namespace"] = "monitoring"
        (stored,) = await api.apply(made)
        assert stored["spec"] == EVERYTHING.to_json()
        made["metadata"]["labels"] = {"again": "yes"}
        (changed,) = await api.apply(made)
        assert changed["metadata"]["labels"] == {"again": "yes"}
        made["spec"]["devices"]["requests"][0]["exactly"]["contu"] = 2
        with pytest.raises(ApiError, match="contu"):
            await api.apply(made)
        await api.remove("ResourceClaim", "c", "monitoring")
        assert await api.get("ResourceClaim", "c", "monitoring") is None
        assert await api.get("Namespace", "monitoring")
        with pytest.raises(ValueError, match=r"Deployment: set api_version, e\.g\. apps/v1"):
            await api.get_all("Deployment")


def event(reason: str, message: str, second: int, **more: Any) -> dict[str, Any]:
    when = f"2026-01-01T00:00:{second:02d}Z"
    return {"metadata": {"creationTimestamp": when}, "type": "Warning", "reason": reason, "message": message, **more}


def test_events_that_state_the_same_are_one_with_their_count_oldest_first() -> None:
    told = merge_events(
        [
            event("Failed", "b", 9, reportingComponent="kubelet", series={"count": 3}),
            event("Failed", "a", 1, source={"component": "kubelet"}, count=2),
            event("Failed", "a", 8, source={"component": "kubelet"}),
        ]
    )
    assert [str(e) for e in told] == [
        "Warning Failed (x3) from kubelet: a",
        "Warning Failed (x3) from kubelet: b",
    ]
    assert str(PodError("no", told)) == "no\n  " + "\n  ".join(map(str, told))
    assert "no events" in str(PodError("no", []))


def a_pod(phase: str = "Pending", **more: Any) -> dict[str, Any]:
    return {**pod("p"), "status": {"phase": phase, **more}}


@pytest.mark.parametrize(
    ("found", "message", "why"),
    [
        (None, "", "pod p is gone"),
        ({**a_pod(), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "", "pod p is being deleted"),
        (a_pod("Failed", message="out of memory"), "", "pod p failed: out of memory"),
        (a_pod(), "PERMANENT: never [DRA-E102]", "pod p will not run: PERMANENT: never [DRA-E102]"),
        (a_pod(), "RETRYABLE: later [DRA-E101]", ""),
    ],
)
def test_a_pod_is_given_up_where_waiting_is_of_no_use(found: dict[str, Any] | None, message: str, why: str) -> None:
    assert permanent_failure("p", found, merge_events([event("FailedPrepareDynamicResources", message, 1)])) == why


def test_what_fails_is_known_also_where_the_scheduler_s_word_comes_later() -> None:
    """Each component tells its events in the background."""
    told = [event("FailedPrepareDynamicResources", "the bus is gone [DRA-E103]", 1), event("Scheduled", "to node-1", 2)]
    assert prepare_failure(merge_events(told)) == "the bus is gone [DRA-E103]"
    assert prepare_failure(merge_events([*told, event("Started", "main", 3)])) == ""


def test_a_pod_that_has_a_node_or_was_not_refused_is_not_stuck() -> None:
    refused = merge_events([event("FailedScheduling", "0/1 nodes are available", 1)])
    bound = a_pod() | {"spec": {"nodeName": "n"}}
    assert (
        unschedulable_reason(a_pod(), refused),
        unschedulable_reason(bound, refused),
        unschedulable_reason(a_pod(), []),
    ) == ("0/1 nodes are available", "", "")


class Counter:
    """Lives over there."""

    async def add(self, number: int, *, to: int = 0) -> int:
        """Adds."""
        await asyncio.sleep(0)
        return number + to

    async def fail(self) -> None:
        raise KeyError("over there")


class Handle:
    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self.inner = Counter()

    add = both(Counter.add)
    fail = both(Counter.fail)


def test_a_method_blocks_or_is_awaited_and_raises_what_was_raised() -> None:
    thread = LoopThread()
    handle = Handle(thread)
    assert handle.add(1, to=2) == 3
    assert handle.add.__doc__ == "Adds."

    async def test() -> int:
        with pytest.raises(KeyError, match="over there"):
            await handle.fail.aio()
        return await handle.add.aio(4)

    assert asyncio.run(test()) == 4
    with pytest.raises(KeyError, match="over there"):
        handle.fail()
    thread.close()


@pytest.mark.parametrize(("handle", "inner"), [(Api, AsyncApi), (Kubelet, LocalKubelet), (Node, DriverNode)])
def test_help_shows_what_a_blocking_method_takes_and_does(handle: type, inner: type) -> None:
    methods = [name for name, member in vars(handle).items() if isinstance(member, both)]
    shown = pydoc.plain(pydoc.render_doc(handle))
    assert methods
    for name in methods:
        method, of = getattr(handle, name), getattr(inner, name)
        assert inspect.signature(method) == inspect.signature(of)
        assert (inspect.getdoc(method), method.__qualname__) == (inspect.getdoc(of), f"{handle.__name__}.{name}")
        assert not inspect.iscoroutinefunction(method)
        assert f" {name}(" in shown


def test_a_bound_method_has_the_signature_without_self_and_the_function_of_the_class_calls_it() -> None:
    class Counter:
        async def add(self, number: int, *, to: int = 0) -> int:
            """Adds."""
            return number + to

    class Handle:
        def __init__(self, thread: LoopThread) -> None:
            self.thread, self.inner = thread, Counter()

        add = both(Counter.add)

    thread = LoopThread()
    handle = Handle(thread)
    assert list(inspect.signature(handle.add).parameters) == ["number", "to"]
    assert handle.add.__doc__ == "Adds."
    assert Handle.add(handle, 1, to=2) == 3
    thread.close()


def test_a_driver_that_blocks_the_loop_of_its_own_cluster_is_reported_so() -> None:
    thread = LoopThread()
    handle = Handle(thread)

    async def in_the_loop() -> int:
        return handle.add(1)

    with pytest.raises(RuntimeError, match="would block the cluster's event loop"):
        thread.run(in_the_loop())
    thread.close()


def test_a_context_is_entered_and_left_in_one_task_from_functions_and_coroutines() -> None:
    thread = LoopThread()
    tasks: list[object] = []

    @contextlib.asynccontextmanager
    async def context() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        yield "inside"
        tasks.append(asyncio.current_task())

    with Scope(thread, context(), "it") as value:
        assert value == "inside"

    async def test() -> None:
        async with Scope(thread, context(), "it") as value:
            assert value == "inside"

    asyncio.run(test())
    assert tasks[0] is tasks[1] is not None
    assert tasks[2] is tasks[3] is not tasks[0]
    thread.close()


async def test_what_ends_by_itself_is_raised_where_it_is_looked_at() -> None:
    @contextlib.asynccontextmanager
    async def breaks() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield

    async def fail() -> None:
        raise OSError("the bus is gone")

    hosted = Hosted(breaks(), "it")
    await hosted.enter()
    with pytest.raises(ExceptionGroup) as e:
        while True:
            hosted.check()
            await asyncio.sleep(0)
    assert e.group_contains(OSError, match="the bus is gone")
    with pytest.raises(ExceptionGroup):
        await hosted.leave()


async def test_a_loop_that_stands_still_costs_no_patience() -> None:
    """A machine that is busy elsewhere gives the scheduler no time either."""
    looks = 0
    about = {"name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    told = {
        "metadata": about,
        "involvedObject": about,
        "reason": "FailedScheduling",
        "message": "no",
        "type": "Warning",
    }

    class Slow(AsyncApi):
        def __init__(self) -> None:
            pass

        async def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
            nonlocal looks
            looks += 1
            time.sleep(0.6)  # noqa: ASYNC251  (this is what the test is about)
            status = {"phase": "Pending" if looks < 4 else "Running"}
            return {"metadata": about, "spec": {"nodeName": "n" if looks > 3 else ""}, "status": status}

        async def get_all(self, kind: str, namespace: str = "") -> list[dict[str, Any]]:
            return [told] if kind == "Event" else []

    assert (await Slow().wait_running("p", patience=1.0))["status"]["phase"] == "Running"
