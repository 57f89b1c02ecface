"""Limits of the HTTP server: slow, silent or numerous clients never block other clients."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dra_kubeletplugin.base.http_server.server import Limits
from tests.base.http_server.running_server import GET, LARGE, RunningServer, is_closed

# --- memory -------------------------------------------------------------------------------------------


async def test_announced_bodies_that_do_not_arrive_use_no_memory_of_the_limit() -> None:
    async with RunningServer(Limits(body_bytes=1000, buffered_bytes=2000)) as served:
        for _ in range(20):
            head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
            reader, _ = await served.connect(head)
            await reader.readuntil(b"100 \r\n\r\n")
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
        response = await rejected[0].read()
        assert response.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1\r\n" in response and b"2500 bytes" in response
        for client, rest in ((kept, 150), (small, 900)):
            client[1].write(b"x" * rest)
            assert (await client[0].readline()).startswith(b"HTTP/1.1 200 ")


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
    async with RunningServer(Limits(connections=4)) as served:
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
        await served.until_paused(3)
        assert (await served.get()).endswith(b"ok /healthz")
        assert await is_closed(idle)
        served.go_on.set()
        for client in (paused, second, third):
            async with asyncio.timeout(60):
                assert await client[0].readuntil(b"ok /hold")


async def test_probes_are_handled_while_other_requests_are_at_their_limit() -> None:
    async with RunningServer(Limits(connections=64, requests=4)) as served:
        for _ in range(4):
            await served.connect(GET % b"/hold")
        await served.until_paused(4)
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
        await served.until_paused(4)
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


async def test_a_client_that_pipelines_requests_gets_the_first_response_and_is_disconnected() -> None:
    async with RunningServer(Limits()) as served:
        response = await served.exchange(GET % b"/a" + GET % b"/b")
        assert b"Connection: close" in response
        assert response.endswith(b"ok /a")
