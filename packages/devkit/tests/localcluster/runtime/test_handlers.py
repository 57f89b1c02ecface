"""Handlers of probes and how they evaluate responses, against servers in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dra_devkit.localcluster.runtime.handlers import perform
from dra_devkit.localcluster.runtime.interface import (
    ContainerError,
    HandlerAction,
    HandlerOccasion,
    Outcome,
    ProbeResult,
)
from tests.helpers.ports import refusing_port

ADDRESS = "127.0.0.1"


async def connect(port: int, timeout: float) -> socket.socket:
    return await asyncio.to_thread(socket.create_connection, (ADDRESS, port), timeout)


class Session:
    """A command that writes ``output`` and ends with ``code``. With the code None it never ends."""

    def __init__(self, output: bytes, code: int | None) -> None:
        self.output = [(1, output)] if output else []
        self.code = code
        self.closed = False

    async def read(self) -> tuple[int, bytes] | None:
        if self.output:
            return self.output.pop()
        if self.code is None:
            await asyncio.Event().wait()
        return None

    async def write(self, data: bytes) -> None: ...

    async def resize(self, width: int, height: int) -> None: ...

    async def wait(self) -> int:
        assert self.code is not None
        return self.code

    async def close(self) -> None:
        self.closed = True


async def run_handler(handler: dict[str, Any], timeout: float = 60, session: Session | None = None) -> Outcome:
    async def run(command: Sequence[str]) -> Session:
        if session is None:
            raise ContainerError(f"exec: {command[0]}: not found")
        return session

    return await perform(HandlerAction(HandlerOccasion.READINESS, handler, timeout), run, connect, ADDRESS)


@contextlib.asynccontextmanager
async def serve(respond: Callable[[bytes], bytes | None]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Starts a server that responds to the head of a request with ``respond(head)``. If this is None, it sends no response."""
    heads: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            response = respond(heads[-1])
            if response is not None:
                writer.write(response)
                writer.close()

    server = await asyncio.start_server(handle, ADDRESS, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads
        for writer in writers:
            writer.close()


async def test_the_exit_code_of_a_command_decides_and_its_output_is_reported() -> None:
    handler = {"exec": {"command": ["check"]}}
    assert await run_handler(handler, session=Session(b"fine", 0)) == Outcome(ProbeResult.PASS, "fine")
    assert await run_handler(handler, session=Session(b"cold", 3)) == Outcome(ProbeResult.FAIL, "cold")


async def test_a_command_that_exceeds_its_timeout_fails_and_is_ended() -> None:
    session = Session(b"", None)
    outcome = await run_handler({"exec": {"command": ["cat", "a b"]}}, 0.05, session)
    assert outcome == Outcome(ProbeResult.FAIL, "command \"cat 'a b'\" timed out")
    assert session.closed


async def test_a_command_that_cannot_start_is_an_error() -> None:
    outcome = await run_handler({"exec": {"command": ["gone"]}})
    assert outcome == Outcome(ProbeResult.ERROR, "rpc error: code = Unknown desc = exec: gone: not found")


@pytest.mark.parametrize(
    ("status", "result"),
    [(200, "PASS"), (204, "PASS"), (304, "PASS"), (399, "PASS"), (400, "FAIL"), (404, "FAIL"), (503, "FAIL")],
)
async def test_a_status_below_400_passes(status: int, result: str) -> None:
    async with serve(lambda _: f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()) as (port, heads):
        headers = [{"name": "X-A", "value": "b"}, {"name": "Host", "value": "example.com"}]
        outcome = await run_handler({"httpGet": {"port": port, "path": "/ready?a=1", "httpHeaders": headers}})
    text = "" if result == "PASS" else f"HTTP probe failed with statuscode: {status}"
    assert outcome == Outcome(ProbeResult[result], text)
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "GET /ready?a=1 HTTP/1.1"
    assert {"X-A: b", "Host: example.com", "User-Agent: kube-probe/1.36"} <= set(lines)
    assert sum(line.startswith("Host:") for line in lines) == 1


async def test_a_redirect_is_followed_on_the_same_host_and_passes_to_another_host() -> None:
    def respond(head: bytes) -> bytes:
        if head.startswith(b"GET /there"):
            return b"HTTP/1.1 500 X\r\n\r\n"
        location = b"http://elsewhere.example.com/" if b"/away" in head else b"/loop" if b"/loop" in head else b"/there"
        return b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"

    async with serve(respond) as (port, heads):
        assert (
            await run_handler({"httpGet": {"port": port, "path": "/"}})
        ).text == "HTTP probe failed with statuscode: 500"
        assert (await run_handler({"httpGet": {"port": port, "path": "/away"}})).result is ProbeResult.PASS
        assert "stopped after 10 redirects" in (await run_handler({"httpGet": {"port": port, "path": "/loop"}})).text
        assert len(heads) == 2 + 1 + 11


async def test_a_silent_invalid_or_missing_server_fails() -> None:
    async with serve(lambda _: None) as (port, _):
        outcome = await run_handler({"httpGet": {"port": port}}, 0.1)
        assert outcome.result is ProbeResult.FAIL
        assert "context deadline exceeded" in outcome.text
    async with serve(lambda _: b"\x00\x01 nonsense\r\n\r\n") as (port, _):
        assert (await run_handler({"httpGet": {"port": port}})).result is ProbeResult.FAIL
    with refusing_port(ADDRESS) as port:
        refused = f"dial tcp {ADDRESS}:{port}: connect: connection refused"
        outcome = await run_handler({"httpGet": {"port": port}})
        assert outcome == Outcome(ProbeResult.FAIL, f'Get "http://{ADDRESS}:{port}/": {refused}')
        assert await run_handler({"tcpSocket": {"port": port}}) == Outcome(ProbeResult.FAIL, refused)


async def test_a_tcp_probe_passes_when_it_connects() -> None:
    with socket.create_server((ADDRESS, 0)) as server:
        assert await run_handler({"tcpSocket": {"port": server.getsockname()[1]}}) == Outcome(ProbeResult.PASS)


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
async def test_a_probe_of_another_host_is_an_error(kind: str) -> None:
    outcome = await run_handler({kind: {"port": 80, "host": "10.1.2.3"}})
    assert outcome.result is ProbeResult.ERROR
    assert "leave `host` out" in outcome.text


async def test_a_grpc_probe_has_the_result_of_the_health_service() -> None:
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"{ADDRESS}:0")
    await server.start()
    try:
        await servicer.set("down", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await run_handler({"grpc": {"port": port, "service": ""}}) == Outcome(ProbeResult.PASS)
        down = await run_handler({"grpc": {"port": port, "service": "down"}})
        assert down == Outcome(ProbeResult.FAIL, 'service unhealthy (responded with "NOT_SERVING")')
        unknown = await run_handler({"grpc": {"port": port, "service": "who"}})
        assert unknown.text.startswith("error: health rpc probe failed: rpc error: code = NOT_FOUND")
    finally:
        await server.stop(None)


async def test_a_server_without_a_health_service_fails() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{ADDRESS}:0")
    await server.start()
    try:
        outcome = await run_handler({"grpc": {"port": port}})
        assert outcome.text.startswith("error: this server does not implement the grpc health protocol")
    finally:
        await server.stop(None)
    with refusing_port(ADDRESS) as port:
        outcome = await run_handler({"grpc": {"port": port}}, 0.2)
    assert outcome.text.startswith('timeout: failed to connect service "127.0.0.1:')
    with socket.create_server((ADDRESS, 0)) as silent:
        assert "within 0.2s" in (await run_handler({"grpc": {"port": silent.getsockname()[1]}}, 0.2)).text
