"""What a probe's handler asks and what it makes of the answer, against servers of this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dra_kubeletplugin.localcluster.runtime.handlers import perform
from dra_kubeletplugin.localcluster.runtime.interface import (
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
    """A command that writes ``output`` and ends with ``code``, never where that is None."""

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


async def ask(handler: dict[str, Any], timeout: float = 60, session: Session | None = None) -> Outcome:
    async def run(command: Sequence[str]) -> Session:
        if session is None:
            raise ContainerError(f"exec: {command[0]}: not found")
        return session

    return await perform(HandlerAction(HandlerOccasion.READINESS, handler, timeout), run, connect, ADDRESS)


@contextlib.asynccontextmanager
async def serving(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that answers a request's head with ``answer`` of it, and never where that is None."""
    heads: list[bytes] = []
    open_now: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            said = answer(heads[-1])
            if said is not None:
                writer.write(said)
                writer.close()

    server = await asyncio.start_server(talk, ADDRESS, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads
        for writer in open_now:
            writer.close()


async def test_a_command_passes_or_fails_with_its_exit_code_and_reports_its_output() -> None:
    handler = {"exec": {"command": ["check"]}}
    assert await ask(handler, session=Session(b"fine", 0)) == Outcome(ProbeResult.PASS, "fine")
    assert await ask(handler, session=Session(b"cold", 3)) == Outcome(ProbeResult.FAIL, "cold")


async def test_a_command_that_takes_too_long_fails_and_is_ended() -> None:
    session = Session(b"", None)
    found = await ask({"exec": {"command": ["cat", "a b"]}}, 0.05, session)
    assert found == Outcome(ProbeResult.FAIL, "command \"cat 'a b'\" timed out")
    assert session.closed


async def test_a_command_that_cannot_be_started_is_no_answer() -> None:
    found = await ask({"exec": {"command": ["gone"]}})
    assert found == Outcome(ProbeResult.ERROR, "rpc error: code = Unknown desc = exec: gone: not found")


@pytest.mark.parametrize(
    ("status", "result"),
    [(200, "PASS"), (204, "PASS"), (304, "PASS"), (399, "PASS"), (400, "FAIL"), (404, "FAIL"), (503, "FAIL")],
)
async def test_a_status_below_400_passes(status: int, result: str) -> None:
    async with serving(lambda _: f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()) as (port, heads):
        headers = [{"name": "X-A", "value": "b"}, {"name": "Host", "value": "example.com"}]
        found = await ask({"httpGet": {"port": port, "path": "/ready?a=1", "httpHeaders": headers}})
    text = "" if result == "PASS" else f"HTTP probe failed with statuscode: {status}"
    assert found == Outcome(ProbeResult[result], text)
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "GET /ready?a=1 HTTP/1.1"
    assert {"X-A: b", "Host: example.com", "User-Agent: kube-probe/1.36"} <= set(lines)
    assert sum(line.startswith("Host:") for line in lines) == 1


async def test_a_redirect_is_followed_on_the_same_host_and_counts_as_success_elsewhere() -> None:
    def answer(head: bytes) -> bytes:
        if head.startswith(b"GET /there"):
            return b"HTTP/1.1 500 X\r\n\r\n"
        where = b"http://elsewhere.example.com/" if b"/away" in head else b"/loop" if b"/loop" in head else b"/there"
        return b"HTTP/1.1 302 Found\r\nLocation: " + where + b"\r\nContent-Length: 0\r\n\r\n"

    async with serving(answer) as (port, heads):
        assert (await ask({"httpGet": {"port": port, "path": "/"}})).text == "HTTP probe failed with statuscode: 500"
        assert (await ask({"httpGet": {"port": port, "path": "/away"}})).result is ProbeResult.PASS
        assert "stopped after 10 redirects" in (await ask({"httpGet": {"port": port, "path": "/loop"}})).text
        assert len(heads) == 2 + 1 + 11


async def test_a_server_that_is_silent_talks_nonsense_or_is_not_there_fails() -> None:
    async with serving(lambda _: None) as (port, _):
        found = await ask({"httpGet": {"port": port}}, 0.1)
        assert found.result is ProbeResult.FAIL
        assert "context deadline exceeded" in found.text
    async with serving(lambda _: b"\x00\x01 nonsense\r\n\r\n") as (port, _):
        assert (await ask({"httpGet": {"port": port}})).result is ProbeResult.FAIL
    with refusing_port(ADDRESS) as port:
        refused = f"dial tcp {ADDRESS}:{port}: connect: connection refused"
        found = await ask({"httpGet": {"port": port}})
        assert found == Outcome(ProbeResult.FAIL, f'Get "http://{ADDRESS}:{port}/": {refused}')
        assert await ask({"tcpSocket": {"port": port}}) == Outcome(ProbeResult.FAIL, refused)


async def test_a_connection_is_enough_for_a_tcp_probe() -> None:
    with socket.create_server((ADDRESS, 0)) as server:
        assert await ask({"tcpSocket": {"port": server.getsockname()[1]}}) == Outcome(ProbeResult.PASS)


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket"])
async def test_another_host_is_no_answer_since_it_cannot_be_reached(kind: str) -> None:
    found = await ask({kind: {"port": 80, "host": "10.1.2.3"}})
    assert found.result is ProbeResult.ERROR
    assert "leave `host` out" in found.text


async def test_a_health_service_is_believed() -> None:
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"{ADDRESS}:0")
    await server.start()
    try:
        await servicer.set("down", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await ask({"grpc": {"port": port, "service": ""}}) == Outcome(ProbeResult.PASS)
        down = await ask({"grpc": {"port": port, "service": "down"}})
        assert down == Outcome(ProbeResult.FAIL, 'service unhealthy (responded with "NOT_SERVING")')
        unknown = await ask({"grpc": {"port": port, "service": "who"}})
        assert unknown.text.startswith("error: health rpc probe failed: rpc error: code = NOT_FOUND")
    finally:
        await server.stop(None)


async def test_a_server_without_a_health_service_or_none_at_all_fails() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{ADDRESS}:0")
    await server.start()
    try:
        found = await ask({"grpc": {"port": port}})
        assert found.text.startswith("error: this server does not implement the grpc health protocol")
    finally:
        await server.stop(None)
    with refusing_port(ADDRESS) as port:
        found = await ask({"grpc": {"port": port}}, 0.2)
    assert found.text.startswith('timeout: failed to connect service "127.0.0.1:')
    with socket.create_server((ADDRESS, 0)) as silent:
        assert "within 0.2s" in (await ask({"grpc": {"port": silent.getsockname()[1]}}, 0.2)).text
