"""A proxy to the local API server that can be slow or silent, return HTML, or close connections.

It speaks HTTPS to the plugin, as in a pod, and plain HTTP to the local API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from bench.apiserver import make_certificate
from dra_devkit.localcluster.listeners import stop_listening

CHUNK = 64 * 1024  # bytes
PAGE = b"<html><body>Please log in to the network of the hotel</body></html>"


class Mode(enum.Enum):
    PASS = enum.auto()
    SLOW = enum.auto()  # every chunk, either way, comes late
    SILENT = enum.auto()  # accepts connections, reads requests and returns nothing
    HTML = enum.auto()  # returns 200 OK with text/html for each request
    RESET = enum.auto()  # closes each connection


class FaultyProxy:
    """A proxy with a fault mode; use it with ``async with``. It writes ``account`` like the folder of a pod's service account.

    Args:
        server: URL of the API server, plain HTTP.
        token: the bearer token of the API server.
        account: the folder, which must not exist.
        delay: seconds before each chunk in the mode SLOW.
    """

    def __init__(self, server: str, token: str, account: Path, delay: float = 0.3) -> None:
        url = urlsplit(server)
        self._upstream = (url.hostname, url.port)
        self._token = token
        self.account = account
        self.delay = delay
        self.mode = Mode.PASS
        self.port = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._broken: set[asyncio.StreamWriter] = set()  # connections that lost bytes, so they cannot be used again

    async def __aenter__(self) -> FaultyProxy:
        self.account.mkdir()
        make_certificate(self.account)
        (self.account / "token").write_text(self._token)
        (self.account / "namespace").write_text("dra-system")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.account / "ca.crt", self.account / "ca.key")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await stop_listening(self._server)
        for task in [*self._connections]:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def set_mode(self, mode: Mode) -> None:
        """Sets the mode for open and future connections."""
        self.mode = mode
        for writer in [*self._connections.values()]:
            if mode is Mode.RESET or (mode is Mode.PASS and writer in self._broken):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections[task] = writer
        try:
            if self.mode is not Mode.RESET:
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # a peer closed the connection or the test has ended; no caller can handle the error
        finally:
            del self._connections[task]
            self._broken.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await self._connected()
        pumps = [
            asyncio.create_task(self._pump(reader, up_writer, writer, is_request=True)),
            asyncio.create_task(self._pump(up_reader, writer, writer, is_request=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up_writer.transport.abort()  # before the awaits below, which may be cancelled
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            with contextlib.suppress(OSError):
                await up_writer.wait_closed()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection to the API server.

        The shield prevents a leak: a connection that is cancelled during its creation has no owner to close it.
        """
        connecting = asyncio.create_task(asyncio.open_connection(*self._upstream))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            _, writer = await connecting
            writer.transport.abort()
            raise

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        is_request: bool,
    ) -> None:
        while data := await source.read(CHUNK):
            if self.mode is Mode.SLOW:
                await asyncio.sleep(self.delay)
            if self.mode in {Mode.SILENT, Mode.HTML}:
                self._broken.add(client)
                if self.mode is Mode.HTML and is_request:
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\n\r\n"
                    client.write(head.encode() + PAGE)
                    await client.drain()
                continue
            sink.write(data)
            await sink.drain()
