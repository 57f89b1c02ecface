"""A running HTTP server, and clients that it closes at the end."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from dra_kubeletplugin.base.http_server.server import Handler, HttpServer, Limits, Request, Response

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * 300_000


class RunningServer:
    """A server whose handler waits for ``go_on`` at the path ``paused_path``, unless it gets another handler."""

    def __init__(
        self,
        limits: Limits | None = None,
        address: str = "127.0.0.1:0",
        *,
        paused_path: str = "/hold",
        handler: Handler | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.paused_path = paused_path
        self.server = HttpServer(handler or self._handle, address, tls, limits)
        self.go_on = asyncio.Event()
        self.paused = 0
        self.port = 0
        self._clients: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> RunningServer:
        self.port = int((await self.server.start()).rpartition(":")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._clients:
            writer.transport.abort()
        await self.server.close()

    async def _handle(self, request: Request) -> Response:
        if request.path == self.paused_path:
            self.paused += 1
            await self.go_on.wait()
        return Response(200, LARGE if request.path == "/large" else b"ok " + request.path.encode(), "text/plain")

    async def until_paused(self, count: int) -> None:
        """Waits until ``count`` requests have reached the paused path."""
        async with asyncio.timeout(60):
            while self.paused < count:
                await asyncio.sleep(0.01)

    async def connect(self, data: bytes = b"", host: str = "127.0.0.1", **options: Any) -> Client:
        reader, writer = await asyncio.open_connection(host, self.port, **options)
        self._clients.append(writer)
        writer.write(data)
        return reader, writer

    async def get(self, path: str = "/healthz", **options: Any) -> bytes:
        head = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode()
        return await self.exchange(head, **options)

    async def post(self, body: bytes) -> bytes:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        return await self.exchange(head + body)

    async def exchange(self, data: bytes, **options: Any) -> bytes:
        async with asyncio.timeout(60):
            reader, writer = await self.connect(data, **options)
            response = await reader.read()
            writer.transport.abort()
            return response


async def is_closed(client: Client, seconds: float = 60.0) -> bool:
    """Returns whether the server closes a connection, also by a reset."""
    try:
        async with asyncio.timeout(seconds):
            while await client[0].read(65536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
