"""A real plugin and a real webhook respond to every probe while 400 hostile clients use their ports.

``python -m bench.hostile_clients`` measures the response times. A busy machine does not allow limits in seconds here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import urllib.error
from collections import Counter
from pathlib import Path

import pytest

from bench import hostile_clients
from bench.apiserver import api_server
from bench.deployed import Deployed, deployed

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl, to make certificates")
SECONDS = 6.0
POST = b"POST /validate HTTP/1.1\r\nHost: x\r\n"


def assert_probes_succeeded(probes: hostile_clients.Probes, connections: Counter[str], kinds: int) -> None:
    print(probes, dict(connections))
    assert not probes.errors
    assert probes.seconds
    assert len(connections) == kinds
    assert connections.total() > hostile_clients.CLIENTS  # closed clients connect again


async def fetch_page(plugin: Deployed, path: str) -> str:
    """Returns the page once the server has finished the requests that the attack left behind (429 until then)."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await plugin.probe(path)
            except urllib.error.HTTPError as e:
                if e.code != 429:
                    raise
            await asyncio.sleep(0.1)


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_a_plugin_responds_to_probes_during_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):  # the bench sets these itself
        monkeypatch.setenv(name, "")
    with tempfile.TemporaryDirectory() as socket_folder:  # the path of a socket has at most 107 bytes
        async with (
            api_server(tmp_path, delay=0) as api,
            deployed("bench.drivers:Idle", api, Path(socket_folder)) as plugin,
        ):
            probes, connections = await hostile_clients.attacked(plugin.http, SECONDS)
            assert_probes_succeeded(probes, connections, len(hostile_clients.PLAIN))
            assert await fetch_page(plugin, "/metrics")


@pytest.mark.full
async def test_a_webhook_responds_to_reviews_during_incomplete_requests(tmp_path: Path) -> None:
    async with hostile_clients.webhook(tmp_path) as (url, _), contextlib.AsyncExitStack() as stack:
        target = hostile_clients.Target.parse(url)
        for _ in range(20):
            _, writer = await target.connect()
            stack.callback(writer.close)
            writer.write(POST + b"Content-Length: 6000000\r\n\r\n" + b"x" * 1000)
        request = {"uid": "u", "operation": "CREATE", "object": {"kind": "ResourceClaim", "spec": {}}}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        body = json.dumps(review | {"padding": "x" * 1_000_000}).encode()
        for _ in range(20):
            reader, writer = await target.connect()
            stack.callback(writer.close)
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_a_webhook_responds_to_probes_during_an_attack(tmp_path: Path) -> None:
    async with hostile_clients.webhook(tmp_path) as (url, pid):
        probes, connections = await hostile_clients.attacked(url, SECONDS)
        assert_probes_succeeded(probes, connections, len(hostile_clients.TLS))
        assert hostile_clients.memory(pid) < 384  # the limit in deploy/
