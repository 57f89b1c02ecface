"""The client with misbehaving peers: connections, TLS and proxies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Tls, TlsFiles
from dra_kubeletplugin.kube.proxy import Proxy
from dra_kubeletplugin.kube.transport import Transport
from tests.helpers.certificates import Pair, authority, server_side, signed
from tests.helpers.raw_server import RawServer, http_response, serve_replies

OBJECT = http_response({"kind": "X"})
TCP_OPTIONS = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_KEEPINTVL)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_pair(ca: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return signed(tmp_path_factory.mktemp("server"), ca, "server")


def trusting(ca: Path, **more: Any) -> Tls:
    return Tls(TlsFiles(ca=ca, **more))


async def get(client: KubeClient, **more: Any) -> Any:
    return await client.call("GET", "/x", **more)


def reply_after(seconds: float = 0.01) -> Callable[[RawServer, bytes], Any]:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        await asyncio.sleep(seconds)
        return OBJECT

    return reply


# --- connections ----------------------------------------------------------------------------------------


async def test_32_concurrent_gets_use_8_connections_and_a_later_call_opens_none(ca: Pair, server_pair: Pair) -> None:
    async def once_there_are_8(peer: RawServer, request: bytes) -> bytes:
        while peer.most_at_once < 8:
            await asyncio.sleep(0.001)
        return OBJECT

    async with (
        RawServer(once_there_are_8, server_side(server_pair)) as peer,
        KubeClient(ApiConfig(peer.url, trusting(ca.cert))) as client,
    ):
        for _ in range(3):
            await asyncio.gather(*(get(client) for _ in range(32)))
            assert (peer.accepted, peer.most_at_once) == (8, 8)


async def test_a_watch_does_not_use_a_connection_of_the_request_pool() -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n" if b"watch" in request else OBJECT

    async with (
        RawServer(reply) as peer,
        KubeClient(ApiConfig(peer.url), connections=1) as client,
        client.stream("/watch", {}, 30, lambda: None) as lines,
    ):
        assert await anext(lines) == b"{}"
        await get(client, timeout=30)


@pytest.mark.parametrize("secure", [False, True])
async def test_the_client_replaces_a_connection_that_was_closed_while_idle(
    secure: bool, ca: Pair, server_pair: Pair
) -> None:
    async with serve_replies(OBJECT, tls=server_side(server_pair) if secure else None) as peer:
        async with KubeClient(ApiConfig(peer.url, trusting(ca.cert))) as client:
            for method in ("GET", "POST", "GET"):
                await client.call(method, "/x", None if method == "GET" else {})
                served = list(peer.open)
                peer.cut()
                await asyncio.gather(*served, return_exceptions=True)  # the client can see the end of the connection
        assert len(peer.requests) == 3


async def test_the_client_resends_a_get_but_not_a_post_when_a_reused_connection_fails() -> None:
    async with (
        serve_replies(OBJECT, None, OBJECT, OBJECT, None, OBJECT) as peer,
        KubeClient(ApiConfig(peer.url)) as client,
    ):
        await get(client)
        await get(client)
        assert len(peer.requests) == 3
        await client.call("POST", "/x", {"a": 1})
        with pytest.raises(ApiError, match="POST /x") as e:
            await client.call("POST", "/x", {"a": 2})
        assert e.value.unreachable
        assert [r.partition(b"\r\n\r\n")[2] for r in peer.requests[3:]] == [b'{"a":1}', b'{"a":2}']


async def test_the_client_never_resends_a_request_after_its_response_began() -> None:
    cut_short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"

    async def reply(peer: RawServer, request: bytes) -> bytes | None:
        if len(peer.requests) == 2:
            asyncio.get_running_loop().call_soon(peer.cut)
            return cut_short
        return OBJECT

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        await get(client)
        with pytest.raises(ApiError):
            await get(client)
        assert len(peer.requests) == 2


async def test_the_timeout_includes_waiting_for_a_connection() -> None:
    async with RawServer(reply_after(30)) as peer, KubeClient(ApiConfig(peer.url), connections=1) as client:
        started = time.monotonic()
        results = await asyncio.gather(*(get(client, timeout=1) for _ in range(32)), return_exceptions=True)
        assert all(isinstance(r, ApiError) and r.unreachable for r in results), results
        assert "no response" in str(results[0])
        assert "1 of 1 connections in use" in str(results[-1]) or "requests waiting" in str(results[-1])
        assert time.monotonic() - started < 16, "the requests did not run concurrently"


async def test_a_cancelled_request_releases_its_slot() -> None:
    quick = asyncio.Event()

    async def reply(peer: RawServer, request: bytes) -> bytes:
        if not quick.is_set():
            await asyncio.sleep(30)
        return OBJECT

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url), connections=2) as client:
        for _ in range(3):  # some in flight, some waiting, some that just received a connection slot
            tasks = [asyncio.create_task(get(client)) for _ in range(6)]
            while len(peer.requests) < 2:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.gather(*tasks, return_exceptions=True)
            peer.requests.clear()
        quick.set()
        await asyncio.gather(*(get(client, timeout=30) for _ in range(6)))


async def test_the_client_does_not_reuse_a_connection_that_the_server_closes() -> None:
    last = http_response({"kind": "X"}, headers="Connection: close\r\n")
    async with serve_replies(last, OBJECT) as peer, KubeClient(ApiConfig(peer.url)) as client:
        await get(client)
        await get(client)
        assert peer.accepted == 2


async def test_a_request_closes_connections_that_were_not_used_for_a_while() -> None:
    async with RawServer(reply_after()) as peer:
        transport = Transport(peer.url, connections=4, idle_seconds=0.05)
        await asyncio.gather(*(transport.request("GET", "/x", {}) for _ in range(4)))
        await asyncio.sleep(0.1)
        await transport.request("GET", "/x", {})
        while len(peer.open) > 1:
            await asyncio.sleep(0.01)
        assert peer.accepted == 4
        await transport.close()
        while peer.open:
            await asyncio.sleep(0.01)


async def test_a_failed_connection_attempt_releases_its_slot() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    transport = Transport(f"http://127.0.0.1:{port}", connections=1)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await transport.request("GET", "/x", {})


async def test_bytes_that_no_request_asked_for_end_an_idle_connection() -> None:
    unasked = http_response({}, "408 Request Timeout")

    async def reply(peer: RawServer, request: bytes) -> bytes:
        return OBJECT + (unasked if len(peer.requests) == 1 else b"")

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        for _ in range(3):
            assert await get(client) == {"kind": "X"}
        assert peer.accepted == 2


@contextlib.contextmanager
def sockets_to(port: int) -> Iterator[list[socket.socket]]:
    """Yields copies of this process's sockets that are connected to a port."""
    with contextlib.ExitStack() as stack:
        found = []
        for fd in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):  # it is closed, or not connected
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    copy = stack.enter_context(socket.socket(fileno=os.dup(fd)))
                    if copy.family == socket.AF_INET and copy.getpeername()[1] == port:
                        found.append(copy)
        yield found


async def test_every_connection_enables_tcp_keepalive() -> None:
    async with serve_replies(OBJECT) as peer:
        transport = Transport(peer.url)
        await transport.request("GET", "/x", {})
        async with transport.stream("/x", {}):
            with sockets_to(peer.port) as seen:
                options = [
                    [s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
                    + [s.getsockopt(socket.IPPROTO_TCP, o) for o in TCP_OPTIONS]
                    for s in seen
                ]
        assert len(options) == 2
        for keepalive, user_timeout, idle, count, interval in options:
            assert (keepalive, user_timeout) == (1, 30_000)
            assert idle + count * interval < 60
        await transport.close()


async def test_the_client_times_out_on_a_peer_that_accepts_but_never_responds(ca: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel connects, and no process accepts
        port = server.getsockname()[1]
        for config in (
            ApiConfig(f"https://127.0.0.1:{port}", trusting(ca.cert)),
            ApiConfig("https://10.0.0.1", trusting(ca.cert), proxy=Proxy("127.0.0.1", port)),
        ):
            async with KubeClient(config, timeout=0.3) as client:
                started = time.monotonic()
                with pytest.raises(ApiError, match=r"no response from .* within 0.3s"):
                    await get(client)
                with pytest.raises(ApiError, match=r"no response from .* within 0.3s"):
                    async with client.stream("/x", {}, 5, lambda: None):
                        pass
                assert time.monotonic() - started < 30


# --- TLS ------------------------------------------------------------------------------------------------


async def test_the_client_accepts_certificates_without_an_authority_key_identifier(ca: Pair, server_pair: Pair) -> None:
    async with serve_replies(OBJECT, tls=server_side(server_pair)) as peer:
        strict = ssl.create_default_context(cafile=ca.cert)
        strict.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of Python 3.13
        with pytest.raises(ssl.SSLCertVerificationError, match="Authority Key Identifier"):
            await asyncio.open_connection("127.0.0.1", peer.port, ssl=strict)
        async with KubeClient(ApiConfig(peer.url, trusting(ca.cert))) as client:
            await get(client)


async def test_the_client_refuses_an_unknown_ca_a_wrong_name_and_old_tls(
    ca: Pair, server_pair: Pair, tmp_path: Path
) -> None:
    other = authority(tmp_path, "other")
    named = signed(tmp_path, ca, "named", "DNS:kubernetes.default")
    async with serve_replies(OBJECT, tls=server_side(server_pair)) as peer:
        for tls in (trusting(other.cert), Tls(), trusting(ca.cert, server_name="kubernetes.default")):
            async with KubeClient(ApiConfig(peer.url, tls)) as client:
                with pytest.raises(ApiError, match="certificate verify failed") as e:
                    await get(client)
                assert e.value.unreachable
        async with KubeClient(ApiConfig(peer.url, Tls(TlsFiles(verify=False)))) as client:
            await get(client)
    right = trusting(ca.cert, server_name="kubernetes.default")
    async with (
        serve_replies(OBJECT, tls=server_side(named)) as peer,
        KubeClient(ApiConfig(peer.url, right)) as client,
    ):
        await get(client)
    assert trusting(ca.cert).context().minimum_version is ssl.TLSVersion.TLSv1_2


async def test_the_client_reads_a_new_ca_at_the_first_certificate_that_the_old_ca_did_not_sign(
    ca: Pair, server_pair: Pair, tmp_path: Path
) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(authority(tmp_path, "old").cert.read_bytes())
    tls = trusting(file)
    tls.context()
    file.write_bytes(ca.cert.read_bytes())
    async with (
        serve_replies(OBJECT, tls=server_side(server_pair)) as peer,
        KubeClient(ApiConfig(peer.url, tls)) as client,
    ):
        await get(client)


async def test_the_client_uses_a_new_certificate_after_a_401(ca: Pair, server_pair: Pair, tmp_path: Path) -> None:
    first, second = signed(tmp_path, ca, "first"), signed(tmp_path, ca, "second")
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    cert.write_bytes(first.cert.read_bytes())
    key.write_bytes(first.key.read_bytes())

    async with serve_replies(
        OBJECT, http_response({}, "401 Unauthorized"), OBJECT, tls=server_side(server_pair, ca.cert)
    ) as peer:
        async with KubeClient(ApiConfig(peer.url, trusting(ca.cert, cert=cert, key=key))) as client:
            await get(client)
            cert.write_bytes(second.cert.read_bytes())
            key.write_bytes(second.key.read_bytes())
            await get(client)
        assert peer.accepted == 2


async def test_a_temporarily_broken_certificate_file_has_no_effect(ca: Pair, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(ca.cert.read_bytes())
    tls = trusting(file)
    before = tls.context()
    for broken in (b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        file.write_bytes(broken)
        tls.rejected()
        assert tls.context() is before
        with pytest.raises(ApiError, match="certificates cannot be used"):
            trusting(file).context()


# --- proxies ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def tunnelling(status: str = "200 Connection established") -> AsyncIterator[tuple[int, list[bytes]]]:
    """An HTTP proxy that implements CONNECT."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        # A client must ignore these headers in a successful response (RFC 9110, "CONNECT").
        ignored = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" if status.startswith("200") else ""
        writer.write(f"HTTP/1.1 {status}\r\n{ignored}\r\n".encode())
        try:
            if status.startswith("200"):
                host, _, port = head.split(b" ")[1].decode().rpartition(":")
                there, back = await asyncio.open_connection(host, int(port))
                try:
                    await asyncio.gather(pump(reader, back), pump(there, writer))
                finally:
                    back.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("secure", [True, False])
async def test_the_client_reaches_the_server_through_a_proxy_tunnel(secure: bool, ca: Pair, server_pair: Pair) -> None:
    async with (
        serve_replies(OBJECT, tls=server_side(server_pair) if secure else None) as peer,
        tunnelling() as (port, heads),
    ):
        config = ApiConfig(peer.url, trusting(ca.cert), proxy=Proxy("127.0.0.1", port, "Basic eDp5"))
        async with KubeClient(config) as client:
            for _ in range(3):
                assert await get(client) == {"kind": "X"}
            await asyncio.gather(*(get(client) for _ in range(4)))
        assert 1 <= len(heads) <= 4
        assert heads[0].startswith(f"CONNECT 127.0.0.1:{peer.port} HTTP/1.1\r\n".encode())
        assert b"Proxy-Authorization: Basic eDp5" in heads[0]


async def test_the_error_names_a_proxy_that_refuses(ca: Pair) -> None:
    async with tunnelling("407 Proxy Authentication Required") as (port, _):
        config = ApiConfig("https://10.0.0.1:6443", trusting(ca.cert), proxy=Proxy("127.0.0.1", port))
        async with KubeClient(config) as client:
            with pytest.raises(ApiError, match=f"proxy 127.0.0.1:{port} returned 407") as e:
                await get(client)
            assert e.value.unreachable


@pytest.mark.parametrize(
    ("begins", "text"),
    [(b"", "closed the connection"), (b"\x15\x03\x01", r"the response of proxy .* begins with .*x15")],
)
async def test_a_proxy_that_closes_without_a_response_is_an_error_at_once(begins: bytes, text: str, ca: Pair) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begins)  # a proxy that expects TLS sends an alert
        writer.close()

    proxy = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with proxy:
        config = ApiConfig("https://10.0.0.1:6443", trusting(ca.cert), proxy=Proxy("127.0.0.1", port))
        async with KubeClient(config) as client:
            with pytest.raises(ApiError, match=text):
                await get(client)


@pytest.mark.parametrize("head", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000])
async def test_a_proxy_that_does_not_speak_http_is_an_error(head: bytes, ca: Pair) -> None:
    async with serve_replies(head) as peer:
        config = ApiConfig("https://10.0.0.1:6443", trusting(ca.cert), proxy=Proxy("127.0.0.1", peer.port))
        async with KubeClient(config) as client:
            with pytest.raises(ApiError, match=r"the (head of the )?response of proxy"):
                await get(client)
