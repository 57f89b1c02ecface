"""The local API server with the official Python client, with kubectl, and with the package's own client under faults."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.storage import HISTORY
from dra_devkit.localcluster.cluster import LocalCluster, SecureServing
from dra_devkit.testing import ClaimSpec, Request
from dra_devkit.testing.pods import claim, device_class, pod
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Reflector, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, SLICES
from tests.helpers.ports import refusing_port
from tests.helpers.waiting import wait_until

SLICES_KEY = "resourceslices.resource.k8s.io"
SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"generateName": "s-"},
    "spec": {
        "driver": "d.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d0", "attributes": {"i": {"int": 1}}, "capacity": {"m": {"value": "1Gi"}}}],
    },
}


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer(features=Features.of(runtime_config={"api/all": True}))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def client(api: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(api.config) as client:
        yield client


async def test_lists_support_selectors(client: KubeClient) -> None:
    for i in range(5):
        labelled = {"name": f"s{i}", "labels": {"odd": str(i % 2)}}
        await client.create(SLICES, {**SLICE, "metadata": labelled})
    assert len((await client.list(SLICES, labels="odd=1"))["items"]) == 2
    assert len((await client.list(SLICES, labels="odd notin (1),odd"))["items"]) == 3
    assert len((await client.list(SLICES, fields="metadata.name!=s0,spec.driver=d.example.com"))["items"]) == 4


async def test_the_status_changes_only_through_the_status_subresource(client: KubeClient) -> None:
    created_claim = await client.create(
        CLAIMS, claim("c", ClaimSpec(Request(device_class="x"))) | {"status": {"reservedFor": []}}, "default"
    )
    allocation = {"devices": {"results": [{"request": "device", "driver": "d", "pool": "p", "device": "x"}]}}
    await client.update(CLAIMS, {**created_claim, "status": {"allocation": allocation}})
    assert (await client.get(CLAIMS, "c", "default"))["status"] == {}
    updated = await client.update(CLAIMS, {**created_claim, "status": {"allocation": allocation}}, "status")
    assert updated["status"]["allocation"] == allocation
    with pytest.raises(ApiError, match="immutable"):
        other = {"devices": {"requests": [{"name": "other", "exactly": {"deviceClassName": "x"}}]}}
        await client.patch(CLAIMS, "c", {"spec": other}, "default")


async def test_an_object_with_a_generated_name_is_served_in_every_version(client: KubeClient) -> None:
    created_slice = await client.create(SLICES, SLICE)
    name = created_slice["metadata"]["name"]
    assert name.startswith("s-")
    old = await client.get(Resource("resource.k8s.io", "v1beta1", "resourceslices"), name)
    assert old["spec"]["devices"][0]["basic"]["attributes"]["i"] == {"int": 1}
    await client.update(Resource("resource.k8s.io", "v1beta1", "resourceslices"), old)
    assert (await client.get(SLICES, name))["spec"] == created_slice["spec"]


# --- the package's own client and reflector under faults -------------------------------------------


async def test_a_throttled_request_is_retried(api: ApiServer, client: KubeClient) -> None:
    api.injected_faults.throttle = 3
    assert (await client.list(SLICES))["items"] == []


async def test_a_request_on_a_closed_connection_is_retried(api: ApiServer, client: KubeClient) -> None:
    await client.list(SLICES)
    api.drop_connections()
    await asyncio.sleep(0)
    assert (await client.list(SLICES))["items"] == []


async def follow(client: KubeClient, events: list[tuple[str, str]], reflector: Reflector) -> None:
    async for event in reflector.events():
        events.append((event.type, event.name))


async def create_slice(client: KubeClient, name: str) -> None:
    """Repeats a create that failed on a cut connection. The client does not repeat it, because the first create may have succeeded."""
    try:
        await client.create(SLICES, {**SLICE, "metadata": {"name": name}})
    except ApiError as e:
        assert e.unreachable
        await client.create(SLICES, {**SLICE, "metadata": {"name": name}})


async def test_a_watch_survives_cuts_expiry_and_an_outage(api: ApiServer, client: KubeClient) -> None:
    reflector = Reflector(client, SLICES)
    events: list[tuple[str, str]] = []
    task = asyncio.create_task(follow(client, events, reflector))
    await wait_until(lambda: ("SYNCED", "") in events)
    for i, fault in enumerate((lambda: None, api.storage.cut_watches, api.drop_connections, None)):
        if fault is None:
            api.injected_faults.down = True
            api.drop_connections()
            [found] = [s for s in api.storage.list(SLICES_KEY) if s["metadata"]["name"] == "s0"]
            for _ in range(HISTORY):  # the server forgets the changes before
                api.storage.put(SLICES_KEY, found)
            api.injected_faults.down = False
        else:
            fault()
        await create_slice(client, f"s{i}")
        await wait_until(lambda i=i: any(name == f"s{i}" for _, name in events))
    await client.delete(SLICES, "s0")
    await wait_until(lambda: ("DELETED", "s0") in events)
    assert {name for kind, name in events if kind != "SYNCED"} == {"s0", "s1", "s2", "s3"}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_with_a_selector_reports_changed_matches_as_added_and_deleted(client: KubeClient) -> None:
    query = {"watch": "true", "labelSelector": "a=b"}
    async with client.stream(SLICES.path(), query, 60.0, lambda: None) as lines:
        await client.create(SLICES, {**SLICE, "metadata": {"name": "s", "labels": {"a": "b"}}})
        await client.patch(SLICES, "s", {"metadata": {"labels": {"a": "c"}}})
        assert [json.loads(await anext(lines))["type"] for _ in range(2)] == ["ADDED", "DELETED"]


async def test_an_unreachable_server_is_reported_with_its_address() -> None:
    with refusing_port() as port:
        async with KubeClient(ApiConfig(f"http://127.0.0.1:{port}")) as client:
            with pytest.raises(ApiError, match=f"http://127.0.0.1:{port} cannot be reached") as e:
                await client.list(SLICES)
            assert e.value.unreachable


# --- other clients ----------------------------------------------------------------------------------


async def test_the_official_client_lists_and_watches() -> None:
    import kubernetes.client
    import kubernetes.watch

    async with LocalCluster() as cluster:
        key = {"authorization": f"Bearer {cluster.api.token}"}
        await cluster.client.create(SLICES, SLICE)
        await cluster.apply(claim("c", ClaimSpec(Request(device_class="x"))), device_class("x", "d.example.com"))

        def use_official_client() -> tuple[list[str], list[str], str]:
            configuration = kubernetes.client.Configuration(host=cluster.api.url, api_key=key)
            with kubernetes.client.ApiClient(configuration) as api_client:
                resource = kubernetes.client.ResourceV1Api(api_client)
                core = kubernetes.client.CoreV1Api(api_client)
                slices = [s.spec.driver for s in resource.list_resource_slice().items]
                claims = resource.list_namespaced_resource_claim("default").items
                event_types = []
                watch = kubernetes.watch.Watch()
                for event in watch.stream(resource.list_resource_slice, timeout_seconds=60):
                    event_types.append(event["type"])
                    watch.stop()
                assert core.list_node().items[0].metadata.name == "node-1"
                return slices, event_types, claims[0].spec.devices.requests[0].exactly.device_class_name

        assert await asyncio.to_thread(use_official_client) == (["d.example.com"], ["ADDED"], "x")


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl to make a certificate")
async def test_the_whole_cluster_works_over_https(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-keyout", str(key), "-out", str(cert), *subject]
    subprocess.run(command, check=True, capture_output=True)
    async with LocalCluster(serving=SecureServing(certificate=(cert, key))) as cluster:
        assert cluster.api.url.startswith("https://")
        await cluster.apply(device_class("x", "d.example.com"), pod("p"))
        await cluster.wait_running("p")
        with pytest.raises(ApiError, match="cannot be reached"):
            async with KubeClient(cluster.api.config) as untrusting_client:
                await untrusting_client.list(CLASSES)
