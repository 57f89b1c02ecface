"""HTTP/1.1 to one server: h11 on asyncio streams, with idle connections kept for the next request."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from ..errors import ApiError

_READ = 256 * 1024
_MAX_IDLE = 8


@dataclass(frozen=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Stale(Exception):
    """A kept connection was closed by the server before it took the request."""


class Transport:
    """Sends requests to ``server``, a URL. Safe to use from many tasks of one loop."""

    def __init__(self, server: str, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ApiError(f"{server!r} is no URL of an API server: write it like https://10.0.0.1:6443")
        self.server = server
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._tls = tls if parts.scheme == "https" else None
        self._idle: list[_Connection] = []

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> HttpResponse:
        """One request and its whole answer.

        Raises :class:`ApiError` with status 0 where no answer came within ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(method, target, headers, body)
        except TimeoutError:
            raise ApiError(f"{method} {target}: no answer from {self.server} within {timeout:g}s") from None
        except (OSError, h11.RemoteProtocolError, asyncio.IncompleteReadError) as e:
            raise ApiError(f"{method} {target}: {self.server} cannot be reached: {e or type(e).__name__}") from None

    async def _exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        while True:
            connection, kept = await self._acquire()
            done = False
            try:
                head = await connection.send(method, self._prefix + target, headers, body, kept=kept)
                chunks = [c async for c in connection.body()]
                done = True
            except _Stale:
                continue
            finally:
                if not (done and connection.reusable()):
                    await connection.close()
                elif len(self._idle) < _MAX_IDLE:
                    self._idle.append(connection)
                else:
                    await connection.close()
            return HttpResponse(head.status, head.headers, b"".join(chunks))

    @contextlib.asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str], connect_timeout: float, idle_timeout: float
    ) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[bytes]]]:
        """A GET whose answer is read line by line, on a connection of its own.

        Raises :class:`ApiError` with status 0 when the connection breaks, or nothing comes for ``idle_timeout`` seconds.
        """
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(connect_timeout):
                connection = await self._connect()
                head = await connection.send("GET", self._prefix + target, headers, b"", kept=False)
            yield head, _lines(connection.body(idle_timeout))
        except TimeoutError:
            raise ApiError(f"GET {target}: nothing came from {self.server} in time") from None
        except (OSError, h11.RemoteProtocolError, _Stale) as e:
            raise ApiError(f"GET {target}: connection to {self.server} broke: {e or type(e).__name__}") from None
        finally:
            if connection:
                await connection.close()

    async def _acquire(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive():
                return connection, True
            await connection.close()
        return await self._connect(), False

    async def _connect(self) -> _Connection:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_READ)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return _Connection(reader, writer, f"{shown}:{self._port}")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader = reader
        self.writer = writer
        self.host = host
        self.h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=_READ)

    def alive(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()

    def reusable(self) -> bool:
        try:
            self.h11.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return self.alive()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self.writer.wait_closed()

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, *, kept: bool
    ) -> HttpResponse:
        fields = {"Host": self.host, **headers}
        if body or method in {"POST", "PUT", "PATCH"}:
            fields["Content-Length"] = str(len(body))
        data = self.h11.send(h11.Request(method=method, target=target, headers=list(fields.items())))
        out = (data or b"") + (self.h11.send(h11.Data(data=body)) or b"" if body else b"")
        out += self.h11.send(h11.EndOfMessage()) or b""
        try:
            self.writer.write(out)
            await self.writer.drain()
            while True:
                event = await self._event(None)
                if isinstance(event, h11.Response):
                    names = {k.decode().lower(): v.decode("latin-1") for k, v in event.headers}
                    return HttpResponse(event.status_code, names, b"")
        except (ConnectionError, h11.RemoteProtocolError) as e:
            # Only where not a byte of an answer came is it safe to send again.
            if kept and self.h11.their_state in {h11.IDLE, h11.SEND_RESPONSE, h11.ERROR, h11.CLOSED}:
                raise _Stale from e
            raise

    async def body(self, idle_timeout: float | None = None) -> AsyncIterator[bytes]:
        while True:
            event = await self._event(idle_timeout)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return

    async def _event(self, idle_timeout: float | None) -> object:
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            async with asyncio.timeout(idle_timeout):
                data = await self.reader.read(_READ)
            if not data and self.h11.their_state is h11.SEND_RESPONSE:
                raise ConnectionResetError("connection closed before an answer")
            self.h11.receive_data(data)
