"""Objects in the state folder survive a restart of the API server, also after an incomplete write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.persistence import StateError, open_storage
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CONFIG_MAPS

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
FOOS = Resource("example.com", "v1", "foos")


def config_map(name: str, value: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "data": {"v": value}}


def stored_values(path: Path) -> dict[str, str]:
    """Returns the values of the objects that a restarted server reads."""
    storage, journal = open_storage(path)
    journal.close()
    return {o["metadata"]["name"]: o["data"]["v"] for o in storage.list("configmaps")}


async def test_objects_custom_kinds_and_versions_survive_a_restart_of_the_cluster(tmp_path: Path) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": "foos", "kind": "Foo"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    async with LocalCluster((), state=tmp_path) as cluster:
        await cluster.client.create(DEFINITIONS, {"metadata": {"name": "foos.example.com"}, "spec": spec})
        await cluster.client.create(FOOS, {"metadata": {"name": "f"}})
        created = await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"a": "b"}}, "default")
        await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "gone"}}, "default")
        await cluster.client.delete(CONFIG_MAPS, "gone", "default")
    async with LocalCluster((), state=tmp_path) as cluster:
        assert await cluster.client.get(CONFIG_MAPS, "c", "default") == created
        assert [f["metadata"]["name"] for f in (await cluster.client.list(FOOS))["items"]] == ["f"]
        assert (await cluster.client.list(CONFIG_MAPS, "default"))["items"][0]["metadata"]["name"] == "c"
        newer = await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "d"}}, "default")
        assert int(newer["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])


async def test_a_temporary_cluster_stores_no_objects_and_state_files_are_private(
    tmp_path: Path,
) -> None:
    async with LocalCluster(()) as cluster:
        assert not (cluster.state / "objects.jsonl").exists()
        assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600
    async with LocalCluster((), state=tmp_path) as cluster:
        assert (tmp_path / "objects.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_incomplete_write_loses_no_earlier_changes(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    storage, journal = open_storage(path)
    storage.put("configmaps", config_map("a", "1"))
    storage.put("configmaps", config_map("b", "1"))
    before = len(path.read_bytes())
    storage.put("configmaps", config_map("a", "2"))
    journal.close()
    content = path.read_bytes()
    for size in range(before, len(content) + 1):
        path.write_bytes(content[:size])
        expected = "2" if size >= len(content) - 1 else "1"
        assert stored_values(path) == {"a": expected, "b": "1"}, size


def test_deletions_and_the_version_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    storage, journal = open_storage(path)
    storage.put("configmaps", config_map("a", "1"))
    storage.remove("configmaps", "default", "a")
    journal.close()
    reopened, journal = open_storage(path)
    journal.close()
    assert not reopened.list("configmaps")
    assert reopened.version == storage.version


def test_an_invalid_file_is_reported_with_its_line_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    for text in (b"hello\nworld\n", b'[1, "x", "y"]\n\n', b'{"a": 1}\n[]\n', b'["a", 1, 2, 3, 4]\n\n'):
        path.write_bytes(text)
        with pytest.raises(StateError, match="line 1"):
            open_storage(path)
        assert path.read_bytes() == text


async def test_a_watch_from_before_a_restart_gets_an_error_410(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    storage, journal = open_storage(path)
    for i in range(3):
        storage.put("configmaps", config_map(f"c{i}", "1"))
    journal.close()
    storage, journal = open_storage(path)
    server = ApiServer(storage=storage)
    await server.start()
    try:
        async with KubeClient(server.config) as client:
            query = {"watch": "1", "resourceVersion": "2"}
            async with client.stream(CONFIG_MAPS.path("default"), query, 5, lambda: None) as lines:
                events = [json.loads(line) async for line in lines]
            assert [(e["type"], e["object"]["code"]) for e in events] == [("ERROR", 410)]
    finally:
        await server.close()
        journal.close()
