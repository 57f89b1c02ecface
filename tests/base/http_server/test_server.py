"""The HTTP server: it serves probes on IPv4 and IPv6 while other clients are connected."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import gc
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.base.http_server.server import PROBES, HttpServer, Limits, Request, Response
from tests.helpers.certificates import authority, server_side, signed


class Held:
    """Answers to ``/hold``: ``asked`` is set when one is waited for, ``go_on`` lets it go."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None,
    address: str = "127.0.0.1:0",
    hold: Held | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    async def handle(request: Request) -> Response:
        if hold and request.path == "/hold":
            hold.asked.set()
            await hold.go_on.wait()
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
        answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer


async def most_closed(readers: Iterable[asyncio.StreamReader], count: int) -> None:
    """Waits until the server has ended ``count`` connections."""
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
    """Whether the server ends a connection, also by a reset."""
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
async def test_without_a_host_both_families_of_addresses_are_served(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    async with serving(PROBES, ":0") as port:
        assert (await get(port, host=host)).endswith(b"ok /healthz")


async def test_the_url_of_an_ipv6_address_can_be_used() -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    server = HttpServer(lambda request: asyncio.sleep(0, Response(200)), "[::1]:0")
    assert (await server.start()).startswith("http://[::1]:")
    await server.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT"], ids=["nothing", "half a line"])
async def test_probes_are_answered_while_500_clients_hold_connections(sent: bytes) -> None:
    patient = dataclasses.replace(PROBES, head_timeout=600, idle_timeout=600)
    async with serving(patient) as port, contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(500):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            writer.write(sent)
            connections.append((reader, writer))
        for _ in range(10):
            assert (await get(port)).endswith(b"ok /healthz")
        await most_closed((r for r, _ in connections), 500 - 128)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
async def test_handshakes_that_never_end_are_few_and_short(tmp_path: Path, sent: bytes) -> None:
    ca = authority(tmp_path)
    tls, trusting = server_side(signed(tmp_path, ca, "server")), ssl.create_default_context(cafile=ca.cert)
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT  # of 3.13, for more than this certificate has
    most = Limits(connections=8, head_timeout=600)
    async with serving(most, tls=tls) as port, contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            writer.write(sent)
            connections.append((reader, writer))
        assert (await get(port, tls=trusting)).endswith(b"ok /healthz")
        await most_closed((r for r, _ in connections), 100 - 8)
    async with serving(Limits(head_timeout=0.1), tls=tls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader)
        writer.transport.abort()


async def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
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


async def test_a_close_that_is_cancelled_leaves_no_address_taken_and_nobody_waiting() -> None:
    """As a stop of bounded time does it: after each of its steps."""
    for steps in range(5):
        server = HttpServer(lambda request: asyncio.sleep(0, Response(200)))
        port = int((await server.start()).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closing = asyncio.create_task(server.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        if steps:  # it has begun
            assert await closed(reader), steps
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
        await server.close()


async def test_a_request_at_work_is_not_ended_for_a_new_client() -> None:
    hold = Held()
    async with serving(Limits(connections=1), hold=hold) as port:
        first = asyncio.create_task(get(port, "/hold"))
        await hold.asked.wait()
        other = asyncio.create_task(get(port))
        assert not (await asyncio.wait({first, other}, timeout=0.3))[0]
        hold.go_on.set()
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
    ids=["nothing sent", "half a head", "half a body", "idle after an answer", "a long head", "a long body"],
)
async def test_a_client_that_takes_its_time_is_closed(limits: Limits, sent: bytes) -> None:
    async with serving(limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader)
        writer.transport.abort()


async def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, b"x" * 50_000_000)

    server = HttpServer(handle, limits=Limits(send_timeout=0.2))
    port = int((await server.start()).rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"HTTP/1.1 200")
    async with asyncio.timeout(30):
        while len(server._tasks):
            await asyncio.sleep(0.02)
    writer.transport.abort()
    await server.close()


@pytest.mark.parametrize("says", [b"", b"x"], ids=["hangs up", "speaks"])
async def test_a_client_that_hangs_up_or_speaks_ends_its_stream_and_no_other(says: bytes) -> None:
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
    if says:
        clients["/one"].write(says)
    else:
        clients["/one"].close()
    async with asyncio.timeout(30):
        while len(server._tasks) > 1:
            await asyncio.sleep(0.01)
    assert ended == ["/one"]
    await server.close()
    assert ended == ["/one", "/two"]
    for writer in clients.values():
        writer.transport.abort()


async def test_requests_that_come_at_once_on_one_connection_are_answered_in_order() -> None:
    async with serving(PROBES) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(f"GET /{i} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for i in range(20)))
        for i in range(20):
            await reader.readuntil(f"ok /{i}".encode())
        writer.transport.abort()


@pytest.mark.parametrize("sent", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n"])  # fmt: skip
async def test_what_is_no_http_ends_its_connection_only(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(PROBES) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await closed(reader)
        writer.transport.abort()
        assert (await get(port)).endswith(b"ok /healthz")
    assert not caplog.records


async def test_an_answer_has_its_date_as_clients_read_it() -> None:
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
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().splitlines() if line.startswith(b"content-length:"))
        answer += await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()
        return answer


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_answered_in_a_sentence(chunked: bool) -> None:
    async with serving(Limits(body_bytes=1000)) as port:
        assert (await post(port, b"x" * 1000, chunked=chunked)).endswith(b"ok /")
        for size in (1001, 3_000_000):  # more than buffers hold: the answer is there all the same
            answer = await post(port, b"x" * size, chunked=chunked)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert answer.endswith(b"the body is larger than 1000 bytes, the limit\n")


@pytest.mark.parametrize("steps", range(8))
async def test_a_client_that_connects_while_the_server_closes_is_not_left_waiting(steps: int) -> None:
    """The server closes at each step of the event loop between a connection that was accepted and one that is served."""
    async with serving(None) as port:
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
    with client, contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(30):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


def begins_late(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
    """A server's connections wait a moment before their first step, as a loop that has much to do has them wait."""

    async def late() -> Any:
        await asyncio.sleep(0.05)
        return await coroutine

    begins = late() if coroutine.__qualname__ == "HttpServer._connection" else coroutine
    return asyncio.Task(begins, loop=loop, **how)


async def test_what_a_client_sends_before_its_connection_is_begun_with_is_not_lost(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    tls, trusting = server_side(signed(tmp_path, ca, "server")), ssl.create_default_context(cafile=ca.cert)
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as above
    asyncio.get_running_loop().set_task_factory(begins_late)
    async with serving(None, tls=tls) as port:
        assert (await get(port, tls=trusting)).endswith(b"ok /healthz")


async def test_a_client_that_goes_when_its_handshake_is_done_leaves_nothing_behind(tmp_path: Path) -> None:
    """The loop has much to do just then: the connection's task goes on when its end has been seen."""
    ca = authority(tmp_path)
    tls, trusting = server_side(signed(tmp_path, ca, "server")), ssl.create_default_context(cafile=ca.cert)
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as above
    loop = asyncio.get_running_loop()
    told: list[Any] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    at_once = loop.call_soon

    def call_soon(callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task) and getattr(task.get_coro(), "__qualname__", "") == "HttpServer._connection":
            return loop.call_later(0.1, callback, *args, context=context)
        return at_once(callback, *args, context=context)

    loop.call_soon = call_soon  # type: ignore[method-assign, assignment]
    async with serving(None, tls=tls) as port:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.transport.abort()
    gc.collect()  # a task without a waiter, or an open writer, logs an error when it is collected
    assert told == []


@pytest.mark.parametrize("at_work", [False, True], ids=["half of its body is there", "its answer is made"])
async def test_what_has_begun_to_arrive_is_answered_by_a_server_that_finishes(at_work: bool) -> None:
    hold = Held()

    async def handle(request: Request) -> Response:
        hold.asked.set()
        if at_work:
            await hold.go_on.wait()
        return Response(200, request.body, "text/plain")

    server = HttpServer(handle, limits=PROBES)
    port = int((await server.start()).rpartition(":")[2])
    async with asyncio.timeout(60):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        idle_writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        if at_work:
            hold.go_on.set()
        assert b"200" in await idle.readuntil(b"\r\n\r\n")
        hold.asked.clear()
        hold.go_on.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert b"100" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"ab" if not at_work else b"abcd")
        if at_work:
            await hold.asked.wait()
        closing = asyncio.create_task(server.close(grace=40))
        assert await idle.read() == b""  # at once: nothing of it is under way
        assert not closing.done()
        if at_work:
            hold.go_on.set()
        else:
            writer.write(b"cd")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"Connection: close\r\n" in answer
        assert answer.endswith(b"abcd")
        await closing
        for each in (idle_writer, writer):
            each.close()
