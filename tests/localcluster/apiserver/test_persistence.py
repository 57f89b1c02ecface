"""Objects outlive the process that served them: what `--state-dir` keeps, whole or cut off in the middle of a write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CONFIG_MAPS
from dra_kubeletplugin.localcluster.apiserver import ApiServer
from dra_kubeletplugin.localcluster.apiserver.persistence import StateError, open_storage
from dra_kubeletplugin.localcluster.cluster import LocalCluster

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
FOOS = Resource("example.com", "v1", "foos")


def named(name: str, value: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "data": {"v": value}}


def kept(path: Path) -> dict[str, str]:
    """The values that another life finds."""
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
        made = await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"a": "b"}}, "default")
        await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "gone"}}, "default")
        await cluster.client.delete(CONFIG_MAPS, "gone", "default")
    async with LocalCluster((), state=tmp_path) as cluster:
        assert await cluster.client.get(CONFIG_MAPS, "c", "default") == made
        assert [f["metadata"]["name"] for f in (await cluster.client.list(FOOS))["items"]] == ["f"]
        assert (await cluster.client.list(CONFIG_MAPS, "default"))["items"][0]["metadata"]["name"] == "c"
        newer = await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "d"}}, "default")
        assert int(newer["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


async def test_a_cluster_in_a_temporary_folder_keeps_nothing_and_its_files_are_its_owner_s_alone(
    tmp_path: Path,
) -> None:
    async with LocalCluster(()) as cluster:
        assert not (cluster.state / "objects.jsonl").exists()
        assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600
    async with LocalCluster((), state=tmp_path) as cluster:
        assert (tmp_path / "objects.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_cluster_that_was_killed_while_it_wrote_its_kubeconfig_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under the same process id, as in a container."""

    class Killed(BaseException):
        pass

    def replace(path: Path, target: Path, really: Callable[[Path, Path], Path] = Path.replace) -> Path:
        if target.name == "kubeconfig":
            raise Killed
        return really(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            await LocalCluster((), state=tmp_path).__aenter__()
    async with LocalCluster((), state=tmp_path) as cluster:
        assert (await cluster.client.list(CONFIG_MAPS))["items"] == []


def test_whatever_was_cut_off_in_the_middle_of_a_write_the_changes_before_it_are_there(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    storage, journal = open_storage(path)
    storage.put("configmaps", named("a", "1"))
    storage.put("configmaps", named("b", "1"))
    before = len(path.read_bytes())
    storage.put("configmaps", named("a", "2"))
    journal.close()
    whole = path.read_bytes()
    for size in range(before, len(whole) + 1):
        path.write_bytes(whole[:size])
        expected = "2" if size >= len(whole) - 1 else "1"
        assert kept(path) == {"a": expected, "b": "1"}, size


def test_what_is_deleted_stays_deleted_and_the_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    storage, journal = open_storage(path)
    storage.put("configmaps", named("a", "1"))
    storage.remove("configmaps", "default", "a")
    journal.close()
    again, journal = open_storage(path)
    journal.close()
    assert not again.list("configmaps")
    assert again.version == storage.version


def test_a_file_that_is_something_else_is_reported_with_its_line_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    for text in (b"hello\nworld\n", b'[1, "x", "y"]\n\n', b'{"a": 1}\n[]\n', b'["a", 1, 2, 3, 4]\n\n'):
        path.write_bytes(text)
        with pytest.raises(StateError, match="line 1"):
            open_storage(path)
        assert path.read_bytes() == text


async def test_watches_of_an_earlier_life_are_instructed_to_list_again(tmp_path: Path) -> None:
    path = tmp_path / "objects"
    storage, journal = open_storage(path)
    for i in range(3):
        storage.put("configmaps", named(f"c{i}", "1"))
    journal.close()
    storage, journal = open_storage(path)
    server = ApiServer(storage=storage)
    await server.start()
    try:
        async with KubeClient(server.config) as client:
            query = {"watch": "1", "resourceVersion": "2"}
            async with client.stream(CONFIG_MAPS.path("default"), query, 5, lambda: None) as lines:
                old = [json.loads(line) async for line in lines]
            assert [(e["type"], e["object"]["code"]) for e in old] == [("ERROR", 410)]
    finally:
        await server.close()
        journal.close()
