"""The reader requests a cluster's objects in few requests and with the necessary fields only.

The results equal those of complete objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from bench import fleet_cluster
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.kube import KubeClient, paging
from dra_kubeletplugin.kube.resource import CLASSES
from dra_kubeletplugin.resourceapi.unhealthy_reason import ATTRIBUTE
from dra_tools import Snapshot, explain, overview, take, waiting
from dra_tools.explanation.explain import objects_of
from dra_tools.reader import objects_with_selectors

SIZE = fleet_cluster.Size(nodes=30, pods=120, claims=70)
OBJECTS = list(fleet_cluster.objects(SIZE))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    for resource, obj in OBJECTS:
        server.storage.put(resource, obj)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.config) as client:
        yield client


def complete_snapshot() -> Snapshot:
    return Snapshot.of([obj for _, obj in OBJECTS], live=True)


async def test_the_explanation_of_each_waiting_pod_equals_that_from_complete_objects(client: KubeClient) -> None:
    found = await take(client, find_selectors=objects_with_selectors)
    assert len(fleet_cluster.WAITING) == 20
    assert waiting(found) == waiting(complete_snapshot())
    for name in fleet_cluster.WAITING:
        assert explain(found, name, "research") == explain(complete_snapshot(), name, "research")


@pytest.mark.parametrize("name", ["all-held-two", "one-serial", "unknown-attribute", "alternatives"])
async def test_the_reader_reads_only_the_attributes_of_the_pods_own_selectors(client: KubeClient, name: str) -> None:
    found = await take(client, find_selectors=lambda snapshot: objects_of(snapshot, "pod", name, "research"))
    assert explain(found, name, "research") == explain(complete_snapshot(), name, "research")
    named = {n for sl in found.slices for d in sl["spec"]["devices"] for n in d["attributes"]}
    assert named == {"model", *(["serial"] if name == "one-serial" else [])}


async def test_the_explanation_of_a_running_pod_shows_its_devices(client: KubeClient) -> None:
    found = await take(client, find_selectors=objects_with_selectors)
    pod = next(p["metadata"] for p in found.pods if p["metadata"]["name"].startswith("train-"))
    expected = explain(complete_snapshot(), pod["name"], pod["namespace"])
    assert explain(found, pod["name"], pod["namespace"]) == expected
    assert expected.claims[0].devices


async def test_an_overview_has_all_attributes(client: KubeClient) -> None:
    found = overview(await take(client))
    assert found == overview(complete_snapshot())
    assert len(found.devices[0].attributes) == 10


async def test_the_reader_requests_each_page_once(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(paging.read_all.__kwdefaults__, "limit", 50)
    await take(client, find_selectors=objects_with_selectors)
    requests = Counter(path.rpartition("/")[2] for _, path in server.injected_faults.calls)
    namespaces = server.storage.list("namespaces")
    assert requests == {
        "pods": 3, "nodes": 1, "namespaces": -(-len(namespaces) // 50), "resourceclaims": 2, "resourceclaimtemplates": 1, "deviceclasses": 1,
        "resourceslices": 1,
    }  # fmt: skip


async def test_equal_parts_share_one_object_in_memory(client: KubeClient) -> None:
    found = await take(client, find_selectors=lambda snapshot: snapshot.classes)
    devices = {id(d) for sl in found.slices for d in sl["spec"]["devices"]}
    assert len(devices) == 8 * len(fleet_cluster.MODELS)
    assert len({id(p["spec"]["containers"]) for p in found.pods if p["status"]["phase"] == "Running"}) == 2


async def test_the_reader_always_reads_the_reason_of_bad_health(server: ApiServer, client: KubeClient) -> None:
    stored = server.storage.list("resourceslices.resource.k8s.io")[0]
    device = stored["spec"]["devices"][0]
    unhealthy = {**device, "attributes": {**device["attributes"], ATTRIBUTE: {"string": "fan"}}}
    server.storage.put("resourceslices.resource.k8s.io", {**stored, "spec": {**stored["spec"], "devices": [unhealthy]}})
    found = await take(client, find_selectors=objects_with_selectors)
    assert found.slices[0]["spec"]["devices"][0]["attributes"][ATTRIBUTE] == {"string": "fan"}


async def test_the_reader_reads_all_attributes_if_a_selector_may_read_any(client: KubeClient) -> None:
    any_attribute = [{"cel": {"expression": 'device.attributes["a"].exists(k, true)'}}]
    await client.create(CLASSES, {"metadata": {"name": "any"}, "spec": {"selectors": any_attribute}})
    found = await take(client, find_selectors=objects_with_selectors)
    assert len(found.slices[0]["spec"]["devices"][0]["attributes"]) == 10
