"""``explain`` and ``simulate`` follow the release that the API server reports; for files, the release of the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dra_devkit.kubernetes_releases import RELEASES, Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube.client import KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, PODS, SLICES
from dra_tools import ExplanationState, Snapshot, explain, simulate, take
from dra_tools.watcher import ClusterWatcher
from tests.helpers.objects import DRIVER, claim, claim_spec, device_class, pod, slice_of
from tests.tools.tree import ROOT

NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "uid": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}},
}  # fmt: skip
# Since 1.37, the scheduler compares a device with all chosen devices, before only with the device before it.
REPEATED = [{"name": n, "attributes": {"rail": {"int": v}}} for n, v in (("a", 1), ("b", 2), ("c", 1))]
STATES = {
    release: ExplanationState.WAITS if Features.of(release).is_at_least("1.37") else ExplanationState.FITS
    for release in RELEASES
}
EACH = pytest.mark.parametrize(("release", "state"), STATES.items())


def objects() -> list[JSON]:
    spec = claim_spec(count=3)
    spec["devices"]["constraints"] = [{"distinctAttribute": f"{DRIVER}/rail"}]
    return [device_class(), slice_of("node-1", REPEATED), claim("c", spec), pod("p", claims=["c"])]


@contextlib.asynccontextmanager
async def server_of(release: str) -> AsyncIterator[KubeClient]:
    server = ApiServer(features=Features.of(release, {"DRAConsumableCapacity": True}))
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        client = await stack.enter_async_context(KubeClient(server.config))
        server.storage.put("nodes", NODE)  # the server adds the not-ready taint to a node that a client creates
        for resource, obj in zip((CLASSES, SLICES, CLAIMS, PODS), objects(), strict=True):
            await client.create(resource, obj, "default" if resource.namespaced else "")
        yield client


@EACH
async def test_the_explanation_follows_the_release_of_the_server(release: str, state: ExplanationState) -> None:
    async with server_of(release) as client:
        snapshot = await take(client)
        assert explain(snapshot, "p").state is state
        without = replace(snapshot, pods=())
        assert simulate(without, [pod("p", claims=["c"])]).fits == (state is ExplanationState.FITS)
        watcher = ClusterWatcher(client)
        await watcher.start()
        task = asyncio.create_task(watcher.run())
        try:
            await watcher.wait_listed()
            assert explain(watcher.snapshot(), "p").state is state
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@EACH
def test_files_follow_the_release_of_the_command_line(
    release: str, state: ExplanationState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([NODE, *objects()]))
    main(["explain", "p", "-f", str(file), "--kubernetes", release, "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == state


TOLERATIONS = [{"key": "example.com/worn", "operator": "Exists"}]


def tolerant_manifest(folder: Path) -> str:
    """Returns a file with a pod that tolerates a taint; Kubernetes 1.34 drops tolerations of claims by default."""
    spec = claim_spec()
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = TOLERATIONS
    (folder / "pod.yaml").write_text(yaml.safe_dump_all([claim("c", spec), pod("p", claims=["c"]), device_class()]))
    return str(folder / "pod.yaml")


@pytest.mark.parametrize("release", RELEASES)
async def test_simulate_judges_manifests_by_the_release_of_the_cluster(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LocalCluster((), features=Features.of(release)) as cluster:
        words = ["simulate", "--kubeconfig", str(cluster.kubeconfig), "-f", tolerant_manifest(tmp_path)]
        await asyncio.to_thread(main, words)
    dropped = f"tolerations: Kubernetes {release} drops this field"
    assert (dropped in capsys.readouterr().err) == (not Features.of(release).has("DRADeviceTaints"))


@pytest.mark.parametrize("release", RELEASES)
def test_simulate_judges_manifests_on_described_hosts_by_the_release_of_the_command_line(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ["--host", "virtual-machine", "--driver", str(ROOT / "drivers/gpu_example")]
    main(["simulate", "-f", tolerant_manifest(tmp_path), *hosts, "--kubernetes", release])
    dropped = f"tolerations: Kubernetes {release} drops this field"
    assert (dropped in capsys.readouterr().err) == (not Features.of(release).has("DRADeviceTaints"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "p"], "--kubernetes is for --file: a cluster reports its release"),
        (["top", "--once"], "--kubernetes is for --file: a cluster reports its release"),
        (["simulate", "-f", "pod.yaml"], "--kubernetes is for described hosts: a cluster reports its release"),
    ],
)
def test_a_cluster_cannot_be_judged_as_another_release(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--kubernetes", "1.37"]) == 2
    assert message in capsys.readouterr().err


def test_a_release_that_is_not_known_is_an_error_that_names_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "p", "-f", tolerant_manifest(tmp_path), "--kubernetes", "1.20"]) == 2
    assert f"use one of {', '.join(RELEASES)}" in capsys.readouterr().err


async def test_files_without_a_server_follow_the_default_release() -> None:
    assert explain(Snapshot.of([NODE, *objects()]), "p").state is ExplanationState.FITS
