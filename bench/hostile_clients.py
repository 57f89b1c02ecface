"""`python -m bench.hostile_clients`: probes of a plugin and of a webhook while 400 hostile clients use them.

Both servers are processes of their own, as in a pod; so are the clients, which connect over the loopback only and stop by themselves.
The aim: each probe gets its response within a second, also from the address that the clients have. The gRPC sockets are not part of
this: they have mode 0600 and belong to root.

``python -m bench.hostile_clients attack URL`` is the process of the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import os
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.apiserver import ROOT, api_server, make_certificate
from bench.deployed import deployed
from dra_devkit.testing.ports import free_port

CLIENTS = 400
AIM = 1.0  # seconds for a probe
EVERY = 0.2  # seconds between probes
_HOLD = 5.0  # seconds after which a hostile client connects again, if the server has not closed its connection
_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(100)
_GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
_POST = b"POST /validate HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    tls: bool
    source: str = "127.0.0.1"  # the address from which a client connects

    @classmethod
    def parse(cls, url: str, source: str = "127.0.0.1") -> Target:
        scheme, _, rest = url.partition("://")
        host, _, port = rest.partition("/")[0].rpartition(":")
        return cls(host, int(port), scheme == "https", source)

    async def connect(self, *, plain: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the server, with a TLS handshake unless ``plain``."""
        tls = _tls() if self.tls and not plain else None
        return await asyncio.open_connection(self.host, self.port, ssl=tls, local_addr=(self.source, 0))


@functools.cache
def _tls() -> ssl.SSLContext:
    """The clients and probes accept any certificate, as the kubelet does."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


async def silence(target: Target) -> None:
    await _send(target, b"", plain=True)


async def half_a_head(target: Target) -> None:
    await _send(target, b"GET /metrics HTTP/1.1\r\nHos")


async def endless_head(target: Target) -> None:
    await _dribble(target, b"GET /metrics HTTP/1.1\r\n", b"X: y\r\n")


async def many_headers(target: Target) -> None:
    await _send(target, b"GET /metrics HTTP/1.1\r\n" + b"a:\r\n" * 4000 + b"\r\n")


async def half_a_body(target: Target) -> None:
    await _send(target, _POST + b"Content-Length: 900\r\n\r\n" + b"x" * 450)


async def most_of_a_large_body(target: Target) -> None:
    await _send(target, _POST + b"Content-Length: 6000000\r\n\r\n" + b"x" * 5_000_000)


async def announced_body(target: Target) -> None:
    await _send(target, _POST + b"Content-Length: 16777216\r\n\r\n")


async def chunks(target: Target) -> None:
    await _dribble(target, _POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")


async def tiny_chunks(target: Target) -> None:
    await _send(target, _POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000)


async def unread_responses(target: Target) -> None:
    await _send(target, (_GET % b"/metrics") * 2000, reads=False)


async def many_requests(target: Target) -> None:
    await _send(target, (_GET % b"/healthz") * 3000)


async def one_request_after_another(target: Target) -> None:
    reader, writer = await target.connect()
    async with _aborting(writer):
        while True:
            writer.write(_GET % b"/metrics")
            await reader.readuntil(b"\r\n\r\n")


async def idle(target: Target) -> None:
    await _send(target, _GET % b"/healthz")


async def old_version(target: Target) -> None:
    await _send(target, b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")


async def reset(target: Target) -> None:
    _, writer = await target.connect(plain=True)
    writer.transport.abort()


async def half_a_hello(target: Target) -> None:
    await _send(target, _HELLO[:60], plain=True)


async def handshake_and_silence(target: Target) -> None:
    await _send(target, b"")


async def handshake_again_and_again(target: Target) -> None:
    _, writer = await target.connect()
    writer.transport.abort()


PLAIN: Sequence[Callable[[Target], Awaitable[None]]] = (
    silence, half_a_head, endless_head, many_headers, half_a_body, most_of_a_large_body, announced_body, chunks, tiny_chunks,
    unread_responses, many_requests, one_request_after_another, idle, old_version, reset,
)  # fmt: skip
TLS = (*PLAIN, half_a_hello, handshake_and_silence, handshake_again_and_again)


@contextlib.asynccontextmanager
async def _aborting(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.transport.abort()


async def _send(target: Target, data: bytes, *, plain: bool = False, reads: bool = True) -> None:
    """Sends, and waits until the server closes the connection."""
    reader, writer = await target.connect(plain=plain)
    async with _aborting(writer):
        writer.write(data)
        if not reads:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not writer.is_closing():  # a write fails after the server closed the connection
                await asyncio.sleep(0.2)
                writer.write(_GET % b"/metrics")
        while await reader.read(65536):
            pass


async def _dribble(target: Target, start: bytes, more: bytes) -> None:
    """Sends a few bytes each second until the server closes the connection."""
    reader, writer = await target.connect()
    async with _aborting(writer):
        writer.write(start)
        while not writer.is_closing() and not reader.at_eof():
            writer.write(more)
            await asyncio.sleep(1)


async def attack(
    url: str, seconds: float, clients: int = CLIENTS, sources: Sequence[str] = ("127.0.0.1",), kinds: Sequence[str] = ()
) -> Counter[str]:
    """Returns the number of connections by kind of client. Each client connects again as soon as its connection ends."""
    every = TLS if url.startswith("https") else PLAIN
    chosen = [k for k in every if not kinds or k.__name__ in kinds]
    until = asyncio.get_running_loop().time() + seconds
    connections: Counter[str] = Counter()

    async def one(number: int) -> None:
        kind, target = chosen[number % len(chosen)], Target.parse(url, sources[number % len(sources)])
        while (remaining := until - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                async with asyncio.timeout(min(_HOLD, remaining)):
                    connections[kind.__name__] += 1
                    await kind(target)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(one(n) for n in range(clients)))
    return connections


@dataclass
class Probes:
    """Probes while a server was attacked: seconds of those that got status 200, and the errors of the others."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ordered = sorted(self.seconds) or [float("nan")]
        half, most = ordered[len(ordered) // 2], ordered[-1]
        failed = f", {len(self.errors)} failed: {Counter(self.errors)}" if self.errors else ""
        return f"{len(self.seconds)} of {len(self.seconds) + len(self.errors)} probes, median {half:.3f} s, slowest {most:.3f} s{failed}"


async def probe(target: Target, path: str = "/healthz", timeout: float = 60.0) -> None:
    """Raises ``OSError``, ``EOFError`` or ``TimeoutError`` if a probe gets no response with status 200."""
    async with asyncio.timeout(timeout):
        reader, writer = await target.connect()
        async with _aborting(writer):
            writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                raise ConnectionError(head.decode("latin-1").partition("\r\n")[0])


async def probes(target: Target, process: asyncio.subprocess.Process) -> Probes:
    """Probes in turn until the process of the clients ends."""
    found = Probes()
    while process.returncode is None:
        began = time.perf_counter()
        try:
            await probe(target)
            found.seconds.append(time.perf_counter() - began)
        except (OSError, EOFError, TimeoutError) as e:
            found.errors.append(f"{type(e).__name__} {e}"[:100])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY):
                await process.wait()
    return found


async def attacked(
    url: str, seconds: float, sources: str = "127.0.0.1", kinds: str = ""
) -> tuple[Probes, Counter[str]]:
    """Probes a server from 127.0.0.1 while hostile clients use it. Also returns the number of their connections by kind."""
    arguments = ["attack", url, "--seconds", str(seconds), "--sources", sources, "--kinds", kinds]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hostile_clients", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    try:
        found = await probes(Target.parse(url), process)
        return found, Counter(json.loads(await process.stdout.read()))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def webhook(folder: Path, driver: str = "bench.drivers:Idle") -> AsyncIterator[tuple[str, int]]:
    """Runs ``dra webhook``, and yields its URL and its process id."""
    folder.mkdir(parents=True, exist_ok=True)
    make_certificate(folder)
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        "webhook",
        driver,
        "--address",
        address,
        "--tls-cert-file",
        folder / "ca.crt",
        "--tls-private-key-file",
        folder / "ca.key",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dra_kubeletplugin", *map(str, arguments), "--log-level", "warning", cwd=ROOT
    )
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError, EOFError):
                    await probe(Target.parse(f"https://{address}"))
                    break
                await asyncio.sleep(0.05)
        yield f"https://{address}", process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def memory(pid: int) -> float:
    """Returns the highest resident memory of a process so far, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def measure(state: Path, seconds: float) -> bool:
    """Prints a row for each server and for clients of one and of many addresses. Returns whether the aim is met."""
    met = True
    many = ",".join(f"127.0.0.{n}" for n in range(2, 52))
    with tempfile.TemporaryDirectory(dir=state) as folder:
        async with (
            api_server(Path(folder) / "api", 0.0) as api,
            deployed("bench.drivers:Many", api, state) as plugin,
            webhook(Path(folder) / "webhook") as (url, pid),
        ):
            for name, at, process in (("plugin", plugin.http, plugin.pid), ("webhook", url, pid)):
                for label, sources in (("the prober's address", "127.0.0.1"), ("50 other addresses", many)):
                    before = memory(process)
                    found, connections = await attacked(at, seconds, sources)
                    met = met and not found.errors and max(found.seconds, default=AIM + 1) <= AIM
                    print(f"{name}, {CLIENTS} clients from {label}, {connections.total()} connections: {found}")
                    print(f"  highest resident memory: {before:.0f} MiB before, {memory(process):.0f} MiB after")
    print(f"aim, each probe within {AIM:g} s: {'met' if met else 'missed'}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile_clients", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("measure", "attack"), default="measure")
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--sources", default="127.0.0.1", help="addresses of the clients, separated by commas")
    parser.add_argument("--kinds", default="", help="kinds of clients, separated by commas; all by default")
    parser.add_argument("--state-dir", type=Path, default=ROOT / ".bench", help="a folder on a real disk")
    args = parser.parse_args()
    if args.what == "attack":
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # writes to connections that the server closed
        kinds = tuple(filter(None, args.kinds.split(",")))
        print(json.dumps(asyncio.run(attack(args.url, args.seconds, CLIENTS, args.sources.split(","), kinds))))
        return
    args.state_dir.mkdir(exist_ok=True)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; {CLIENTS} clients, {args.seconds:g} s each")
    if not asyncio.run(measure(args.state_dir, args.seconds)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
