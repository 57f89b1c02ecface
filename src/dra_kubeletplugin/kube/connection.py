"""One HTTP connection: requests and responses on asyncio streams."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from typing import cast

from .http1 import HttpResponse, MalformedResponseError, ResponseReader, header_block, request_bytes
from .proxy import Proxy

MAX_BODY = 128 * 1024 * 1024  # bytes of a response; a list of 500 full slices is 80 MB
_MAX_LINE = 16 * 1024 * 1024  # bytes of one event of a watch; the API server takes objects of up to 3 MiB
_MAX_REFUSAL = 1024 * 1024  # bytes of the response to a refused watch
_AHEAD = 512 * 1024  # asyncio buffers twice this number of bytes, and then stops reading from the socket
_READ = 256 * 1024  # bytes of one read

# TCP notices within 30 s that a peer has vanished without closing. Probes start after 15 s of silence, and the peer must
# acknowledge sent bytes within 30 s.
_KEEPALIVE = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),
    )
    if hasattr(socket, name)  # not every platform has all of them
)


class _Reader(asyncio.StreamReader):
    """A stream reader that counts the bytes that it holds."""

    held = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        self.held += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.held -= len(data)
        return data


class Connection:
    """Carries one request at a time. :func:`connect` opens it."""

    def __init__(self, reader: _Reader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        self._response: ResponseReader | None = None  # reader of the response to the last request
        self.has_response = False  # whether any byte of the response to the last request arrived
        self.idle_since = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent. The server may still close the connection at the same moment."""
        if self._transport.is_closing() or self._reader.at_eof() or self._reader.exception() or self._reader.held:
            return False
        return self._response is None or (self._response.done and self._response.keeps)

    def abort(self) -> None:
        self._transport.abort()

    async def request(self, method: str, target: str, block: bytes, body: bytes, max_body: int) -> HttpResponse:
        """Sends one request and returns the whole response. Cancellation and errors make the connection unusable.

        Raises ``OSError``, :class:`MalformedResponseError`, and ``ValueError`` for an invalid request.
        """
        return await self._whole(self._send(request_bytes(method, target, block, body)), max_body)

    async def _whole(self, response: ResponseReader, max_body: int) -> HttpResponse:
        parts: list[bytes] = []
        size = 0
        while True:
            new = response.take()  # first what arrived together with the head
            size += sum(map(len, new))
            parts += new
            head = response.head
            if head and (
                response.done or (size > max_body and head.status >= 400)
            ):  # the status of a refusal is enough
                return HttpResponse(head.status, head.headers, b"".join(parts)[:max_body])
            if size > max_body:
                raise MalformedResponseError(f"the response is larger than {max_body} bytes")
            await self._receive(response)

    async def stream(self, target: str, block: bytes) -> HttpResponse:
        """Sends a GET, and returns the head of its response; :meth:`lines` returns the body. Raises as :meth:`request`.

        For another status than 200, returns the whole response.
        """
        response = self._send(request_bytes("GET", target, block, b""))
        while response.head is None:
            await self._receive(response)
        return response.head if response.head.status == 200 else await self._whole(response, _MAX_REFUSAL)

    async def lines(self, idle_timeout: float) -> AsyncGenerator[bytes, None]:
        """Yields the lines of the response as they arrive.

        Raises ``TimeoutError`` after ``idle_timeout`` seconds without a line, or the error that ended the connection.
        """
        response, now = self._response, asyncio.get_running_loop().time
        assert response is not None
        rest, deadline = b"", now() + idle_timeout
        while True:
            *lines, rest = b"".join((rest, *response.take())).split(b"\n")
            for line in filter(None, lines):
                yield line
                deadline = now() + idle_timeout
            if response.done:
                if rest:
                    yield rest
                return
            if len(rest) > _MAX_LINE:
                raise MalformedResponseError(f"a line of the response is longer than {_MAX_LINE} bytes")
            async with asyncio.timeout_at(deadline):
                await self._receive(response)

    def _send(self, data: bytes) -> ResponseReader:
        self.has_response = False
        self._response = ResponseReader()
        self._transport.write(data)
        return self._response

    async def _receive(self, response: ResponseReader) -> None:
        if data := await self._reader.read(_READ):
            self.has_response = True
            response.feed(data)
        else:
            response.end()


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, server_name: str, proxy: Proxy | None
) -> Connection:
    """Opens a connection to a server, through ``proxy`` if set. Raises ``OSError`` and :class:`MalformedResponseError`."""
    loop = asyncio.get_running_loop()
    reader = _Reader(_AHEAD)
    protocol = asyncio.StreamReaderProtocol(reader)
    # Bytes, because for a ``str`` the ssl module loads the IDNA codec, whose tables stay in memory.
    name = server_name or host
    verified = (cast(str, name.encode()) if name.isascii() else name) if tls else None
    if proxy is None:
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=tls, server_hostname=verified)
    else:
        tunnel = await _open_tunnel(proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        try:
            found = await loop.start_tls(tunnel, protocol, tls, server_hostname=verified) if tls else tunnel
            if found is None:
                raise ConnectionResetError(f"proxy {proxy.host}:{proxy.port} closed the connection")
        except BaseException:
            tunnel.abort()
            raise
        transport = found
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
    peer = transport.get_extra_info("socket")
    for level, option, value in _KEEPALIVE:
        peer.setsockopt(level, option, value)
    return Connection(reader, transport)


async def _open_tunnel(proxy: Proxy, target: str) -> asyncio.Transport:
    """Requests a connection to ``target`` from a proxy. Raises ``OSError`` if the proxy refuses it.

    A successful response has no body, whatever its headers state: after its head comes the server. Source: RFC 9110, "CONNECT".
    """
    headers = {"Host": target} | ({"Proxy-Authorization": proxy.authorization} if proxy.authorization else {})
    request = request_bytes("CONNECT", target, header_block(headers), b"")
    shown = f"proxy {proxy.host}:{proxy.port}"
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: asyncio.StreamReaderProtocol(reader), proxy.host, proxy.port
    )
    try:
        transport.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        version, _, rest = head.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise MalformedResponseError(f"the response of {shown} begins with {head[:40]!r}")
        if not rest.startswith(b"2"):
            status = rest[:3].decode(errors="replace")
            raise ConnectionRefusedError(f"{shown} returned {status} for a connection to {target}")
    except asyncio.IncompleteReadError as e:
        transport.abort()
        if e.partial:  # for example a TLS alert
            raise MalformedResponseError(f"the response of {shown} begins with {e.partial[:40]!r}") from None
        raise ConnectionResetError(f"{shown} closed the connection") from None
    except asyncio.LimitOverrunError:
        transport.abort()
        raise MalformedResponseError(f"the head of the response of {shown} is too long") from None
    except BaseException:
        transport.abort()
        raise
    return transport
