"""``--apply`` creates objects like `kubectl apply`: with the same annotation, and it removes deleted fields."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.dev import manifests
from dra_kubeletplugin.kube.resource import CLASSES, NODES, PODS, Resource

ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "labels": {"b": "1", "a": "2"},
        "annotations": {"note": "a <b> & 'c'\u2028 \u00e9 \U0001f600"},
    },
    "spec": {
        "containers": [
            {"name": "main", "image": "busybox", "resources": {"limits": {"cpu": 2, "memory": "64Mi"}}, "tty": True}
        ]
    },
}
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "c"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver > "a" && device.driver < "b"'}}]},
}


async def apply(cluster: LocalCluster, folder: Path, *documents: dict[str, Any]) -> Path:
    path = folder / "given.yaml"
    path.write_text(yaml.safe_dump_all(documents, allow_unicode=True))
    await manifests.apply(cluster, manifests.read([path], cluster.features))
    return path


async def annotation(cluster: LocalCluster, resource: Resource, name: str, namespace: str = "") -> str:
    return str((await cluster.client.get(resource, name, namespace))["metadata"]["annotations"][ANNOTATION])


@pytest.mark.kubectl
async def test_kubectl_apply_changes_no_object_of_the_apply_option(tmp_path: Path) -> None:
    async with LocalCluster() as cluster:
        path = await apply(cluster, tmp_path, POD, CLASS)
        before = [await annotation(cluster, PODS, "p", "default"), await annotation(cluster, CLASSES, "c")]
        command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", str(tmp_path / "cache")]
        done = await asyncio.to_thread(
            subprocess.run, [*command, "apply", "-f", str(path)], capture_output=True, text=True, check=False
        )
        assert (done.stderr, done.returncode) == ("", 0), "no warning"
        assert "deviceclass.resource.k8s.io/c unchanged" in done.stdout
        assert before == [await annotation(cluster, PODS, "p", "default"), await annotation(cluster, CLASSES, "c")]


async def test_a_second_apply_removes_only_fields_of_the_first_apply(tmp_path: Path) -> None:
    first = {"a": "1", "b": "2"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": first}}
    async with LocalCluster() as cluster:
        before = (await cluster.client.get(NODES, "node-1"))["metadata"]["labels"]
        await apply(cluster, tmp_path, node)
        await apply(cluster, tmp_path, {**node, "metadata": {"name": "node-1", "labels": {"b": "3"}}})
        meta = (await cluster.client.get(NODES, "node-1"))["metadata"]
        assert meta["labels"] == {**before, "b": "3"}
        assert json.loads(meta["annotations"][ANNOTATION])["metadata"]["labels"] == {"b": "3"}


async def test_an_annotation_that_is_not_json_is_replaced(tmp_path: Path) -> None:
    async with LocalCluster(nodes=()) as cluster:
        await cluster.apply({**CLASS, "metadata": {"name": "c", "annotations": {ANNOTATION: "{"}}})
        await apply(cluster, tmp_path, CLASS)
        meta = (await cluster.client.get(CLASSES, "c"))["metadata"]
        assert json.loads(meta["annotations"][ANNOTATION])["metadata"] == {"annotations": {}, "name": "c"}
