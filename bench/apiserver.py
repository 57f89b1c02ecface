"""The local API server over HTTPS in its own process, so that it shares neither event loop nor interpreter lock with the client.

``python -m bench.apiserver FOLDER DELAY`` serves until its input ends. For each line of input it prints one line of counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from dra_kubeletplugin.kube import ApiConfig, KubeClient, config
from dra_kubeletplugin.localcluster.apiserver import ApiServer, Tokens

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Counts:
    """Counts since the server started. ``connections`` are TLS handshakes; ``requests`` are without watches."""

    connections: int
    requests: dict[str, int]  # by "VERB plural"

    def since(self, before: Counts) -> Counts:
        fresh = {k: n - before.requests.get(k, 0) for k, n in self.requests.items()}
        return Counts(self.connections - before.connections, {k: n for k, n in fresh.items() if n})


class Api:
    """The running server, as clients see it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, folder: Path) -> None:
        self._process = process
        self.url = url
        self.ca = folder / "ca.crt"
        self.folder = folder  # laid out like the service account of a pod
        self.client = KubeClient(in_pod(url, folder))

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    async def counts(self) -> Counts:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(b"\n")
        return Counts(**json.loads(await self._process.stdout.readline()))


def in_pod(url: str, folder: Path) -> ApiConfig:
    """Returns the configuration of a pod with the service account in ``folder``."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    os.environ |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return config.load_config(service_account=folder)


@contextlib.asynccontextmanager
async def api_server(folder: Path, delay: float) -> AsyncIterator[Api]:
    """Runs a server that delays each response by ``delay`` seconds. Writes its certificate to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    make_certificate(folder)
    (folder / "token").write_text("bench")
    (folder / "namespace").write_text("dra-system")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.apiserver", str(folder), str(delay)),
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


async def serve(folder: Path, delay: float) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "ca.crt", folder / "ca.key")
    connections = 0

    def hello(*_: object) -> None:
        nonlocal connections
        connections += 1

    tls.sni_callback = hello  # called once a handshake, with or without a name
    server = ApiServer(tls=tls, tokens=Tokens((folder / "token").read_text()))
    server.injected_faults.delay = delay
    print(await server.start(), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        requests: dict[str, int] = {}
        for verb, path in server.injected_faults.calls:
            key = f"{verb} {plural(path)}"
            requests[key] = requests.get(key, 0) + 1
        print(json.dumps({"connections": connections, "requests": requests}), flush=True)
    await server.close()


def plural(path: str) -> str:
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    return parts[2] if len(parts) > 2 and parts[0] == "namespaces" else parts[0]


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2])))
