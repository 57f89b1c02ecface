"""A small HTTP/1.1 server on asyncio streams and h11: for /metrics and probes, and for the local API server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

log = logging.getLogger(__name__)
MAX_BODY = 8 * 1024 * 1024
_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")  # whatever the locale says
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOSE = 2.0  # seconds for what is written to leave, when a connection ends


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    arguments: Sequence[tuple[str, str]] = ()  # the query in order, with names that stand there more than once
    peer: str = ""  # the address of who asks; empty where it is not known


Tunnel = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What a connection becomes after an upgrade. The bytes came before the reader's."""


@dataclass
class Response:
    """``stream``, where given, is sent in chunks in place of ``body``; ``tunnel`` takes the connection over, after status 101."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    tunnel: Tunnel | None = None


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may take: seconds, connections, bytes. None is no limit.

    A body that is too large is answered with 413, one for which there is no room beside the others with 429.
    """

    head_timeout: float | None = None  # for all of a request's line and headers, from its first byte
    body_timeout: float | None = None  # for all of its body
    idle_timeout: float | None = None  # from one request's end to the next one's first byte
    send_timeout: float | None = None  # for an answer that is no stream to leave
    connections: int | None = None  # beyond this the longest idle is closed, or the new one where all are at work
    head_bytes: int = 64 * 1024
    body_bytes: int = MAX_BODY
    bodies_bytes: int | None = None  # of all requests together, from a body's first byte until its answer has left


PROBES = Limits(
    head_timeout=5, body_timeout=5, idle_timeout=30, send_timeout=10, connections=64, head_bytes=16 * 1024, body_bytes=1024
)  # fmt: skip
"""For metrics and probes, which ask without a body: a kubelet and a few scrapers, and whoever else can reach the port."""


class _Refused(Exception):
    """A request that is answered before its body was read."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class _Bodies:
    """Bytes of bodies that are in memory, of all connections."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    def take(self, held: int, size: int) -> int:
        """Bytes that a request holds from now on, ``held`` before. Raises :class:`_Refused`."""
        most, all_of_them = self.limits.body_bytes, self.limits.bodies_bytes
        if size > most:
            raise _Refused(_plain(413, f"the body is larger than {most} bytes, the most that is read"))
        if size > held:
            if all_of_them is not None and self.held + size - held > all_of_them:
                refused = _plain(429, f"{all_of_them} bytes of other requests are at work: ask again in a second")
                refused.headers["Retry-After"] = "1"  # which the API server's client does
                raise _Refused(refused)
            self.held += size - held
        return max(held, size)


def _plain(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain", {"Connection": "close"})


async def stop_listening(server: asyncio.Server) -> None:
    """Closes a server whose connections somebody else ends.

    ``close()`` alone forgets, without closing it, a connection that was accepted just before (CPython gh-109564): its client waits
    for ever.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    try:
        await asyncio.sleep(0)  # what was accepted becomes a connection
    finally:  # a stop may be cut
        server.close()


class HttpServer:
    """Serves ``handler`` until closed.

    ``address`` is HOST:PORT; port 0 takes a free one, and without HOST it listens on IPv6 and IPv4 both. Another ``tls`` may be set at
    any time, for connections made afterwards.
    """

    def __init__(
        self,
        handler: Handler,
        address: str = "127.0.0.1:0",
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.handler = handler
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self.tls = tls
        self._limits = limits or Limits()
        self._bodies = _Bodies(self._limits)
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], _Connection] = {}

    async def start(self) -> str:
        """Answers the URL.

        Raises ``OSError`` where the address cannot be had.
        """
        if self._host:
            self._server = await asyncio.start_server(self._accept, self._host, self._port)
        else:
            self._server = await asyncio.start_server(self._accept, sock=_any(self._port))
        host, port = self._server.sockets[0].getsockname()[:2]
        shown = "localhost" if host in {"::", "0.0.0.0"} else f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{shown}:{port}"

    async def close(self, grace: float = 0.0) -> None:
        """``grace``: seconds for requests that have begun to arrive, which are answered still."""
        try:
            if self._server:
                await stop_listening(self._server)
            if grace:
                await self._finish(grace)
        finally:
            self.drop_connections()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(self, grace: float) -> None:
        for task, connection in self._tasks.items():
            connection.last = True
            if connection.between:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=grace)

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    def drop_connections(self) -> None:
        """Cuts every open connection, as a failing network would."""
        for task in list(self._tasks):
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection counts from here on, not from its task's first step: a stop, or the client's first bytes, may come between."""
        if (self._server and not self._server.is_serving()) or not self._room():
            writer.transport.abort()
            return
        if self.tls:
            writer.transport.pause_reading()  # type: ignore[attr-defined] # what is read before the handshake is lost to it
        connection = _Connection(self.handler, reader, writer, self._bodies)
        task = asyncio.create_task(self._connection(connection, writer, self.tls))
        self._tasks[task] = connection

        def ended(_: object) -> None:
            self._tasks.pop(task, None)
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _connection(
        self, connection: _Connection, writer: asyncio.StreamWriter, tls: ssl.SSLContext | None
    ) -> None:
        try:
            if tls:  # here, because a handshake takes a third of a MiB: it counts as a connection
                await _secure(writer, tls, self._limits.head_timeout)
            await connection.serve()
        except (OSError, TimeoutError, asyncio.CancelledError, h11.RemoteProtocolError):
            pass
        finally:
            self._tasks.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                async with asyncio.timeout(_CLOSE):
                    await writer.wait_closed()

    def _room(self) -> bool:
        """Makes room for one more connection; False where all that are open are at work."""
        limit = self._limits.connections
        open_ones = [(c.idle_since, t) for t, c in self._tasks.items() if not t.cancelling()]
        if limit is None or len(open_ones) < limit:
            return True
        idle = [(since, task) for since, task in open_ones if since is not None]
        if not idle:
            return False
        min(idle, key=lambda i: i[0])[1].cancel()
        return True


async def _secure(writer: asyncio.StreamWriter, tls: ssl.SSLContext, seconds: float | None) -> None:
    """Raises ``OSError``, also where the client went in the very moment that its handshake was done: asyncio has no transport then."""
    plain = writer.transport
    try:
        await writer.start_tls(tls, ssl_handshake_timeout=seconds)
    except AttributeError:
        if writer.transport is not None:
            raise
        writer._transport = plain  # to be closed as any other
        raise ConnectionResetError("the client went after its handshake") from None


def _any(port: int) -> socket.socket:
    """A socket for every address of the machine, of both families where it has both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is compiled in and switched off
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)


def _within(seconds: float | None) -> contextlib.AbstractAsyncContextManager[object]:
    return contextlib.nullcontext() if seconds is None else asyncio.timeout(seconds)


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    """Of an answer, which clients compare their clock with. Source: RFC 9110, "Date"."""
    day, date, month, year = time.strftime("%w %d %m %Y", time.gmtime(second)).split()
    clock = time.strftime("%H:%M:%S", time.gmtime(second))
    return f"{_DAYS[int(day)]}, {date} {_MONTHS[int(month) - 1]} {year} {clock} GMT"


class _Connection:
    """``idle_since`` is when a client began to wait, in seconds of the loop's clock; None while a request is worked on. ``between`` two
    requests nothing of the next has come; ``last``: none follows the one under way."""

    def __init__(
        self, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bodies: _Bodies
    ) -> None:
        self.handler = handler
        self.reader = reader
        self.writer = writer
        self.bodies, self.limits = bodies, bodies.limits
        self.held = 0  # bytes of its body
        self.between = self.last = False
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self.h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes)

    async def serve(self) -> None:
        try:
            await self._serve()
        except _Refused as e:
            self._free()
            await self._refuse(e.response)
        finally:
            self._free()

    def _free(self) -> None:
        self.bodies.held -= self.held
        self.held = 0

    async def _refuse(self, response: Response) -> None:
        """Answers, and reads what the client goes on to send: a connection closed on it would take the answer along."""
        self._write(*_head_and_body(response))
        if self.writer.can_write_eof():  # TLS cannot
            self.writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE):
                while await self.reader.read(65536):
                    pass

    async def _serve(self) -> None:
        while True:
            request = await self._request()
            if request is None:
                return
            self.idle_since = None
            try:
                response = await self.handler(request)
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                response = Response(500, b"internal error", "text/plain")
            if response.tunnel:
                await self._become(response.tunnel, response.headers)
                return
            if self.last:
                response.headers = {**response.headers, "Connection": "close"}
            await self._send(request, response)
            del request  # its body
            self._free()
            if self.last or self.h11.our_state is h11.MUST_CLOSE or self.h11.their_state is h11.MUST_CLOSE:
                return
            try:
                self.h11.start_next_cycle()
            except h11.LocalProtocolError:
                return
            self.idle_since = asyncio.get_running_loop().time()

    async def _become(self, tunnel: Tunnel, headers: Mapping[str, str]) -> None:
        self._write(h11.InformationalResponse(status_code=101, headers=list(headers.items())))
        await self.writer.drain()
        await tunnel(bytes(self.h11.trailing_data[0]), self.reader, self.writer)

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
        """The next request; None where the client ended or breaks off. Raises ``TimeoutError``."""
        if not self.h11.trailing_data[0]:
            self.between = True
            async with _within(self.limits.idle_timeout):
                self.h11.receive_data(await self.reader.read(65536))
            self.between = False
        async with _within(self.limits.head_timeout):
            head = await self._event()
        if not isinstance(head, h11.Request) or head.method == b"CONNECT":  # nobody's tunnel
            return None
        async with _within(self.limits.body_timeout):
            body = await self._body(head)
        if body is None:
            return None
        try:
            target = urlsplit(head.target.decode("latin-1"))
        except ValueError:  # brackets without an address between them
            return None
        arguments = parse_qsl(target.query, keep_blank_values=True)
        headers: dict[str, str] = {}
        for k, v in head.headers:  # a header that comes again goes on (RFC 9110, 5.3)
            name, value = k.decode().lower(), v.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Request(
            head.method.decode(), unquote(target.path), dict(arguments), headers, body, arguments, self._peer()
        )

    def _peer(self) -> str:
        found = self.writer.get_extra_info("peername")
        return str(found[0]) if isinstance(found, tuple) else ""

    async def _body(self, head: h11.Request) -> bytes | None:
        length = next((value for name, value in head.headers if name == b"content-length"), b"0")
        self.held = self.bodies.take(0, int(length))  # h11 refuses what is no number
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return b"".join(parts)
            if not isinstance(event, h11.Data):
                return None
            size += len(event.data)
            self.held = self.bodies.take(self.held, size)
            parts.append(bytes(event.data))

    async def _send(self, request: Request, response: Response) -> None:
        head, *body = _head_and_body(response)
        if request.method == "HEAD":
            self._write(head, h11.EndOfMessage())
        elif response.stream is None:
            self._write(head, *body)
        else:
            self._write(head)
            await self._stream(response.stream)
            return
        async with _within(self.limits.send_timeout):
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
            await asyncio.gather(gone, return_exceptions=True)  # one that broke is no warning later
            await stream.aclose()  # type: ignore[attr-defined]

    def _write(self, *events: h11.Event) -> None:
        """Together: what is written in parts is sent in parts."""
        if data := b"".join([self.h11.send(e) or b"" for e in events]):
            self.writer.write(data)


def _head_and_body(response: Response) -> tuple[h11.Event, ...]:
    """The events of an answer; of a stream its head."""
    headers = {"Date": _date(int(time.time())), "Content-Type": response.content_type, **response.headers}
    if response.stream is None:
        headers["Content-Length"] = str(len(response.body))
    else:
        headers["Transfer-Encoding"] = "chunked"
    head = h11.Response(status_code=response.status, headers=list(headers.items()))
    return (head, h11.Data(data=response.body), h11.EndOfMessage()) if response.stream is None else (head,)
