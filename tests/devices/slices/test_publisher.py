"""The publisher continues and reports the fault if other clients write, or if the server rejects requests or responds wrongly."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.kubernetes_releases import Features
from dra_kubeletplugin import Device, Pool
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices.server_response import rejected_devices
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import InvalidError
from dra_kubeletplugin.kube.resource import SLICES
from tests.helpers.publisher import (
    DRIVER,
    SLICES_PATH,
    json_response,
    make_inventory,
    running_publisher,
    scripted_api_server,
)
from tests.helpers.waiting import wait_until

# --- other writers ----------------------------------------------------------------------------------


async def test_the_newest_instance_publishes_and_the_older_one_resumes_when_it_ends() -> None:
    newest = "new"
    old, new = await make_inventory("a", "b"), await make_inventory("b", "c")
    async with scripted_api_server() as server, running_publisher(server, old, lambda: newest == "old") as older:
        await older.current()
        assert (older.not_ready(), server.writes()) == ([], [])
        async with running_publisher(server, new, lambda: newest == "new") as newer:
            await newer.current()
            assert server.devices() == ["b", "c"]
            await old.update([Pool("node", [Device("a")])])
            await older.current()
            assert len(server.writes()) == 1, "an instance that does not lead writes nothing"
        newest = "old"
        await wait_until(lambda: server.devices() == ["a"])


async def test_the_publisher_restores_deleted_slices_and_publishes_a_new_device_at_once() -> None:
    inventory = await make_inventory("a")
    async with (
        scripted_api_server() as server,
        running_publisher(server, inventory),
        KubeClient(server.config) as client,
    ):
        for _ in range(3):
            await wait_until(lambda: server.devices() == ["a"])
            for obj in (await client.list(SLICES))["items"]:
                await client.delete(SLICES, obj["metadata"]["name"])
        await wait_until(lambda: server.devices() == ["a"])
        # The publisher pauses after changes by another writer, but publishes its own changes at once.
        for _ in range(3):
            (found,) = (await client.list(SLICES))["items"]
            await client.update(SLICES, {**found, "spec": {**found["spec"], "devices": [{"name": "theirs"}]}})
            await asyncio.sleep(0.1)
        assert server.devices() == ["theirs"]
        await inventory.update([Pool("node", [Device("a"), Device("b")])])
        await wait_until(lambda: server.devices() == ["a", "b"])


# --- refusals ---------------------------------------------------------------------------------------


def reject_device(name: str) -> Callable[[Request], Response | None]:
    """Rejects the device as a server with stricter rules does; the error names the device by its index."""

    def respond(request: Request) -> Response | None:
        if request.method not in {"POST", "PUT"} or "resourceslices" not in request.path:
            return None
        devices = msgspec.json.decode(request.body)["spec"].get("devices", [])
        at = next((i for i, d in enumerate(devices) if d["name"] == name), None)
        if at is None:
            return None
        cause = {"reason": "FieldValueForbidden", "field": f"spec.devices[{at}].attributes[x]", "message": "Forbidden"}
        return json_response({"kind": "Status", "message": "invalid", "code": 422, "details": {"causes": [cause]}}, 422)

    return respond


async def test_the_publisher_omits_and_names_only_the_rejected_device() -> None:
    inventory = await make_inventory("a", "bad", "c")
    async with scripted_api_server() as server:
        server.instead = reject_device("bad")
        async with running_publisher(server, inventory) as publisher:
            await asyncio.wait_for(publisher.published.wait(), 30)
            await wait_until(lambda: not publisher.fault)
            assert server.devices() == ["a", "c"]
            assert "rejected by the API server: attributes[x]: Forbidden" in inventory.rejected["bad"]
            server.instead = lambda request: None
            await inventory.update([Pool("node", [Device("a"), Device("bad", attributes={"x": 1}), Device("c")])])
            await wait_until(lambda: server.devices() == ["a", "bad", "c"])


async def test_a_rejected_device_is_sent_again_although_another_device_changes_all_the_time() -> None:
    inventory = await make_inventory("a", "bad")
    async with scripted_api_server() as server:
        server.instead = reject_device("bad")
        async with running_publisher(server, inventory) as publisher:
            publisher.resync = 1.0
            await wait_until(lambda: "bad" in inventory.rejected)
            server.instead = lambda request: None  # as when an admission policy is corrected

            async def change() -> bool:
                await inventory.update([Pool("node", [Device("a", attributes={"v": next(values)}), Device("bad")])])
                return server.devices() == ["a", "bad"]

            values = itertools.count()
            await wait_until(change)


async def test_the_publisher_does_not_repeat_a_request_that_was_rejected_without_a_cause() -> None:
    inventory = await make_inventory("a")
    sent: list[str] = []

    def reject(request: Request) -> Response | None:
        if request.method not in {"POST", "PUT"} or "resourceslices" not in request.path:
            return None
        sent.append(request.path)
        return json_response({"kind": "Status", "message": "no", "code": 422}, 422)

    async with scripted_api_server() as server:
        server.instead = reject
        async with running_publisher(server, inventory) as publisher, KubeClient(server.config) as client:
            await wait_until(lambda: "rejects the slices" in publisher.fault)
            server.instead = lambda request: None
            made = await client.create(SLICES, _foreign_slice())  # an event for the publisher's slices
            server.instead = reject
            await asyncio.sleep(1)
            assert len(sent) == 1
            assert publisher.fault
            server.instead = lambda request: None
            await client.delete(SLICES, made["metadata"]["name"])
            await inventory.update([Pool("node", [Device("a"), Device("b")])])
            await asyncio.wait_for(publisher.published.wait(), 30)
            assert server.devices() == ["a", "b"]


async def test_rejected_slices_are_sent_again_after_the_watch_was_cut() -> None:
    def reject(request: Request) -> Response | None:
        if request.method not in {"POST", "PUT"} or "resourceslices" not in request.path:
            return None
        return json_response({"kind": "Status", "message": "no", "code": 422}, 422)

    async with scripted_api_server() as server:
        server.instead = reject
        async with running_publisher(server, await make_inventory("a")) as publisher:
            await wait_until(lambda: "rejects the slices" in publisher.fault)
            server.instead = lambda request: None
            server.drop_connections()
            await asyncio.wait_for(publisher.published.wait(), 30)
            assert server.devices() == ["a"]


def _foreign_slice() -> dict[str, Any]:
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node", "pool": pool, "devices": [{"name": "x"}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "s-"},
        "spec": spec,
    }


@given(st.recursive(st.none() | st.integers() | st.text(max_size=40), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["details", "causes", "field", "message"]), x, max_size=3)))  # fmt: skip
def test_the_client_reads_any_malformed_status_of_a_server(status: Any) -> None:
    e = InvalidError("no", details=status if isinstance(status, dict) else {"details": status})
    assert rejected_devices(e, {"spec": {"devices": [{"name": "a"}]}}) == {}


# --- malformed responses ---------------------------------------------------------------------------------------

MALFORMED_LISTS: dict[str, object] = {
    "an item without anything": {"items": [{}]},
    "items that are none": {"items": 5},
    "no pool": {"items": [{"metadata": {"name": "s"}, "spec": {"driver": DRIVER, "nodeName": "node"}}]},
    "a generation that is text": {"items": [{"metadata": {"name": "s", "uid": "u", "resourceVersion": "1"}, "spec": {"driver": DRIVER, "nodeName": "node", "pool": {"name": "node", "generation": "x", "resourceSliceCount": 1}}}]},
    "an unknown version": {"items": [{"apiVersion": "v7", "kind": "X", "metadata": {"name": "s"}}]},
}  # fmt: skip


@pytest.mark.parametrize("response", MALFORMED_LISTS)
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_a_malformed_response_is_a_fault_and_does_not_stop_the_publisher(response: str, verb: str) -> None:
    def respond_malformed(request: Request) -> Response | None:
        if request.method == verb and request.path == SLICES_PATH and "watch" not in request.query:
            return json_response(MALFORMED_LISTS[response])
        return None

    async with scripted_api_server() as server:
        server.instead = respond_malformed
        async with running_publisher(server, await make_inventory("a")) as publisher:
            await wait_until(lambda: bool(publisher.fault))
            assert publisher.fault.encode()
            server.instead = lambda request: None
            await asyncio.wait_for(publisher.published.wait(), 30)
            await wait_until(lambda: not publisher.fault)
            assert server.devices() == ["a"]


async def test_the_publisher_logs_the_same_fault_once(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def respond_malformed(request: Request) -> Response | None:
        if request.path != SLICES_PATH or "watch" in request.query:
            return None
        asked.append(request.path)
        return json_response({"items": [{}]})

    async with scripted_api_server() as server:
        server.instead = respond_malformed
        async with running_publisher(server, await make_inventory("a")):
            await wait_until(lambda: len(asked) >= 5)
    assert len([r for r in caplog.records if r.name.endswith("publisher") and "cannot publish" in r.getMessage()]) == 1


# --- versions ---------------------------------------------------------------------------------------


async def test_the_publisher_restores_slices_after_the_server_drops_the_watched_version() -> None:
    served = ["v1beta1"]

    def versions(request: Request) -> Response | None:
        if request.path == "/apis/resource.k8s.io":
            return json_response({"versions": [{"version": v} for v in served]})
        if request.path.startswith("/apis/resource.k8s.io/") and request.path.split("/")[3] not in served:
            return json_response(
                {"kind": "Status", "code": 404, "message": "the server could not find the requested resource"}, 404
            )
        return None

    async with scripted_api_server(Features.of(runtime_config={"api/all": True})) as server:
        server.instead = versions
        async with running_publisher(server, await make_inventory("a")) as publisher:
            await wait_until(lambda: server.devices() == ["a"])
            served[:] = ["v1"]
            server.drop_connections()  # The restart of a control plane does this.
            async with KubeClient(server.config) as client:
                for obj in (await client.list(SLICES))["items"]:
                    await client.delete(SLICES, obj["metadata"]["name"])
            await wait_until(lambda: server.devices() == ["a"])
            await wait_until(lambda: not publisher.fault)


@pytest.mark.full
async def test_a_watch_that_the_server_does_not_serve_is_a_current_fault() -> None:
    def no_watch(request: Request) -> Response | None:
        return (
            json_response({"kind": "Status", "code": 500, "message": "etcd"}, 500) if "watch" in request.query else None
        )

    async with scripted_api_server() as server, running_publisher(server, await make_inventory("a")) as publisher:
        await asyncio.wait_for(publisher.published.wait(), 30)
        server.instead = no_watch
        server.drop_connections()
        await wait_until(lambda: "are not noticed" in publisher.fault)
        assert b"\ndra_publish_failing 1.0\n" in publisher.metrics.text()
        server.instead = lambda request: None
        await wait_until(lambda: not publisher.fault)
        assert b"\ndra_publish_failing 0.0\n" in publisher.metrics.text()


# --- devices that the inventory omits ------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 422])
async def test_a_rejected_pool_does_not_withhold_other_pools(status: int) -> None:
    inventory = Inventory("node")
    await inventory.update([Pool("node/bad", [Device("a")]), Pool("node/good", [Device("b")])])

    def reject(request: Request) -> Response | None:
        wrong = request.method in {"POST", "PUT"} and b"node/bad" in request.body
        return json_response({"kind": "Status", "message": "not this pool", "code": status}, status) if wrong else None

    async with scripted_api_server() as server:
        server.instead = reject
        async with running_publisher(server, inventory) as publisher:
            await wait_until(lambda: server.devices() == ["b"])
            await wait_until(lambda: "not this pool" in publisher.fault)
            server.instead = lambda request: None
            await inventory.update([Pool("node/bad", [Device("a2")]), Pool("node/good", [Device("b")])])
            await wait_until(lambda: server.devices() == ["a2", "b"])
            await wait_until(lambda: not publisher.fault)


async def test_a_change_during_a_rejected_write_does_not_wait_for_the_next_retry() -> None:
    """The next attempt after a rejection comes in five minutes."""
    inventory = await make_inventory("a")
    changes: list[asyncio.Task[bool]] = []

    def reject(request: Request) -> Response | None:
        if changes or request.method != "PUT":
            return None
        changes.append(asyncio.create_task(inventory.update([Pool("node", [Device("b")])])))
        return json_response({"kind": "Status", "message": "no", "code": 422}, 422)

    async with scripted_api_server() as server, running_publisher(server, inventory) as publisher:
        await asyncio.wait_for(publisher.published.wait(), 30)
        server.instead = reject
        await inventory.update([Pool("node", [Device("a"), Device("b")])])
        await wait_until(lambda: server.devices() == ["b"])


async def test_the_metric_names_the_publisher_also_if_the_other_instances_cannot_be_read() -> None:
    def unreadable() -> bool:
        raise OSError(errno.EIO, "Input/output error")

    async with (
        scripted_api_server() as server,
        running_publisher(server, await make_inventory("a"), unreadable) as publisher,
    ):
        await asyncio.wait_for(publisher.published.wait(), 30)
        assert b"\ndra_publisher 1" in publisher.metrics.text()


class Text(str):
    """A subclass without a JSON form, as ``numpy.str_``."""


async def test_names_of_a_subclass_of_str_are_published() -> None:
    inventory = Inventory("node")
    await inventory.update([Pool(Text("node"), [Device(Text("a"))])])
    async with scripted_api_server() as server, running_publisher(server, inventory) as publisher:
        await wait_until(lambda: publisher.fault or server.devices() == ["a"])
        assert not publisher.fault
    assert [type(n) for key, _ in inventory.items() for n in key] == [str, str]
