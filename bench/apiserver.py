"""The local API server over HTTPS in its own process, so that it shares neither event loop nor interpreter lock with the client.

``python -m bench.apiserver FOLDER DELAY [NODES PODS CLAIMS]`` serves until its input ends, with the cluster of ``bench.fleet_cluster``
if its size is given. For each line of input it prints one line of counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from bench import fleet_cluster
from dra_devkit.commands import gc_tuning
from dra_devkit.localcluster.apiserver import ApiServer, Tokens
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.kube import ApiConfig, KubeClient, config

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Counts:
    """Counts since the server started. ``connections`` are TLS handshakes; ``requests`` are without watches.

    Args:
        selected: requests by "VERB plural selector", or "WATCH plural selector", without the values in the selector.
        sent: bytes of all responses except watches.
        cpu: seconds of CPU time.
    """

    connections: int
    requests: dict[str, int]  # by "VERB plural"
    selected: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    cpu: float = 0.0

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.connections - before.connections,
            _more(self.requests, before.requests),
            _more(self.selected, before.selected),
            self.sent - before.sent,
            self.cpu - before.cpu,
        )


def _more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    fresh = {k: n - before.get(k, 0) for k, n in after.items()}
    return {k: n for k, n in fresh.items() if n}


class CountingServer(ApiServer):
    """Counts requests with their selectors, and the bytes of responses."""

    selected: Counter[str]
    sent = 0

    async def _handle(self, request: Request) -> Response:
        verb = "WATCH" if request.query.get("watch") == "true" else request.method
        fields = [term.partition("=")[0] + "=" for term in request.query.get("fieldSelector", "").split(",") if term]
        self.selected[" ".join([verb, plural(request.path), ",".join(fields)]).strip()] += 1
        response = await super()._handle(request)
        self.sent += len(response.body)
        return response


class Api:
    """The running server, as clients see it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, folder: Path) -> None:
        self._process = process
        self.url = url
        self.ca = folder / "ca.crt"
        self.folder = folder  # laid out like the service account of a pod
        self.client = KubeClient(in_pod(url, folder))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    async def counts(self, command: str = "") -> Counts:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(command.encode() + b"\n")
        return Counts(**json.loads(await self._process.stdout.readline()))

    async def close_port(self) -> Counts:
        """Makes the server close its port and all connections. Its objects stay."""
        return await self.counts("close port")

    async def open_port(self) -> Counts:
        """Makes the server listen on its port again."""
        return await self.counts("open port")


def in_pod(url: str, folder: Path) -> ApiConfig:
    """Returns the configuration of a pod with the service account in ``folder``."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    os.environ |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return config.load_config(service_account=folder)


@contextlib.asynccontextmanager
async def api_server(folder: Path, delay: float, size: fleet_cluster.Size | None = None) -> AsyncIterator[Api]:
    """Runs a server that delays each response by ``delay`` seconds. Writes its certificate to ``folder``.

    Args:
        size: the size of the cluster that the server has from the start; None for an empty one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make_certificate(folder)
    (folder / "token").write_text("bench")
    (folder / "namespace").write_text("dra-system")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.apiserver", str(folder), str(delay), *map(str, astuple(size) if size else ())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin
    assert process.stdout
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise RuntimeError("the API server did not start: see its error above")
        api = Api(process, url, folder)
        try:
            yield api
        finally:
            await api.client.close()
    finally:
        process.stdin.close()
        await process.wait()


def make_certificate(folder: Path) -> None:
    """Writes ``ca.crt`` and ``ca.key`` for the loopback address, valid for a day. Raises ``FileNotFoundError`` without openssl."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")]
    subprocess.run(command, check=True, capture_output=True)


async def serve(folder: Path, delay: float, size: fleet_cluster.Size | None) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "ca.crt", folder / "ca.key")
    connections = 0

    def hello(*_: object) -> None:
        nonlocal connections
        connections += 1

    tls.sni_callback = hello  # called once a handshake, with or without a name
    server = CountingServer(tls=tls, tokens=Tokens((folder / "token").read_text()))
    server.selected = Counter()
    server.injected_faults.delay = delay
    for resource, obj in fleet_cluster.objects(size) if size else ():
        server.storage.put(resource, obj, fresh=True)
    gc_tuning.settle()  # as `dra dev` does
    print(await server.start(), flush=True)
    address = server.url.removeprefix("https://")
    while command := await asyncio.to_thread(sys.stdin.readline):
        if command == "close port\n":
            await server.close()
        elif command == "open port\n":
            before, selected = server, server.selected
            server = CountingServer(address, tls, before.storage, before.tokens)
            server.selected, server.sent, server.injected_faults = selected, before.sent, before.injected_faults
            await server.start()
        requests: dict[str, int] = {}
        for verb, path in server.injected_faults.calls:
            key = f"{verb} {plural(path)}"
            requests[key] = requests.get(key, 0) + 1
        counts = Counts(connections, requests, dict(server.selected), server.sent, time.process_time())
        print(json.dumps(asdict(counts)), flush=True)
    await server.close()


def plural(path: str) -> str:
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    if not parts:
        return "versions"  # discovery
    return parts[2] if len(parts) > 2 and parts[0] == "namespaces" else parts[0]


if __name__ == "__main__":
    wanted = fleet_cluster.Size(*map(int, sys.argv[3:])) if sys.argv[3:] else None
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2]), wanted))
