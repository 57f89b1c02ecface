"""A small HTTP/1.1 server on asyncio streams and h11: for metrics and probes, admission reviews, and the local API server.

It accepts connections itself, a few in each pass of the event loop. ``asyncio.start_server`` accepts up to its whole backlog in one
pass. The limits would then close new connections before their requests are read. Without a free descriptor,
``asyncio.start_server`` also pauses for 1 s.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from .connection import Session
from .limits import PROBES, Connections, Limits
from .messages import Handler, Request, Response, Tunnel

log = logging.getLogger(__name__)
_BACKLOG = 1024  # connections that wait in the kernel; a further client retries after a second
_ACCEPTS = 32  # connections accepted in one pass of the event loop
_PAUSE = 0.01  # seconds until the server looks again for a connection that it may close


class HttpServer:
    """Serves ``handler`` until closed.

    ``address`` is HOST:PORT. Port 0 takes a free port; without HOST the server listens on IPv6 and IPv4. ``tls`` may be replaced at
    any time; later connections use the new value. If ``shared``, other servers of this user that also share may use the address at
    the same time; the kernel gives each connection to one of them.
    """

    def __init__(
        self,
        handler: Handler,
        address: str = "127.0.0.1:0",
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.handler = handler
        self._shared = shared
        self.shown = ""
        """Where clients can connect, for logs; empty until :meth:`start` has returned."""
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self.tls = tls
        self._limits = limits or Limits()
        self.connections = Connections(self._limits)
        self._listeners: dict[socket.socket, asyncio.Task[None]] = {}
        self._has_warned = False

    async def start(self) -> str:
        """Starts to serve. Returns the URL. Raises ``OSError`` if the address cannot be used."""
        listeners = await _listen(self._host, self._port, self._limits.socket_bytes, self._shared)
        for listener in listeners:
            self._listeners[listener] = asyncio.create_task(self._accept_clients(listener), name="accept")
        host, port = listeners[0].getsockname()[:2]
        is_everywhere = host in {"::", "0.0.0.0"}
        shown = "localhost" if is_everywhere else f"[{host}]" if ":" in host else host
        url = f"{'https' if self.tls else 'http'}://{shown}:{port}"
        self.shown = f"port {port} of every address" if is_everywhere else url
        return url

    async def close(self, grace: float = 0.0) -> None:
        """Closes all connections; requests that have begun to arrive get a response within ``grace`` seconds."""
        self._stop_listening()
        try:
            if grace:
                await self._finish(grace)
        finally:
            self.drop_connections()
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [connection.task for connection in self.connections.open if connection.task]

    def _stop_listening(self) -> None:
        for listener, task in self._listeners.items():
            task.cancel()
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()

    async def _finish(self, grace: float) -> None:
        for session in self.connections.open:
            session.is_last = True
            if session.is_between_requests and session.task:
                session.task.cancel()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=grace)

    def drop_connections(self) -> None:
        """Cuts every open connection, as a failing network would."""
        for task in self._tasks():
            task.cancel()

    # --- accepting ------------------------------------------------------------------------------------

    async def _accept_clients(self, listener: socket.socket) -> None:
        while True:
            await _readable(listener)
            # Two passes of the loop: requests that have arrived are read before a connection is closed for a new one.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for _ in range(_ACCEPTS):
                try:
                    client, address = listener.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    break
                except OSError as e:  # for example because the process has no free descriptor
                    if not self._has_warned:
                        self._has_warned = True
                        log.warning("cannot accept a connection: %s", e.strerror or e)
                    await asyncio.sleep(_PAUSE)
                    break
                client.setblocking(False)
                await self._begin(client, str(address[0]))

    async def _begin(self, client: socket.socket, peer: str) -> None:
        """Starts to serve a client as soon as the limits allow another connection."""
        session = Session(self.handler, peer, self.connections)
        self.connections.open.add(session)
        try:
            while not self.connections.ensure_capacity_for(session):  # noqa: ASYNC110 - whether it may be closed depends on time too
                await asyncio.sleep(_PAUSE)
        except BaseException:
            self.connections.open.discard(session)
            client.close()
            raise
        task = session.task = asyncio.create_task(session.run(client, self.tls))

        def ended(_: object) -> None:
            self.connections.open.discard(session)
            if task.cancelled():  # before its first step
                client.close()

        task.add_done_callback(ended)


async def _readable(sock: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        if sock.fileno() >= 0:
            loop.remove_reader(sock)


async def _listen(host: str, port: int, socket_bytes: int | None, shared: bool) -> list[socket.socket]:
    """Returns a listening socket for each address of the host; without a host, one for all addresses of the machine. Raises ``OSError``."""
    if not host:
        dual = socket.has_dualstack_ipv6()  # otherwise IPv4 only
        family = socket.AF_INET6 if dual else socket.AF_INET
        listeners = [
            socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=_BACKLOG, reuse_port=shared)
        ]
    else:
        loop = asyncio.get_running_loop()
        # Bytes, because for text Python loads a codec whose tables stay in memory.
        name = host.encode() if host.isascii() else host
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listeners = []
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG, reuse_port=shared)
                listeners.append(listener)
        except OSError:
            for listener in listeners:
                listener.close()
            raise
    for listener in listeners:
        listener.setblocking(False)
        # Accepted sockets inherit the options. Without TCP_NODELAY, the end of a response waits up to 40 ms for the acknowledgement of
        # its beginning; asyncio does not set it, because ``create_server`` leaves the protocol of the socket open.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if socket_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, socket_bytes)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_bytes)
    return listeners


__all__ = ["PROBES", "Handler", "HttpServer", "Limits", "Request", "Response", "Tunnel"]
