"""The HTTP server: it serves probes on IPv4 and IPv6 while other clients are connected."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from dra_kubeletplugin.base.http_server.server import PROBES, HttpServer, Limits, Request, Response
from tests.helpers.certificates import authority, server_side, signed


class PausedHandler:
    """Pauses the handler of ``/pause``: sets ``started`` when a request arrives, and waits for ``go_on``."""

    def __init__(self) -> None:
        self.started, self.go_on = asyncio.Event(), asyncio.Event()


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None,
    address: str = "127.0.0.1:0",
    pause: PausedHandler | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    async def handle(request: Request) -> Response:
        if pause and request.path == "/hold":
            pause.started.set()
            await pause.go_on.wait()
        return Response(200, b"ok " + request.path.encode(), "text/plain")

    server = HttpServer(handle, address, tls, limits)
    url = await server.start()
    try:
        yield int(url.rpartition(":")[2])
    finally:
        await server.close()


async def get(port: int, path: str = "/healthz", host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> bytes:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return response


async def wait_for_closed(readers: Iterable[asyncio.StreamReader], count: int) -> None:
    """Waits until the server has closed ``count`` connections."""
    waiting = {asyncio.create_task(closed(reader, 120)) for reader in readers}
    try:
        async with asyncio.timeout(60):
            while count > 0:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                count -= len(done)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def closed(reader: asyncio.StreamReader, timeout: float = 30) -> bool:
    """Returns whether the server closes a connection, also by a reset."""
    try:
        async with asyncio.timeout(timeout):
            while await reader.read(1000):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_without_a_host_serves_ipv4_and_ipv6(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    async with serving(PROBES, ":0") as port:
        assert (await get(port, host=host)).endswith(b"ok /healthz")


async def test_the_url_of_an_ipv6_address_is_valid() -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    server = HttpServer(lambda request: asyncio.sleep(0, Response(200)), "[::1]:0")
    assert (await server.start()).startswith("http://[::1]:")
    await server.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT"], ids=["nothing", "half a line"])
async def test_the_server_responds_to_probes_while_500_clients_hold_connections(sent: bytes) -> None:
    long_timeouts = dataclasses.replace(PROBES, head_timeout=600, idle_timeout=600)
    async with serving(long_timeouts) as port, contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(500):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            writer.write(sent)
            connections.append((reader, writer))
        for _ in range(10):
            assert (await get(port)).endswith(b"ok /healthz")
        await wait_for_closed((r for r, _ in connections), 500 - 128)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
async def test_the_server_limits_number_and_duration_of_unfinished_handshakes(tmp_path: Path, sent: bytes) -> None:
    ca = authority(tmp_path)
    tls, client_tls = server_side(signed(tmp_path, ca, "server")), ssl.create_default_context(cafile=ca.cert)
    client_tls.verify_flags &= (
        ~ssl.VERIFY_X509_STRICT
    )  # Python 3.13 sets this flag; the test certificate does not meet it.
    async with serving(Limits(connections=8, head_timeout=600), tls=tls) as port, contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            writer.write(sent)
            connections.append((reader, writer))
        assert (await get(port, tls=client_tls)).endswith(b"ok /healthz")
        await wait_for_closed((r for r, _ in connections), 100 - 8)
    async with serving(Limits(head_timeout=0.1), tls=tls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader)
        writer.transport.abort()


async def test_the_server_closes_the_longest_idle_connection_for_a_new_one() -> None:
    async with serving(Limits(connections=2)) as port, contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok /")
            connections.append((reader, writer))
        assert await closed(connections[0][0])
        assert not await closed(connections[1][0], 0.1)


async def test_a_cancelled_close_releases_the_address_and_closes_connections() -> None:
    """A stop with a timeout cancels the close. The test cancels after each step of the close."""
    for steps in range(5):
        server = HttpServer(lambda request: asyncio.sleep(0, Response(200)))
        port = int((await server.start()).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closing = asyncio.create_task(server.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        if steps:  # the close has begun
            assert await closed(reader), steps
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
        await server.close()


async def test_the_server_does_not_abort_a_handled_request_for_a_new_client() -> None:
    pause = PausedHandler()
    async with serving(Limits(connections=1), pause=pause) as port:
        first = asyncio.create_task(get(port, "/hold"))
        await pause.started.wait()
        other = asyncio.create_task(get(port))
        assert not (await asyncio.wait({first, other}, timeout=0.3))[0]
        pause.go_on.set()
        assert (await first).endswith(b"ok /hold")
        assert (await other).endswith(b"ok /healthz")


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        (Limits(idle_timeout=0.1), b""),
        (Limits(head_timeout=0.1), b"GET / HTTP/1.1\r\nHost:"),
        (Limits(body_timeout=0.1), b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"),
        (Limits(idle_timeout=0.1), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        (Limits(head_bytes=1000), b"GET / HTTP/1.1\r\nX: " + b"x" * 2000),
        (PROBES, b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 2000),
    ],
    ids=["nothing sent", "half a head", "half a body", "idle after a response", "a long head", "a long body"],
)
async def test_the_server_closes_the_connection_of_a_slow_client(limits: Limits, sent: bytes) -> None:
    async with serving(limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader)
        writer.transport.abort()


async def test_the_server_closes_the_connection_of_a_client_that_does_not_read() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, b"x" * 50_000_000)

    server = HttpServer(handle, limits=Limits(send_timeout=0.2))
    port = int((await server.start()).rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"HTTP/1.1 200")
    async with asyncio.timeout(30):
        while (
            not writer.transport.is_closing()
        ):  # the client does not read, so only a write shows that the server closed
            writer.write(b"x")
            await asyncio.sleep(0.02)
    await server.close()


@pytest.mark.parametrize("sent", [b"", b"x"], ids=["disconnects", "sends data"])
async def test_a_client_that_disconnects_or_sends_data_ends_only_its_own_stream(sent: bytes) -> None:
    ended: list[str] = []

    async def handle(request: Request) -> Response:
        async def forever() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                await asyncio.Event().wait()
            finally:
                ended.append(request.path)

        return Response(200, stream=forever())

    server = HttpServer(handle)
    port = int((await server.start()).rpartition(":")[2])
    clients = {}
    for path in ("/one", "/two"):
        reader, clients[path] = await asyncio.open_connection("127.0.0.1", port)
        clients[path].write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"first")
    if sent:
        clients["/one"].write(sent)
    else:
        clients["/one"].close()
    async with asyncio.timeout(30):
        while not ended:
            await asyncio.sleep(0.01)
    assert ended == ["/one"]
    await server.close()
    assert ended == ["/one", "/two"]
    for writer in clients.values():
        writer.transport.abort()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_malformed_http_closes_only_its_own_connection(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(PROBES) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader)
        writer.transport.abort()
        assert (await get(port)).endswith(b"ok /healthz")
    assert not caplog.records


async def test_a_response_has_a_date_header_that_clients_can_parse() -> None:
    async with serving(None) as port:
        before = int(time.time())
        head = (await get(port)).partition(b"\r\n\r\n")[0].decode()
    (date,) = [line.removeprefix("Date: ") for line in head.split("\r\n") if line.startswith("Date: ")]
    assert before <= email.utils.parsedate_to_datetime(date).timestamp() <= time.time()


async def post(port: int, body: bytes, *, chunked: bool = False) -> bytes:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        response = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in response.lower().splitlines() if line.startswith(b"content-length:"))
        response += await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()
        return response


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_response_to_a_too_large_body_states_the_limit(chunked: bool) -> None:
    async with serving(Limits(body_bytes=1000)) as port:
        assert (await post(port, b"x" * 1000, chunked=chunked)).endswith(b"ok /")
        for size in (
            1001,
            3_000_000,
        ):  # The larger one exceeds all buffers, and the client still receives the response.
            response = await post(port, b"x" * size, chunked=chunked)
            assert response.startswith(b"HTTP/1.1 413 ")
            assert response.endswith(b"the body is larger than 1000 bytes, the limit\n")


@pytest.mark.parametrize("steps", range(8))
async def test_the_server_disconnects_a_client_that_connects_during_the_close(steps: int) -> None:
    """The server closes after each step of the event loop between accepting a connection and serving it."""
    async with serving(None) as port:
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
    with client, contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(30):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


@pytest.mark.parametrize("is_handled", [False, True], ids=["half of the body received", "in the handler"])
async def test_a_closing_server_responds_to_requests_that_have_begun(is_handled: bool) -> None:
    pause = PausedHandler()

    async def handle(request: Request) -> Response:
        pause.started.set()
        if is_handled:
            await pause.go_on.wait()
        return Response(200, request.body, "text/plain")

    server = HttpServer(handle, limits=PROBES)
    port = int((await server.start()).rpartition(":")[2])
    async with asyncio.timeout(60):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        idle_writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        if is_handled:
            pause.go_on.set()
        assert b"200" in await idle.readuntil(b"\r\n\r\n")
        pause.started.clear()
        pause.go_on.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert b"100" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"ab" if not is_handled else b"abcd")
        if is_handled:
            await pause.started.wait()
        closing = asyncio.create_task(server.close(grace=40))
        assert await idle.read() == b""  # The server closes an idle connection immediately.
        assert not closing.done()
        if is_handled:
            pause.go_on.set()
        else:
            writer.write(b"cd")
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 200")
        assert b"Connection: close\r\n" in response
        assert response.endswith(b"abcd")
        await closing
        for open_writer in (idle_writer, writer):
            open_writer.close()
