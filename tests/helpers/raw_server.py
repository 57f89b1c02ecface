"""An HTTP server whose response bytes a test chooses; it counts connections and requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dra_devkit.localcluster.listeners import stop_listening

Reply = Callable[["RawServer", bytes], Awaitable[bytes | None]]


def http_response(body: Any, status: str = "200 OK", headers: str = "") -> bytes:
    """Returns a complete HTTP response; ``body`` is bytes or a JSON value."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data


class RawServer:
    """Responds to each request with the bytes that ``reply`` returns; closes the connection for None."""

    def __init__(self, reply: Reply, tls: ssl.SSLContext | None = None) -> None:
        self.reply = reply
        self.tls = tls
        self.accepted = 0  # connections
        self.requests: list[bytes] = []
        self.most_at_once = 0
        self._running = 0
        self.open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # connections, by the task that serves them

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await stop_listening(self._server)
        self.cut()
        await asyncio.gather(*self.open, return_exceptions=True)

    def cut(self) -> None:
        for task, writer in self.open.items():
            task.cancel()
            writer.close()  # a task that was cancelled before its first step closes nothing

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Registers the connection before its task starts, so that a server that stops in between closes it."""
        self.accepted += 1
        task = asyncio.create_task(self._connection(reader, writer))
        self.open[task] = writer
        task.add_done_callback(self.open.pop)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(v.split(b":")[1]) for v in head.split(b"\r\n") if v.lower().startswith(b"content-length:")), 0
                )
                request = head + await reader.readexactly(length)
                self.requests.append(request)
                self._running += 1
                self.most_at_once = max(self.most_at_once, self._running)
                try:
                    out = await self.reply(self, request)
                finally:
                    self._running -= 1
                if out is None:
                    return
                writer.write(out)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serve_replies(*replies: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """Sends ``replies`` one after the other, and repeats the last one."""

    async def reply(server: RawServer, request: bytes) -> bytes | None:
        return replies[min(len(server.requests), len(replies)) - 1]

    async with RawServer(reply, tls) as server:
        yield server
