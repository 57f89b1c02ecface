"""Limits of the HTTP server: slow, silent or numerous clients never block other clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin.base.http_server.server import HttpServer, Limits, Request, Response

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * 300_000


class RunningServer:
    """A server whose handler waits for ``go_on`` at the path ``paused_path``."""

    def __init__(self, limits: Limits, paused_path: str = "/hold") -> None:
        self.paused_path = paused_path
        self.server = HttpServer(self._handle, limits=limits)
        self.go_on = asyncio.Event()
        self.paused = 0
        self.port = 0
        self._clients: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> RunningServer:
        self.port = int((await self.server.start()).rpartition(":")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._clients:
            writer.transport.abort()
        await self.server.close()

    async def _handle(self, request: Request) -> Response:
        if request.path == self.paused_path:
            self.paused += 1
            await self.go_on.wait()
        return Response(200, LARGE if request.path == "/large" else b"ok " + request.path.encode(), "text/plain")

    async def connect(self, data: bytes = b"", source: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        self._clients.append(writer)
        writer.write(data)
        return reader, writer

    async def get(self, path: str = "/healthz", source: str = "127.0.0.1") -> bytes:
        return await self.exchange(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode(), source)

    async def post(self, body: bytes) -> bytes:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        return await self.exchange(head + body)

    async def exchange(self, data: bytes, source: str = "127.0.0.1") -> bytes:
        async with asyncio.timeout(60):
            reader, writer = await self.connect(data, source)
            response = await reader.read()
            writer.transport.abort()
            return response

    async def until(self, open_connections: int) -> None:
        async with asyncio.timeout(60):
            while len(self.server._tasks) != open_connections:
                await asyncio.sleep(0.01)


async def is_closed(client: Client, seconds: float = 60.0) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while await client[0].read(65536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


# --- memory -------------------------------------------------------------------------------------------


async def test_announced_bodies_that_do_not_arrive_use_no_memory_of_the_limit() -> None:
    async with RunningServer(Limits(body_bytes=1000, buffered_bytes=2000)) as served:
        for _ in range(20):
            await served.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        await served.until(20)
        for _ in range(20):
            assert (await served.post(b"x" * 1000)).startswith(b"HTTP/1.1 200 ")


async def test_the_server_rejects_a_too_large_body_by_its_announced_length() -> None:
    async with RunningServer(Limits(body_bytes=1000)) as served:
        for length in (b"1001", b"9" * 18, b"9" * 20):
            head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n"
            reader, _ = await served.connect(head)
            async with asyncio.timeout(60):
                assert (await reader.readline()).split()[1] == b"413"


async def test_the_server_rejects_the_largest_oldest_request_above_the_memory_limit() -> None:
    async with RunningServer(Limits(body_bytes=1000, buffered_bytes=2500)) as served, asyncio.timeout(60):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        clients = []
        for size in (100, 900, 850):
            clients.append(await served.connect(head + b"x" * size))
            while served.server.connections.buffered < sum((100, 900, 850)[: len(clients)]):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        assert (await served.post(b"x" * 1000)).startswith(b"HTTP/1.1 200 ")
        small, rejected, kept = clients
        assert (await rejected[0].readline()).startswith(b"HTTP/1.1 429 ")
        for client, rest in ((kept, 150), (small, 900)):
            client[1].write(b"x" * rest)
            assert (await client[0].readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_client_rejected_for_memory_receives_a_retry_after_header() -> None:
    async with RunningServer(Limits(body_bytes=1000, buffered_bytes=1500)) as served:
        reader, _ = await served.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b"x" * 900)
        async with asyncio.timeout(60):
            while served.server.connections.buffered < 900:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert (await served.post(b"x" * 1000)).startswith(b"HTTP/1.1 200 ")
            response = await reader.read()
        assert response.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1\r\n" in response
        assert b"1500 bytes" in response
        assert served.server.connections.buffered == 0


async def test_unread_responses_are_bounded_and_do_not_block_probes() -> None:
    limits = Limits(connections=64, buffered_bytes=1_000_000, socket_bytes=32 * 1024)
    async with RunningServer(limits) as served:
        for _ in range(200):
            _, writer = await served.connect(GET % b"/large" * 50)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(20):
            assert (await served.get()).endswith(b"ok /healthz")
            assert served.server.connections.buffered <= 1_000_000
        assert len(await served.get("/large")) > len(LARGE)


async def test_the_kernel_buffers_only_a_small_part_of_an_unread_response() -> None:
    async with RunningServer(Limits(socket_bytes=16 * 1024)) as served:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", served.port))
            client.sendall(GET % b"/large")
            async with asyncio.timeout(60):
                while not served.server.connections.buffered:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert served.server.connections.buffered == len(LARGE)  # The kernel has not accepted the whole response.


# --- connections --------------------------------------------------------------------------------------


async def test_the_server_closes_unfinished_requests_first_then_idle_ones_and_never_handled_ones() -> None:
    async with RunningServer(Limits(connections=5)) as served:  # one address may have four of them
        idle = await served.connect(GET % b"/")
        await idle[0].readuntil(b"ok /")
        slow = await served.connect(b"GET / HTTP")
        paused = await served.connect(GET % b"/hold")
        await asyncio.sleep(1.1)  # After one second, an unfinished request is slow and not only new.
        second = await served.connect(GET % b"/hold")
        assert (await served.get()).endswith(b"ok /healthz")
        assert await is_closed(slow)
        assert not await is_closed(idle, 0.05)
        third = await served.connect(GET % b"/hold")
        async with asyncio.timeout(60):
            while served.paused < 3:
                await asyncio.sleep(0.01)
        assert (await served.get()).endswith(b"ok /healthz")
        assert await is_closed(idle)
        served.go_on.set()
        for client in (paused, second, third):
            async with asyncio.timeout(60):
                assert await client[0].readuntil(b"ok /hold")


async def test_one_address_has_at_most_three_quarters_of_the_connections() -> None:
    async with RunningServer(Limits(connections=8)) as served:
        others = []
        for number in (2, 3):
            others.append(await served.connect(GET % b"/", f"127.0.0.{number}"))
            await others[-1][0].readuntil(b"ok /")
        clients = [await served.connect(b"GET /") for _ in range(30)]
        assert (await served.get()).endswith(b"ok /healthz")  # from the same address
        assert (await served.get(source="127.0.0.4")).endswith(b"ok /healthz")
        assert not any([await is_closed(client, 0.05) for client in others])
        closed = [await is_closed(client, 0.05) for client in clients]
        assert closed.count(True) >= 30 - 6
        assert closed == sorted(closed, reverse=True)  # the oldest first


async def test_an_address_is_rejected_when_handled_requests_use_its_share_and_others_are_not() -> None:
    async with RunningServer(Limits(connections=8)) as served:
        paused = [await served.connect(GET % b"/hold") for _ in range(6)]
        async with asyncio.timeout(60):
            while served.paused < 6:
                await asyncio.sleep(0.01)
        assert (await served.get(source="127.0.0.2")).endswith(b"ok /healthz")
        assert await is_closed(await served.connect(GET % b"/"))
        served.go_on.set()
        for reader, _ in paused:
            async with asyncio.timeout(60):
                assert await reader.readuntil(b"ok /hold")


async def test_probes_are_handled_while_other_requests_are_at_their_limit() -> None:
    async with RunningServer(Limits(connections=64, requests=4)) as served:
        for _ in range(4):
            await served.connect(GET % b"/hold")
        async with asyncio.timeout(60):
            while served.paused < 4:
                await asyncio.sleep(0.01)
        rejected = await served.get("/metrics")
        assert rejected.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1\r\n" in rejected
        for path in ("/healthz", "/readyz"):
            assert (await served.get(path)).startswith(b"HTTP/1.1 200 ")
        served.go_on.set()


async def test_hanging_readiness_probes_do_not_block_liveness_probes_and_metrics() -> None:
    async with RunningServer(Limits(connections=64, requests=4), paused_path="/readyz") as served:
        for _ in range(30):
            await served.connect(GET % b"/readyz")
        async with asyncio.timeout(60):
            while served.paused < 4:
                await asyncio.sleep(0.01)
        assert (await served.get("/readyz")).startswith(b"HTTP/1.1 429 ")
        for path in ("/healthz", "/metrics"):
            assert (await served.get(path)).startswith(b"HTTP/1.1 200 ")
        served.go_on.set()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 100, b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 100 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000, b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1000, b"400"),
    ],
    ids=["many lines", "many lines, complete", "a long line", "a long line, complete", "tiny chunks"],
)
async def test_the_server_rejects_requests_that_are_expensive_to_parse(sent: bytes, status: bytes) -> None:
    async with RunningServer(Limits(head_bytes=16 * 1024, head_lines=64)) as served:
        reader, _ = await served.connect(sent)
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == status


async def test_clients_that_pipeline_requests_do_not_block_other_clients() -> None:
    async with RunningServer(Limits(connections=16)) as served:
        for _ in range(40):
            await served.connect(GET % b"/" * 5000)
        for _ in range(20):
            assert (await served.get()).endswith(b"ok /healthz")


# --- descriptors --------------------------------------------------------------------------------------

WITHOUT_DESCRIPTORS = """
import asyncio, resource, os
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from dra_kubeletplugin.base.http_server.server import PROBES, HttpServer, Response
async def main():
    async def respond(request):
        return Response(200, b"ok", "text/plain")
    server = HttpServer(respond, limits=PROBES)
    print(await server.start(), server.connections.most, flush=True)
    while True:
        if await asyncio.to_thread(input) == "exhaust":
            kept = []
            try:
                while True:
                    kept.append(os.dup(0))
            except OSError:
                print("exhausted", len(kept), flush=True)
asyncio.run(main())
"""


def test_a_process_without_free_descriptors_responds_to_probes() -> None:
    """Clients may use half of the descriptors. If other code uses the rest, the server closes connections for a probe."""
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS],
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdin
        assert process.stdout
        url, most = process.stdout.readline().split()
        assert int(most) == 32
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(20):
            stack.enter_context(socket.create_connection(address, timeout=60))
        assert _probe(address) == b"HTTP/1.1 200 "
        process.stdin.write("exhaust\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("exhausted")
        for _ in range(5):
            assert _probe(address) == b"HTTP/1.1 200 "


def _probe(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return client.recv(13)


async def test_the_server_uses_at_most_half_of_the_descriptors_for_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert HttpServer(_empty_response, limits=Limits(connections=128)).connections.most == 100
        assert HttpServer(_empty_response, limits=Limits(connections=50)).connections.most == 50
        assert HttpServer(_empty_response).connections.most is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _empty_response(request: Request) -> Response:
    return Response()
