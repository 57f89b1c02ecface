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
from .connection import MAX_BODY, Connection, connect
from .http1 import HttpResponse, MalformedResponseError, header_block
from .proxy import Proxy
from .tls import Tls

CONNECTIONS = 8  # concurrent requests; more do not make the API server faster, and each costs a TLS handshake
_SAFE = {"GET", "HEAD"}  # methods that may be sent again


class Transport:
    """Sends requests to ``server``, a URL. Safe to use from many tasks of one event loop.

    Args:
        tls: provides the context of new connections; used for https only.
        proxy: the proxy to use; None for a direct connection.
        connections: maximum number of concurrent requests; further requests wait in order. Streams are not counted.
        idle_seconds: seconds after which an unused connection is closed at the end of the next request; one stays open.
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
        self._slots = asyncio.Semaphore(connections)
        self._requests = 0  # in progress or waiting
        self._idle: deque[Connection] = deque()  # the most recently used one is last and is used next
        self._in_use: set[Connection] = set()
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._authority = f"{shown}:{self._port}"

    async def close(self) -> None:
        """Closes all connections."""
        self.forget_idle()
        for connection in self._in_use:
            connection.abort()
        await asyncio.sleep(0)  # the event loop closes the sockets

    @property
    def load(self) -> str:
        """The number of connections in use and of waiting requests, as text for messages."""
        in_use = min(self._requests, self._limit)
        return f"{in_use} of {self._limit} connections in use, {self._requests - in_use} requests waiting"

    async def request(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
        """Sends a request and returns the whole response. It has no time limit: the caller must set one.

        A GET that got no response on a reused connection is sent again. Raises ``OSError``, :class:`MalformedResponseError`,
        ``ValueError`` for an invalid request, and errors of the TLS files.
        """
        block = self._block(headers)
        self._requests += 1
        try:
            async with self._slots:
                while True:
                    reused = await self._take_idle()
                    async with self._used(reused or await self._connect()) as connection:
                        try:
                            return await connection.request(method, self._prefix + target, block, body, self._max_body)
                        except (OSError, MalformedResponseError):
                            if not reused or method not in _SAFE or connection.has_response:
                                raise
        finally:
            self._requests -= 1

    @contextlib.asynccontextmanager
    async def stream(self, target: str, headers: Mapping[str, str]) -> AsyncIterator[tuple[HttpResponse, Connection]]:
        """Sends a GET whose response is read line by line, on its own connection. Raises as :meth:`request` before it yields."""
        connection = await self._connect()
        self._in_use.add(connection)
        try:
            yield await connection.stream(self._prefix + target, self._block(headers)), connection
        finally:
            self._in_use.discard(connection)
            connection.abort()

    def forget_idle(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            self._idle.pop().abort()

    def _block(self, headers: Mapping[str, str]) -> bytes:
        return header_block({"Host": self._authority, **headers})

    async def _take_idle(self) -> Connection | None:
        """Returns the connection that was used last, or None if no idle connection is usable."""
        if self._idle:
            # Two passes of the event loop: it reads the end of a connection that the server has closed.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.abort()
        return None

    @contextlib.asynccontextmanager
    async def _used(self, connection: Connection) -> AsyncIterator[Connection]:
        """Keeps the connection for the next request if it can be used again."""
        self._in_use.add(connection)
        try:
            yield connection
        finally:
            self._in_use.discard(connection)
            now = connection.idle_since = time.monotonic()
            if connection.is_usable:
                self._idle.append(connection)
            else:
                connection.abort()
                if not connection.has_response:
                    self.forget_idle()  # the server most likely closed the other idle connections too
            while len(self._idle) > 1 and now - self._idle[0].idle_since >= self._idle_seconds:
                self._idle.popleft().abort()

    async def _connect(self) -> Connection:
        try:
            return await self._open_connection()
        except ssl.SSLError:
            if self._tls is None:
                raise
            # The certificates may have been replaced since they were read.
            before = self._tls.context()
            self._tls.rejected()
            if self._tls.context() is before:
                raise
            return await self._open_connection()

    async def _open_connection(self) -> Connection:
        tls = self._tls
        context, name = (tls.context(), tls.files.server_name) if tls else (None, "")
        return await connect(self._host, self._port, context, name, self._proxy)


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
