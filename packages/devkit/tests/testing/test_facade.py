"""Parts of the test kit that need no driver: claims as objects, merged events, failures of pods, the event loop thread."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pydoc
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import LocalKubelet
from dra_devkit.testing import (
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
from dra_devkit.testing.events import merge_events, permanent_failure, prepare_failure, unschedulable_reason
from dra_devkit.testing.sync_async import LoopThread, Scope, both
from dra_devkit.testing.task_context import Hosted
from dra_kubeletplugin.errors import ApiError

FULL_CLAIM = ClaimSpec(
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


def test_a_claim_with_all_options_has_the_fields_of_the_api() -> None:
    assert FULL_CLAIM.to_json() == {
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


async def test_the_api_server_stores_the_claim_and_rejects_unknown_fields() -> None:
    async with LocalCluster(nodes=()) as cluster:
        api = AsyncApi(cluster)
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring", "labels": labels}})
        claim_object = claim("c", FULL_CLAIM)
        claim_object["metadata"]["namespace"] = "monitoring"
        (stored,) = await api.apply(claim_object)
        assert stored["spec"] == FULL_CLAIM.to_json()
        claim_object["metadata"]["labels"] = {"again": "yes"}
        (changed,) = await api.apply(claim_object)
        assert changed["metadata"]["labels"] == {"again": "yes"}
        claim_object["spec"]["devices"]["requests"][0]["exactly"]["contu"] = 2
        with pytest.raises(ApiError, match="contu"):
            await api.apply(claim_object)
        await api.remove("ResourceClaim", "c", "monitoring")
        assert await api.get("ResourceClaim", "c", "monitoring") is None
        assert await api.get("Namespace", "monitoring")
        with pytest.raises(ValueError, match=r"Deployment: set api_version, e\.g\. apps/v1"):
            await api.get_all("Deployment")


def event(reason: str, message: str, second: int, **fields: Any) -> dict[str, Any]:
    timestamp = f"2026-01-01T00:00:{second:02d}Z"
    return {
        "metadata": {"creationTimestamp": timestamp},
        "type": "Warning",
        "reason": reason,
        "message": message,
        **fields,
    }


def test_equal_events_are_merged_with_their_count_oldest_first() -> None:
    merged = merge_events(
        [
            event("Failed", "b", 9, reportingComponent="kubelet", series={"count": 3}),
            event("Failed", "a", 1, source={"component": "kubelet"}, count=2),
            event("Failed", "a", 8, source={"component": "kubelet"}),
        ]
    )
    assert [re.sub(r"\d+d ago", "9d ago", str(e)) for e in merged] == [
        "Warning Failed (x3) from kubelet 9d ago: a",
        "Warning Failed (x3) from kubelet 9d ago: b",
    ]
    assert str(PodError("no", merged)) == "no\n  " + "\n  ".join(map(str, merged))
    assert "no events" in str(PodError("no", []))


def pod_with_status(phase: str = "Pending", **fields: Any) -> dict[str, Any]:
    return {**pod("p"), "status": {"phase": phase, **fields}}


@pytest.mark.parametrize(
    ("pod_object", "message", "expected"),
    [
        (None, "", "pod p is gone"),
        (
            {**pod_with_status(), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
            "",
            "pod p is being deleted",
        ),
        (pod_with_status("Failed", message="out of memory"), "", "pod p failed: out of memory"),
        (pod_with_status(), "PERMANENT: never [DRA-E102]", "pod p will not run: PERMANENT: never [DRA-E102]"),
        (pod_with_status(), "RETRYABLE: later [DRA-E101]", ""),
    ],
)
def test_a_pod_that_cannot_run_has_a_permanent_failure(
    pod_object: dict[str, Any] | None, message: str, expected: str
) -> None:
    assert (
        permanent_failure("p", pod_object, merge_events([event("FailedPrepareDynamicResources", message, 1)]))
        == expected
    )


def test_a_prepare_failure_is_found_before_a_later_scheduler_event() -> None:
    """Each component writes its events in the background, so their order varies."""
    events = [
        event("FailedPrepareDynamicResources", "the bus is gone [DRA-E103]", 1),
        event("Scheduled", "to node-1", 2),
    ]
    assert prepare_failure(merge_events(events)) == "the bus is gone [DRA-E103]"
    assert prepare_failure(merge_events([*events, event("Started", "main", 3)])) == ""


def test_only_an_unscheduled_pod_with_a_rejection_is_unschedulable() -> None:
    rejections = merge_events([event("FailedScheduling", "0/1 nodes are available", 1)])
    bound = pod_with_status() | {"spec": {"nodeName": "n"}}
    assert (
        unschedulable_reason(pod_with_status(), rejections),
        unschedulable_reason(bound, rejections),
        unschedulable_reason(pod_with_status(), []),
    ) == ("0/1 nodes are available", "", "")


class Counter:
    """The object that runs in the event loop thread."""

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


def test_a_method_blocks_or_is_awaited_and_raises_the_original_exception() -> None:
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
def test_help_shows_signature_and_docstring_of_a_blocking_method(handle: type, inner: type) -> None:
    methods = [name for name, member in vars(handle).items() if isinstance(member, both)]
    help_text = pydoc.plain(pydoc.render_doc(handle))
    assert methods
    for name in methods:
        method, original = getattr(handle, name), getattr(inner, name)
        assert inspect.signature(method) == inspect.signature(original)
        assert (inspect.getdoc(method), method.__qualname__) == (inspect.getdoc(original), f"{handle.__name__}.{name}")
        assert not inspect.iscoroutinefunction(method)
        assert f" {name}(" in help_text


def test_a_bound_method_has_the_signature_without_self() -> None:
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


def test_a_call_that_would_block_its_own_event_loop_is_rejected() -> None:
    thread = LoopThread()
    handle = Handle(thread)

    async def call_in_loop() -> int:
        return handle.add(1)

    with pytest.raises(RuntimeError, match="would block the cluster's event loop"):
        thread.run(call_in_loop())
    thread.close()


def test_a_context_is_entered_and_left_in_the_same_task() -> None:
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


async def test_a_failure_of_a_hosted_context_is_raised_by_check_and_leave() -> None:
    @contextlib.asynccontextmanager
    async def failing_context() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield

    async def fail() -> None:
        raise OSError("the bus is gone")

    hosted = Hosted(failing_context(), "it")
    await hosted.enter()
    with pytest.raises(ExceptionGroup) as e:
        while True:
            hosted.check()
            await asyncio.sleep(0)
    assert e.group_contains(OSError, match="the bus is gone")
    with pytest.raises(ExceptionGroup):
        await hosted.leave()


async def test_time_of_a_blocked_event_loop_does_not_count_toward_the_progress_timeout() -> None:
    """On a busy machine the scheduler does not run either."""
    reads = 0
    metadata = {"name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    failed_scheduling = {
        "metadata": metadata,
        "involvedObject": metadata,
        "reason": "FailedScheduling",
        "message": "no",
        "type": "Warning",
    }

    class Slow(AsyncApi):
        def __init__(self) -> None:
            pass

        async def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
            nonlocal reads
            reads += 1
            time.sleep(0.6)  # noqa: ASYNC251  (the test blocks the event loop)
            status = {"phase": "Pending" if reads < 4 else "Running"}
            return {"metadata": metadata, "spec": {"nodeName": "n" if reads > 3 else ""}, "status": status}

        async def get_all(self, kind: str, namespace: str = "") -> list[dict[str, Any]]:
            return [failed_scheduling] if kind == "Event" else []

    assert (await Slow().wait_running("p", progress_timeout=1.0))["status"]["phase"] == "Running"
