"""Connections to one server: a small pool for requests, and a separate connection for each watch."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from ..errors import SettingsError
from .connection import MAX_BODY, Connection, Lines, connect
from .http1 import HttpResponse, MalformedResponseError, header_block
from .proxy import Proxy
from .tls import Tls

CONNECTIONS = (
    8  # concurrent requests; with more connections the API server is not faster, and each costs a TLS handshake
)
_SAFE = {"GET", "HEAD"}  # methods that may be sent again
_CLOSING = 1.0  # seconds that a connection may take to close before it is aborted


class Transport:
    """Sends requests to ``server``, a URL. Safe to use from many tasks of one event loop.

    Args:
        tls: provides the context of new connections; used for https only.
        proxy: the proxy to use; None for a direct connection.
        connections: maximum number of concurrent requests; further requests wait in order. Streams are not counted.
        idle_seconds: seconds after which an idle connection is closed; one idle connection stays open.
        max_body: maximum bytes of a response.

    Raises :class:`SettingsError` if ``server`` is not a URL.
    """

    def __init__(
        self,
        server: str,
        tls: Tls | None = None,
        proxy: Proxy | None = None,
        *,
        connections: int = CONNECTIONS,
        idle_seconds: float = 90.0,
        max_body: int = MAX_BODY,
    ) -> None:
        self.server = server
        self.https, self._host, self._port, self._prefix = split_server(server)
        self._tls = (tls or Tls()) if self.https else None
        self._proxy = proxy
        self._limit = connections
        self._idle_seconds = idle_seconds
        self._max_body = max_body
        self._open = 0  # slots taken: connections in use, idle or being opened
        self._idle: deque[Connection] = deque()  # the most recently used one is last and is used next
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._all: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._authority = f"{shown}:{self._port}"
        self._encoded: tuple[Mapping[str, str], bytes] | None = None

    async def close(self) -> None:
        """Closes all connections. Aborts them if a peer has not closed its side after a second."""
        if self._sweep:
            self._sweep.cancel()
        connections = list(self._all)
        for connection in connections:
            connection.close()
        if connections:
            _, slow = await asyncio.wait({c.gone for c in connections}, timeout=_CLOSING)
            if slow:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(slow, timeout=_CLOSING)

    @property
    def load(self) -> str:
        """The number of connections in use and of waiting requests, as text for messages."""
        return (
            f"{self._open - len(self._idle)} of {self._limit} connections in use, {len(self._waiting)} requests waiting"
        )

    # --- requests ---------------------------------------------------------------------------------

    async def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
        """Sends a request and returns the whole response. It has no time limit: the caller must set one.

        A GET that got no response on a reused connection is sent again. Raises ``OSError``, :class:`MalformedResponseError`,
        ``ValueError`` for an invalid request, and errors of the TLS files.
        """
        block = self._block(headers)
        while True:
            connection, kept = await self._acquire()
            try:
                return await connection.request(method, self._prefix + target, block, body)
            except (OSError, MalformedResponseError):
                self.forget_idle()  # the server most likely closed the other idle connections too
                if not (kept and method in _SAFE and not connection.has_response):
                    raise
            except asyncio.CancelledError:
                if not connection.has_response:
                    self.forget_idle()  # no response in time: the other idle connections may be dead too
                raise
            finally:
                self._release(connection)

    @contextlib.asynccontextmanager
    async def stream(self, target: str, headers: Mapping[str, str]) -> AsyncIterator[tuple[HttpResponse, Lines]]:
        """Sends a GET whose response is read line by line, on its own connection. Raises as :meth:`request` before it yields."""
        connection = await self._connect()
        try:
            yield await connection.stream(self._prefix + target, self._block(headers))
        finally:
            connection.abort()

    def forget_idle(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            self._drop(self._idle.pop())

    def _block(self, headers: Mapping[str, str]) -> bytes:
        """Encodes the headers. Raises ``ValueError`` for text that is invalid in a header."""
        if self._encoded is None or self._encoded[0] is not headers:  # callers usually pass the same object again
            self._encoded = headers, header_block({"Host": self._authority, **headers})
        return self._encoded[1]

    # --- connections ------------------------------------------------------------------------------

    async def _acquire(self) -> tuple[Connection, bool]:
        """Returns a connection, and whether it has carried requests before."""
        while self._idle:
            connection = self._idle.pop()
            try:
                if connection.usable() and connection.unread():
                    await asyncio.sleep(
                        0
                    )  # the loop reads what has arrived: the end of the connection, or a TLS ticket
                if connection.usable() and not connection.unread():
                    return connection, True
            except asyncio.CancelledError:
                self._release(connection)
                raise
            self._drop(connection)
        if self._open >= self._limit:
            released = await self._wait()
            if released is not None:
                return released, True
        else:
            self._open += 1
        try:
            return await self._connect(), False
        except BaseException:
            self._free_slot()
            raise

    async def _wait(self) -> Connection | None:
        """Returns the connection of a finished request, or None if the caller may open a new connection."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                released = waiter.result()
                if released is None:
                    self._free_slot()
                else:
                    self._release(released)
            else:
                with contextlib.suppress(ValueError):  # `_next_waiter` has already removed it
                    self._waiting.remove(waiter)
            raise

    def _release(self, connection: Connection) -> None:
        """Hands the connection to the request that waits longest, or keeps it idle."""
        if not connection.usable():
            self._drop(connection)
        elif waiter := self._next_waiter():
            waiter.set_result(connection)
        else:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._sweep is None and len(self._idle) > 1:
                self._sweep = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_unused)

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._free_slot()

    def _free_slot(self) -> None:
        if waiter := self._next_waiter():
            waiter.set_result(None)
        else:
            self._open -= 1

    def _next_waiter(self) -> asyncio.Future[Connection | None] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def _close_unused(self) -> None:
        self._sweep = None
        now = time.monotonic()
        while len(self._idle) > 1 and now - self._idle[0].idle_since >= self._idle_seconds:
            self._idle.popleft().close()
            self._free_slot()
        if len(self._idle) > 1:
            remaining = self._idle_seconds - (now - self._idle[0].idle_since)
            self._sweep = asyncio.get_running_loop().call_later(max(remaining, 0.01), self._close_unused)

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self._free_slot()

    async def _connect(self) -> Connection:
        try:
            connection = await self._open_connection()
        except ssl.SSLError:
            if self._tls is None:
                raise
            # The certificates may have been replaced since they were read.
            before = self._tls.context()
            self._tls.rejected()
            if self._tls.context() is before:
                raise
            connection = await self._open_connection()
        self._all.add(connection)
        return connection

    async def _open_connection(self) -> Connection:
        tls = self._tls
        context, name = (tls.context(), tls.server_name) if tls else (None, "")
        return await connect(self._new_connection, self._host, self._port, context, name, self._proxy)

    def _new_connection(self) -> Connection:
        return Connection(self._lost, self._max_body)


def split_server(server: str) -> tuple[bool, str, int, str]:
    """Returns whether the URL is https, its host, its port and the prefix of all paths.

    Raises :class:`SettingsError`.
    """
    try:
        parts = urlsplit(server)
        https, host = parts.scheme == "https", parts.hostname
        port = parts.port or (443 if https else 80)
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"}:
        raise SettingsError(f"{server!r} is not the URL of an API server: write it like https://10.0.0.1:6443")
    return https, host, port, parts.path.rstrip("/")
