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
from tests.base.http_server.running_server import GET, Client, RunningServer, is_closed
from tests.helpers.certificates import authority, server_side, signed


async def wait_for_closed(clients: Iterable[Client], count: int) -> None:
    """Waits until the server has closed ``count`` connections."""
    waiting = {asyncio.create_task(is_closed(client, 120)) for client in clients}
    try:
        async with asyncio.timeout(60):
            while count > 0:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                count -= len(done)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_without_a_host_serves_ipv4_and_ipv6(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    async with RunningServer(PROBES, ":0") as served:
        assert (await served.get(host=host)).endswith(b"ok /healthz")


async def test_the_url_of_an_ipv6_address_is_valid() -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    server = HttpServer(lambda request: asyncio.sleep(0, Response(200)), "[::1]:0")
    assert (await server.start()).startswith("http://[::1]:")
    await server.close()


@pytest.mark.parametrize("address", ["127.0.0.1:0", ":0"])
async def test_the_end_of_a_response_is_sent_without_the_acknowledgement_of_its_beginning(address: str) -> None:
    async def tunnel(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        option = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.write(b"without delay" if option else b"with delay")

    async def handle(request: Request) -> Response:
        return Response(101, tunnel=tunnel)

    async with RunningServer(PROBES, address, handler=handle) as served:
        upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
        assert (await served.exchange(upgrade)).endswith(b"\r\n\r\nwithout delay")


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT"], ids=["nothing", "half a line"])
async def test_the_server_responds_to_probes_while_500_clients_hold_connections(sent: bytes) -> None:
    async with RunningServer(dataclasses.replace(PROBES, head_timeout=600, idle_timeout=600)) as served:
        clients = [await served.connect(sent) for _ in range(500)]
        for _ in range(10):
            assert (await served.get()).endswith(b"ok /healthz")
        await wait_for_closed(clients, 500 - 128)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
async def test_the_server_limits_number_and_duration_of_unfinished_handshakes(tmp_path: Path, sent: bytes) -> None:
    ca = authority(tmp_path)
    tls, client_tls = server_side(signed(tmp_path, ca, "server")), ssl.create_default_context(cafile=ca.cert)
    # Python 3.13 sets this flag; the test certificate does not meet it.
    client_tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    async with RunningServer(Limits(connections=8, head_timeout=600), tls=tls) as served:
        clients = [await served.connect(sent) for _ in range(100)]
        assert (await served.get(ssl=client_tls)).endswith(b"ok /healthz")
        await wait_for_closed(clients, 100 - 8)
    async with RunningServer(Limits(head_timeout=0.1), tls=tls) as served:
        assert await is_closed(await served.connect(sent))


async def test_the_server_closes_the_longest_idle_connection_for_a_new_one() -> None:
    async with RunningServer(Limits(connections=2)) as served:
        clients = []
        for _ in range(3):
            clients.append(await served.connect(GET % b"/"))
            await clients[-1][0].readuntil(b"ok /")
        assert await is_closed(clients[0])
        assert not await is_closed(clients[1], 0.1)


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
            assert await is_closed((reader, writer)), steps
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
        await server.close()


async def test_the_server_does_not_abort_a_handled_request_for_a_new_client() -> None:
    async with RunningServer(Limits(connections=1)) as served:
        first = asyncio.create_task(served.get("/hold"))
        await served.until_paused(1)
        other = asyncio.create_task(served.get())
        assert not (await asyncio.wait({first, other}, timeout=0.3))[0]
        served.go_on.set()
        assert (await first).endswith(b"ok /hold")
        assert (await other).endswith(b"ok /healthz")


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        (Limits(idle_timeout=0.1), b""),
        (Limits(head_timeout=0.1), b"GET / HTTP/1.1\r\nHost:"),
        (Limits(body_timeout=0.1), b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"),
        (Limits(idle_timeout=0.1), GET % b"/"),
    ],
    ids=["nothing sent", "half a head", "half a body", "idle after a response"],
)
async def test_the_server_closes_the_connection_of_a_slow_client(limits: Limits, sent: bytes) -> None:
    async with RunningServer(limits) as served:
        assert await is_closed(await served.connect(sent))


async def test_the_server_closes_the_connection_of_a_client_that_does_not_read() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, b"x" * 50_000_000)

    async with RunningServer(Limits(send_timeout=0.2), handler=handle) as served:
        reader, writer = await served.connect(GET % b"/", limit=1024)
        await reader.readuntil(b"HTTP/1.1 200")
        async with asyncio.timeout(30):
            while (
                not writer.transport.is_closing()
            ):  # the client does not read, so only a write shows that the server closed
                writer.write(b"x")
                await asyncio.sleep(0.02)


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

    async with RunningServer(handler=handle) as served:
        clients = {}
        for path in ("/one", "/two"):
            reader, clients[path] = await served.connect(GET % path.encode())
            await reader.readuntil(b"first")
        if sent:
            clients["/one"].write(sent)
        else:
            clients["/one"].close()
        async with asyncio.timeout(30):
            while not ended:
                await asyncio.sleep(0.01)
        assert ended == ["/one"]
    assert ended == ["/one", "/two"]


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
    async with RunningServer(PROBES) as served:
        assert await is_closed(await served.connect(sent))
        assert (await served.get()).endswith(b"ok /healthz")
    assert not caplog.records


async def test_a_response_has_a_date_header_that_clients_can_parse() -> None:
    async with RunningServer() as served:
        before = int(time.time())
        head = (await served.get()).partition(b"\r\n\r\n")[0].decode()
    (date,) = [line.removeprefix("Date: ") for line in head.split("\r\n") if line.startswith("Date: ")]
    assert before <= email.utils.parsedate_to_datetime(date).timestamp() <= time.time()


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_response_to_a_too_large_body_states_the_limit(chunked: bool) -> None:
    async with RunningServer(Limits(body_bytes=1000)) as served, asyncio.timeout(60):
        for size in (
            1000,
            1001,
            3_000_000,
        ):  # the largest exceeds all buffers, and the client still receives the response
            body = b"x" * size
            length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
            reader, writer = await served.connect(b"POST / HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n")
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if chunked else body)
            expected = b"ok /" if size == 1000 else b"the body is larger than 1000 bytes, the limit\n"
            response = await reader.readuntil(expected)
            assert response.startswith(b"HTTP/1.1 200 " if size == 1000 else b"HTTP/1.1 413 ")


@pytest.mark.parametrize("steps", range(8))
async def test_the_server_disconnects_a_client_that_connects_during_the_close(steps: int) -> None:
    """The server closes after each step of the event loop between accepting a connection and serving it."""
    async with RunningServer() as served:
        client = socket.create_connection(("127.0.0.1", served.port))
        client.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
    with client, contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(30):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


@pytest.mark.parametrize("is_handled", [False, True], ids=["half of the body received", "in the handler"])
async def test_a_closing_server_responds_to_requests_that_have_begun(is_handled: bool) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(request: Request) -> Response:
        started.set()
        if is_handled and request.body:
            await go_on.wait()
        return Response(200, request.body, "text/plain")

    async with RunningServer(PROBES, handler=handle) as served, asyncio.timeout(60):
        idle, _ = await served.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" in await idle.readuntil(b"\r\n\r\n")
        started.clear()
        reader, writer = await served.connect(
            b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        )
        assert b"100" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abcd" if is_handled else b"ab")
        if is_handled:
            await started.wait()
        closing = asyncio.create_task(served.server.close(grace=40))
        assert await idle.read() == b"", "an idle connection is closed at once"
        assert not closing.done()
        go_on.set()
        writer.write(b"" if is_handled else b"cd")
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 200")
        assert b"Connection: close\r\n" in response
        assert response.endswith(b"abcd")
        await closing
