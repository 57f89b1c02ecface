"""One HTTP connection: requests and responses on an asyncio protocol, without a task or an asyncio stream."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import cast

from .http1 import HttpResponse, MalformedResponseError, ResponseReader, header_block, request_bytes
from .proxy import Proxy

MAX_BODY = 128 * 1024 * 1024  # bytes of a response; a list of 500 full slices is 80 MB
_MAX_LINE = 16 * 1024 * 1024  # bytes of one event of a watch; the API server takes objects of up to 3 MiB
_AHEAD = 1024 * 1024  # bytes of a watch that are buffered; above this, reading from the socket pauses

# TCP notices within 30 s that a peer has vanished without closing. Probes start after 15 s of silence, and the peer must
# acknowledge sent bytes within 30 s.
KEEPALIVE = tuple(
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


class Connection(asyncio.Protocol):
    """Carries one request at a time. ``lost`` is called when either side has closed the connection."""

    def __init__(self, lost: Callable[[Connection], None], max_body: int = MAX_BODY) -> None:
        self._on_lost = lost
        self._max_body = max_body
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[HttpResponse] | None = None
        self._response: ResponseReader | None = None  # reader of the response to the last request
        self._body: list[bytes] = []
        self._size = 0
        self._lines: Lines | None = None
        self._poll = select.poll()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.has_response = False  # whether any byte of the response to the last request arrived
        self.idle_since = 0.0

    # --- what asyncio calls -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE:
            peer.setsockopt(level, option, value)
        self._poll.register(peer.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        self.has_response = True
        response = self._response
        if response is None or response.done:
            self.abort()  # data without a request
            return
        try:
            response.feed(data)
            self._advance(response)
        except MalformedResponseError as e:
            self._fail(e)
            self.abort()

    def eof_received(self) -> None:
        if self._response is not None and not self._response.done:
            try:
                self._response.end()
                self._advance(self._response)
            except ConnectionResetError as e:
                self._fail(e)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the connection was closed before the end of a response"))
        if not self.gone.done():
            self.gone.set_result(None)
        self._on_lost(self)

    # --- requests -----------------------------------------------------------------------------------

    async def request(self, method: str, target: str, block: bytes, body: bytes) -> HttpResponse:
        """Sends one request and returns the whole response. Cancellation makes the connection unusable.

        Raises ``OSError``, :class:`MalformedResponseError`, and ``ValueError`` for an invalid request.
        """
        return await self._send(request_bytes(method, target, block, body))

    async def stream(self, target: str, block: bytes) -> tuple[HttpResponse, Lines]:
        """Sends a GET whose response is read line by line. Raises as :meth:`request`."""
        self._lines = Lines(self._pause)
        return await self._send(request_bytes("GET", target, block, b"")), self._lines

    async def _send(self, data: bytes) -> HttpResponse:
        if self.gone.done():
            raise ConnectionResetError("the connection was closed before the request")
        self.has_response, self._size, self._body = False, 0, []
        self._response = ResponseReader(self._take if self._lines is None else self._lines.feed)
        self._waiter = self._loop.create_future()
        self._transport.write(data)
        try:
            return await self._waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    def usable(self) -> bool:
        """Whether another request may be sent. The server may still close the connection at the same moment."""
        if self.gone.done() or self._transport.is_closing():
            return False
        return self._response is None or (self._response.done and self._response.keeps)

    def unread(self) -> bool:
        """Whether the kernel has unread data from the peer, usually the end of the connection."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Closes the connection after sending buffered data, which may take as long as the peer does."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # --- responses ----------------------------------------------------------------------------------

    def _advance(self, response: ResponseReader) -> None:
        if response.head is None:
            return
        if self._lines is not None:
            self._settle(response.head)
            if response.done:
                self._lines.end(None)
        elif response.done:
            pieces, self._body = self._body, []  # an idle connection must not keep a response in memory
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._settle(HttpResponse(response.head.status, response.head.headers, body))

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_body:
            raise MalformedResponseError(f"the response is larger than {self._max_body} bytes")
        self._body.append(data)

    def _settle(self, response: HttpResponse) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)

    def _fail(self, e: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(e)
        if self._lines is not None:
            self._lines.end(e)

    def _pause(self, pause: bool) -> None:
        if self._transport.is_closing():
            return
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class Lines:
    """The lines of a response as they arrive. ``pause`` stops (True) and resumes (False) reading from the socket."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self._pause = pause
        self._ready: deque[bytes] = deque()
        self._rest = bytearray()
        self._size = 0
        self._paused = False
        self._ended = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes) -> None:
        if self._ended:
            return
        first, *others = data.split(b"\n")
        self._rest += first
        for part in others:
            self._put(bytes(self._rest))
            self._rest = bytearray(part)
        if len(self._rest) > _MAX_LINE:
            raise MalformedResponseError(f"a line of the response is longer than {_MAX_LINE} bytes")
        if self._size > _AHEAD and not self._paused:
            self._paused = True
            self._pause(True)

    def end(self, fault: Exception | None) -> None:
        if not self._ended:
            self._put(bytes(self._rest))
            self._ended, self._fault = True, fault
            self._wake()

    def _put(self, line: bytes) -> None:
        if line:
            self._ready.append(line)
            self._size += len(line)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, idle_timeout: float) -> AsyncGenerator[bytes, None]:
        """Yields lines. Raises ``TimeoutError`` after ``idle_timeout`` seconds without a line, or the error that ended the connection."""
        loop = asyncio.get_running_loop()
        while True:
            while self._ready:
                line = self._ready.popleft()
                self._size -= len(line)
                if self._paused and self._size < _AHEAD:
                    self._paused = False
                    self._pause(False)
                yield line
            if self._ended:
                if self._fault is not None:
                    raise self._fault
                return
            self._waiter = loop.create_future()
            async with asyncio.timeout(idle_timeout):
                await self._waiter


async def connect(
    make: Callable[[], Connection],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    server_name: str,
    proxy: Proxy | None,
) -> Connection:
    """Opens a connection to a server, through ``proxy`` if set. Raises ``OSError`` and :class:`MalformedResponseError`."""
    loop = asyncio.get_running_loop()
    if proxy is None:
        _, connection = await loop.create_connection(
            make, host, port, ssl=tls, server_hostname=_name(server_name or host) if tls else None
        )
        return connection
    transport, tunnel = await loop.create_connection(_Tunnel, proxy.host, proxy.port)
    try:
        await tunnel.open(host, port, proxy)
        connection = make()
        if tls is None:
            transport.set_protocol(connection)
            connection.connection_made(transport)
            return connection
        tls_transport = await loop.start_tls(transport, connection, tls, server_hostname=_name(server_name or host))
        if tls_transport is None:
            raise ConnectionResetError(f"proxy {proxy.host}:{proxy.port} closed the connection")
        connection.connection_made(tls_transport)
        return connection
    except BaseException:
        transport.abort()
        raise


def _name(host: str) -> str:
    """Returns an ASCII host name as bytes. For a ``str``, the ssl module loads the IDNA codec, whose tables stay in memory."""
    return cast(str, host.encode()) if host.isascii() else host


class _Tunnel(asyncio.Protocol):
    """Requests a tunnel to another host from a proxy (CONNECT)."""

    def __init__(self) -> None:
        self._response = ResponseReader(self._take)
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._response.feed(data)
        except MalformedResponseError as e:
            self._settle(e)
        else:
            if self._response.head:
                self._settle(self._response.head.status)

    def _take(self, data: bytes) -> None:
        if self._response.head and self._response.head.status < 300:  # then the server speaks, after the client
            raise MalformedResponseError("the proxy sends more than a response")

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(exc or ConnectionResetError("the proxy closed the connection"))

    def _settle(self, status: int | Exception) -> None:
        if self._status.done():
            return
        if isinstance(status, int):
            self._status.set_result(status)
        else:
            self._status.set_exception(status)
            self._status.exception()  # otherwise asyncio logs it if the task was cancelled before open()

    async def open(self, host: str, port: int, proxy: Proxy) -> None:
        """Requests the tunnel. Raises ``OSError`` if the proxy refuses it."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        headers = {"Host": target}
        if proxy.authorization:
            headers["Proxy-Authorization"] = proxy.authorization
        self._transport.write(request_bytes("CONNECT", target, header_block(headers), b""))
        status = await self._status
        if not 200 <= status < 300:
            raise ConnectionRefusedError(
                f"proxy {proxy.host}:{proxy.port} returned {status} for a connection to {target}"
            )
