"""Manifests of workloads, their pods, and waits for their status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import PODS


def workload(api: str, kind: str, name: str, *, image: str = "one", restart: str = "Always", **spec: Any) -> JSON:
    containers = [{"name": "main", "image": image, "command": ["sleep", "infinity"]}]
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers, "restartPolicy": restart}}
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {**selector, "template": template, **spec},
    }


async def wait_for_status(cluster: LocalCluster, resource: Any, name: str, is_expected: Callable[[JSON], bool]) -> JSON:
    """Waits until the status of the object is as expected. Returns the object."""
    latest: JSON = {}

    async def check() -> JSON | None:
        nonlocal latest
        latest = await cluster.client.get(resource, name, "default")
        return latest if is_expected(latest.get("status") or {}) else None

    try:
        current: JSON = await cluster.wait(f"{resource.plural} {name}", check)
    except TimeoutError as e:
        raise AssertionError(f"{e}: {latest.get('status')}; {cluster.events()}") from None
    return current


async def pods(cluster: LocalCluster) -> list[JSON]:
    listed: list[JSON] = (await cluster.client.list(PODS, "default"))["items"]
    return [p for p in listed if not p["metadata"].get("deletionTimestamp")]
