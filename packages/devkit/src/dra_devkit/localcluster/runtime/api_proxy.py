"""Connects a pod to the API server: a listening socket in the pod's network, whose connections this process passes on.

The pod's network has no other way out. The listening socket has the API server's own address, so its certificate is valid.
"""

from __future__ import annotations

import asyncio
import contextlib

from .interface import ApiAccess
from .pod_namespaces import PodNamespaces

_CHUNK = 65536


class ApiProxy:
    """The connections of one pod to the API server. Create it with :meth:`start`."""

    def __init__(self, api: ApiAccess) -> None:
        self._api = api
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, api: ApiAccess, namespaces: PodNamespaces) -> ApiProxy:
        """Starts to listen inside the pod's network.

        Raises:
            OSError: the API server's address cannot be used there, because it is no address of the loopback device.
        """
        proxy = cls(api)
        sock = await namespaces.listen(api.host, api.port)
        proxy._server = await asyncio.start_server(proxy._accepted, sock=sock)
        return proxy

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # An outage of the API server closes the connection, as for any client.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._api.host, self._api.port)
        try:
            both = [
                asyncio.create_task(_copy(reader, server_writer)),
                asyncio.create_task(_copy(server_reader, writer)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            server_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
