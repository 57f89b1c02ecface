"""A small HTTP/1.1 server on asyncio streams and h11: for /metrics and probes, and for the local API server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

log = logging.getLogger(__name__)
MAX_BODY = 8 * 1024 * 1024


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass
class Response:
    """``stream``, where given, is sent in chunks in place of ``body``."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves ``handler`` until closed. ``address`` is HOST:PORT; port 0 takes a free one."""

    def __init__(self, handler: Handler, address: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]") or "0.0.0.0", int(port)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Answers the URL.

        Raises ``OSError`` where the address cannot be had.
        """
        self._server = await asyncio.start_server(self._connection, self._host, self._port, ssl=self._tls, limit=2**20)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{'https' if self._tls else 'http'}://{host}:{port}"

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_connections(self) -> None:
        """Cuts every open connection, as a failing network would."""
        for task in list(self._tasks):
            task.cancel()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            await _Connection(self.handler, reader, writer).serve()
        except (ConnectionError, asyncio.CancelledError, h11.RemoteProtocolError, ssl.SSLError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await writer.wait_closed()


class _Connection:
    def __init__(self, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.handler = handler
        self.reader = reader
        self.writer = writer
        self.h11 = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        while True:
            request = await self._request()
            if request is None:
                return
            try:
                response = await self.handler(request)
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                response = Response(500, b"internal error", "text/plain")
            await self._send(request, response)
            if self.h11.our_state is h11.MUST_CLOSE or self.h11.their_state is h11.MUST_CLOSE:
                return
            try:
                self.h11.start_next_cycle()
            except h11.LocalProtocolError:
                return

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.h11.they_are_waiting_for_100_continue:
                go_on = self.h11.send(h11.InformationalResponse(status_code=100, headers=[]))
                self.writer.write(go_on or b"")
            self.h11.receive_data(await self.reader.read(65536))

    async def _request(self) -> Request | None:
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        body = bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY:
                    return None
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return None
        target = urlsplit(head.target.decode("latin-1"))
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        headers = {k.decode().lower(): v.decode("latin-1") for k, v in head.headers}
        return Request(head.method.decode(), unquote(target.path), query, headers, bytes(body))

    async def _send(self, request: Request, response: Response) -> None:
        headers = {"Content-Type": response.content_type, **response.headers}
        if response.stream is None:
            headers["Content-Length"] = str(len(response.body))
        else:
            headers["Transfer-Encoding"] = "chunked"
        self._write(h11.Response(status_code=response.status, headers=list(headers.items())))
        if request.method == "HEAD":
            self._write(h11.EndOfMessage())
        elif response.stream is None:
            self._write(h11.Data(data=response.body))
            self._write(h11.EndOfMessage())
        else:
            await self._stream(response.stream)
            return
        await self.writer.drain()

    async def _stream(self, stream: AsyncIterator[bytes]) -> None:
        await self.writer.drain()
        gone = asyncio.ensure_future(self.reader.read(1))  # a client that hangs up ends the stream
        step: asyncio.Future[bytes] | None = None
        try:
            while True:
                step = asyncio.ensure_future(anext(stream))
                await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    raise ConnectionResetError
                try:
                    self._write(h11.Data(data=step.result()))
                except StopAsyncIteration:
                    break
                await self.writer.drain()
            self._write(h11.EndOfMessage())
            await self.writer.drain()
        finally:
            for future in (gone, step):
                if future and not future.done():
                    future.cancel()
            # Retrieved, so that a connection that broke is no warning later.
            await asyncio.gather(*(f for f in (gone, step) if f), return_exceptions=True)
            await stream.aclose()  # type: ignore[attr-defined]

    def _write(self, event: h11.Event) -> None:
        data = self.h11.send(event)
        if data:
            self.writer.write(data)
