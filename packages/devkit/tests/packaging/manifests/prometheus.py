"""Runs a real Prometheus that scrapes a plugin with deploy/monitoring/scrape.yaml and evaluates deploy/monitoring/alerts.yaml."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
import yaml

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.ports import free_port
from tests.tools.tree import ROOT

FOLDER = ROOT / "deploy/monitoring"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="needs promtool on the PATH (of Debian's package prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="needs prometheus on the PATH (of Debian's package prometheus)"
)
META = {
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "npu",
    "__meta_kubernetes_pod_container_port_name": "http",
    "__meta_kubernetes_pod_node_name": "node-1",
    "__meta_kubernetes_namespace": "npu-system",
    "__meta_kubernetes_pod_name": "npu-x",
    "__meta_kubernetes_pod_container_name": "driver",
}
"""The labels that service discovery sets for a plugin's pod."""


def rules() -> list[JSON]:
    return [r for g in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for r in g["rules"]]


def scraping() -> JSON:
    """Returns the only entry of ``scrape_configs``."""
    (found,) = yaml.safe_load((FOLDER / "scrape.yaml").read_text())["scrape_configs"]
    return dict(found)


class Prometheus:
    """Scrapes ten times a second and evaluates expressions, with unchanged ranges of minutes and hours."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)

    async def ask(self, expression: str) -> list[Mapping[str, str]]:
        """Returns the labels of the series that the expression selects now. Raises ``AssertionError`` if it does not parse."""
        assert self._address.hostname
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            path = "/api/v1/query?" + urlencode({"query": expression})
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        assert b" 200 " in head.splitlines()[0], body
        data = json.loads(body)["data"]
        if data["resultType"] != "vector":
            return [{}]
        return [r["metric"] for r in data["result"]]


@contextlib.asynccontextmanager
async def prometheus(folder: Path, targets: Sequence[tuple[str, Mapping[str, str]]]) -> AsyncIterator[Prometheus]:
    """Starts Prometheus. ``targets`` are URLs with their labels from service discovery."""
    port = free_port()
    entry = {k: v for k, v in scraping().items() if k != "kubernetes_sd_configs"}
    entry["static_configs"] = [{"targets": [urlsplit(u).netloc], "labels": {**META, **labels}} for u, labels in targets]
    config = folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump({"scrape_configs": [{**entry, "scrape_interval": "300ms", "scrape_timeout": "300ms"}]})
    )
    assert PROMETHEUS
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=error",
            f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log,
        )  # fmt: skip
    found = Prometheus(f"http://127.0.0.1:{port}")

    async def up() -> bool:
        with contextlib.suppress(OSError, AssertionError, json.JSONDecodeError):
            return bool(await found.ask("up"))
        return False

    try:
        async with asyncio.timeout(60):
            while not await up():
                assert process.returncode is None, (folder / "prometheus.log").read_text()
                await asyncio.sleep(0.05)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def selects(cluster: LocalCluster, server: Prometheus, expression: str) -> None:
    """Waits until an expression selects a series, because a scrape may time out."""

    async def so() -> bool:
        return bool(await server.ask(expression))

    await cluster.wait(f"{expression} to select something", so, timeout=60)


async def becomes(
    cluster: LocalCluster, server: Prometheus, alert: str, *, true: bool = True
) -> list[Mapping[str, str]]:
    """Waits until the expression of an alert selects a series (``true``) or no series."""
    (expression,) = [r["expr"] for r in rules() if r["alert"] == alert]
    found: list[Mapping[str, str]] = []

    async def so() -> bool:
        found[:] = await server.ask(expression)
        return bool(found) is true

    await cluster.wait(f"{alert} to be {true}", so, timeout=60)
    return found
