"""The requests of one connection: HTTP/1.1 with h11, from the first byte to the end of the last response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from .limits import LIVENESS, READ, READINESS, Connections, Phase, Reader
from .messages import Handler, RefusedError, Request, Response, busy, refusal

log = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 2.0  # seconds in which the rest of the written bytes is sent when a connection ends
_WRITE = 32 * 1024  # bytes of a response in the transport's buffer
_SMALL_CHUNKS = 100  # parts of a body that may be smaller than _CHUNK bytes on average
_CHUNK = 64
_END_OF_HEAD = re.compile(rb"(?:^|\n)\r?\n")


class Session:
    """Reads requests of one client and sends the handler's responses.

    Args:
        peer: the client's address.
        connections: all connections of the server; they share the limits.
    """

    writer: asyncio.StreamWriter

    def __init__(self, handler: Handler, peer: str, connections: Connections) -> None:
        self.handler = handler
        self.peer = peer
        self.connections, self.limits = connections, connections.limits
        self.reader = Reader(limit=READ, loop=asyncio.get_running_loop())
        self.buffered = 0  # bytes of the request's body or of the response
        self.task: asyncio.Task[None] | None = None
        self.closing = False
        self.refusal: Response | None = None  # to be sent before the connection is closed
        self.is_last = False  # the connection is closed after the current request
        self._between = False
        self.h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes)
        self.enter(Phase.UNFINISHED)

    def enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, asyncio.get_running_loop().time()

    @property
    def may_be_closed(self) -> bool:
        """Whether the server waits for the client."""
        if self.closing or self.phase is Phase.WORKING:
            return False
        return self.phase is Phase.RESPONDING or not self.reader.unread

    @property
    def is_between_requests(self) -> bool:
        return self._between and not self.reader.unread

    async def run(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serves an accepted socket, and closes it."""
        transport = None
        try:
            loop = asyncio.get_running_loop()
            protocol = asyncio.StreamReaderProtocol(self.reader)
            timeout = self.limits.head_timeout if tls else None
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, client, ssl=tls, ssl_handshake_timeout=timeout
            )
            self.writer = asyncio.StreamWriter(transport, protocol, self.reader, loop)
            # drain() returns when the buffer is empty. With high=0, asyncio's TLS would pause at each write.
            transport.set_write_buffer_limits(high=1)
            await self._serve_or_refuse()
        except (OSError, TimeoutError, asyncio.CancelledError, h11.RemoteProtocolError):
            pass
        finally:
            if transport is not None:
                if not self.closing:  # the written bytes are sent
                    self.writer.close()
                    with contextlib.suppress(Exception, asyncio.CancelledError):
                        async with asyncio.timeout(_CLOSE_TIMEOUT):
                            await self.writer.wait_closed()
                # Python before 3.11.4: a closed TLS transport has lost its protocol
                with contextlib.suppress(AttributeError):
                    transport.abort()

    async def _serve_or_refuse(self) -> None:
        try:
            await self._serve()
        except RefusedError as e:
            await self._refuse(e.response)
        except asyncio.CancelledError:
            response, task = self.refusal, asyncio.current_task()
            if response is None or task is None:
                raise
            self.refusal = None
            task.uncancel()
            await self._refuse(response)
        finally:
            self.connections.release(self)

    async def _refuse(self, response: Response) -> None:
        """Sends the response, then reads until the client closes: an immediate close would reset the connection and lose the response."""
        self.connections.release(self)
        self.enter(Phase.UNFINISHED)
        self._write(*_head_and_body(response))
        if self.writer.can_write_eof():  # TLS cannot
            self.writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                while await self._read():
                    pass

    async def _serve(self) -> None:
        while True:
            request = await self._request()
            if request is None:
                return
            response = await self._handle(request)
            if response.tunnel:
                self._write(h11.InformationalResponse(status_code=101, headers=list(response.headers.items())))
                await self.writer.drain()
                await response.tunnel(bytes(self.h11.trailing_data[0]), self.reader, self.writer)
                return
            # A client that sends requests without waiting for responses would delay other clients, such as probes.
            self.is_last = self.is_last or bool(self.h11.trailing_data[0])
            if self.is_last:
                response.headers = {**response.headers, "Connection": "close"}
            await self._send(request, response)
            del request, response  # frees their bodies while the connection is idle
            self.connections.release(self)
            if (
                self.is_last
                or self.h11.trailing_data[0]
                or self.h11.our_state is h11.MUST_CLOSE
                or self.h11.their_state is h11.MUST_CLOSE
            ):
                return
            try:
                self.h11.start_next_cycle()
            except h11.LocalProtocolError:
                return
            self.enter(Phase.IDLE)

    async def _handle(self, request: Request) -> Response:
        """Calls the handler if fewer requests than the limit are in progress. Liveness probes are always handled."""
        self.enter(Phase.WORKING)
        if request.path == LIVENESS:
            return await self._call(request)
        free = self.connections.readiness_probes if request.path == READINESS else self.connections.requests
        if free.locked():
            raise busy(f"{self.limits.requests} requests are being handled")
        async with free:
            return await self._call(request)

    async def _call(self, request: Request) -> Response:
        try:
            return await self.handler(request)
        except Exception:
            log.exception("unexpected exception in an HTTP request: %s %s", request.method, request.path)
            return Response(500, b"internal error", "text/plain")

    # --- reading --------------------------------------------------------------------------------------

    async def _read(self) -> bytes:
        data = await self.reader.read(READ)
        self.reader.unread = False
        return data

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.h11.they_are_waiting_for_100_continue:
                go_on = self.h11.send(h11.InformationalResponse(status_code=100, headers=[]))
                self.writer.write(go_on or b"")
            self.h11.receive_data(await self._read())

    async def _request(self) -> Request | None:
        """Returns the next request; None if the client closed the connection. Raises ``TimeoutError``, ``RefusedError``."""
        self._between = True
        async with asyncio.timeout(self.limits.idle_timeout):
            self.h11.receive_data(await self._read())
        self._between = False
        if self.phase is not Phase.UNFINISHED:
            self.enter(Phase.UNFINISHED)
        async with asyncio.timeout(self.limits.head_timeout):
            await self._receive_head()
            head = await self._event()
        if not isinstance(head, h11.Request) or head.method == b"CONNECT":  # this server is not a proxy
            return None
        async with asyncio.timeout(self.limits.body_timeout):
            body = await self._body(head)
        if body is None:
            return None
        try:
            target = urlsplit(head.target.decode("latin-1"))
        except ValueError:  # brackets without an address between them
            return None
        arguments = parse_qsl(target.query, keep_blank_values=True)
        headers: dict[str, str] = {}
        for k, v in head.headers:  # the values of a repeated header are joined (RFC 9110, 5.3)
            name, value = k.decode().lower(), v.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Request(head.method.decode(), unquote(target.path), dict(arguments), headers, body, arguments, self.peer)

    async def _receive_head(self) -> None:
        """Receives bytes until a head is complete, and checks its size first: h11 takes long to parse many lines."""
        data = bytearray(self.h11.trailing_data[0])
        while True:
            end = _END_OF_HEAD.search(data)
            size = end.end() if end else len(data)
            if size > self.limits.head_bytes:
                raise refusal(431, f"the head of the request is larger than {self.limits.head_bytes} bytes")
            if data.count(b"\n", 0, size) > self.limits.head_lines:
                raise refusal(431, f"the head of the request has more than {self.limits.head_lines} lines")
            if end or not (received := await self._read()):
                return
            self.h11.receive_data(received)
            data += received

    async def _body(self, head: h11.Request) -> bytes | None:
        """Returns the request's body; None if the client closed the connection. Counts the bytes as they are received."""
        most = self.limits.body_bytes
        length = next((value for name, value in head.headers if name == b"content-length"), b"0")
        if len(length) > 18 or int(length) > most:  # h11 accepts only digits
            raise refusal(413, f"the body is larger than {most} bytes, the limit")
        body, chunks = bytearray(), 0
        while True:
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return bytes(body)
            if not isinstance(event, h11.Data):
                return None
            body += event.data
            chunks += 1
            if len(body) > most:
                raise refusal(413, f"the body is larger than {most} bytes, the limit")
            if chunks > _SMALL_CHUNKS and len(body) < chunks * _CHUNK:
                raise refusal(400, f"the body was sent in {chunks} parts of less than {_CHUNK} bytes on average")
            self.connections.hold(self, len(body))

    # --- writing --------------------------------------------------------------------------------------

    async def _send(self, request: Request, response: Response) -> None:
        head, *body = _head_and_body(response)
        if response.stream is not None and request.method != "HEAD":
            self._write(head)
            await self._stream(response.stream)
            return
        self.connections.release(self)  # the request's body
        self.enter(Phase.RESPONDING)
        self.connections.hold(self, len(response.body))
        async with asyncio.timeout(self.limits.send_timeout):
            if request.method == "HEAD":
                self._write(head, h11.EndOfMessage())
            elif len(response.body) <= _WRITE:
                self._write(head, *body)
            else:  # in parts: many connections may send the same body object, and the transport's buffer copies one part only
                self._write(head)
                for start in range(0, len(response.body), _WRITE):
                    self._write(h11.Data(data=response.body[start : start + _WRITE]))
                    await self.writer.drain()
                self._write(h11.EndOfMessage())
            await self.writer.drain()

    async def _stream(self, stream: AsyncIterator[bytes]) -> None:
        task = asyncio.current_task()
        assert task
        await self.writer.drain()
        gone = asyncio.ensure_future(self.reader.read(1))  # a client that hangs up ends the stream

        def end(_: object) -> None:
            task.cancel()

        gone.add_done_callback(end)
        try:
            async for part in stream:
                self._write(h11.Data(data=part))
                await self.writer.drain()
            self._write(h11.EndOfMessage())
            await self.writer.drain()
        finally:
            gone.remove_done_callback(end)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)  # retrieves the error of a broken connection
            await stream.aclose()  # type: ignore[attr-defined]

    def _write(self, *events: h11.Event) -> None:
        """Writes all events at once: separate writes are sent as separate packets."""
        if data := b"".join([self.h11.send(e) or b"" for e in events]):
            self.writer.write(data)


def _head_and_body(response: Response) -> tuple[h11.Event, ...]:
    """Returns the events of a response; for a stream, only the head."""
    # Clients compare their clock with the date. Source: RFC 9110, "Date".
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    headers = {"Date": date, "Content-Type": response.content_type, **response.headers}
    if response.stream is None:
        headers["Content-Length"] = str(len(response.body))
    else:
        headers["Transfer-Encoding"] = "chunked"
    head = h11.Response(status_code=response.status, headers=list(headers.items()))
    return (head, h11.Data(data=response.body), h11.EndOfMessage()) if response.stream is None else (head,)
