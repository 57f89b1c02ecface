"""The server's side of a WebSocket: checks the handshake, and receives and sends messages. The frames are wsproto's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

_MAX_MESSAGE = 4 * 1024 * 1024  # bytes of one message; Kubernetes' clients send 32 KiB at a time
_CLOSE = 2.0  # seconds to wait for the peer's close frame


class HandshakeError(ValueError):
    """The request is not a WebSocket handshake that the server supports."""


def accept(headers: Mapping[str, str], supported: tuple[str, ...]) -> dict[str, str]:
    """Checks a handshake.

    Args:
        headers: the request's headers, with names in lower case.
        supported: the supported subprotocols.

    Returns:
        The response's headers, with the client's first subprotocol that the server supports.

    Raises:
        HandshakeError: The handshake is not supported.
    """
    if "websocket" not in headers.get("upgrade", "").lower():
        offer = headers.get("upgrade", "")
        raise HandshakeError(f"unable to upgrade: the header Upgrade is {offer!r}, but only 'websocket' is supported")
    if headers.get("sec-websocket-version") != "13":
        raise HandshakeError("unable to upgrade: Sec-WebSocket-Version is not 13")
    key = headers.get("sec-websocket-key", "")
    offered = [p.strip() for p in headers.get("sec-websocket-protocol", "").split(",")]
    chosen = next((p for p in offered if p in supported), None)
    if not key or chosen is None:
        raise HandshakeError(f"unable to upgrade: none of the protocols {offered} is supported, only {list(supported)}")
    token = generate_accept_token(key.encode()).decode()
    response = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": chosen}
    return response | {"Sec-WebSocket-Accept": token}


class WebSocket:
    """One connection. ``initial`` contains the bytes that were read after the handshake."""

    def __init__(self, initial: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection = Connection(ConnectionType.SERVER, trailing_data=initial)
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes | None:
        """Returns the next message; None after the peer closed the connection, disconnected, or violated the protocol."""
        message = bytearray()
        with contextlib.suppress(OSError):
            while True:
                for event in self._connection.events():
                    if isinstance(event, Message):
                        message += event.data.encode() if isinstance(event.data, str) else event.data
                        if len(message) > _MAX_MESSAGE:
                            event = CloseConnection(CloseReason.MESSAGE_TOO_BIG)
                        elif event.message_finished:
                            return bytes(message)
                    if isinstance(event, Ping):
                        await self._send(event.response())
                    elif isinstance(event, CloseConnection):  # also wsproto's report of a violation, with its code
                        await self._send(CloseConnection(event.code))
                        return None
                if not (data := await self._reader.read(65536)):
                    return None
                self._connection.receive_data(data)
        return None

    async def send(self, data: bytes) -> None:
        """Sends one binary message. Raises ``OSError`` if the connection broke."""
        await self._send(BytesMessage(data))

    async def _send(self, event: Event) -> None:
        if self._connection.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._writer.write(self._connection.send(event))
            await self._writer.drain()

    async def close(self) -> None:
        """Sends a close frame, and waits a limited time for the peer's close frame."""
        with contextlib.suppress(OSError, TimeoutError):
            await self._send(CloseConnection(CloseReason.NORMAL_CLOSURE))
            async with asyncio.timeout(_CLOSE):
                while self._connection.state is ConnectionState.LOCAL_CLOSING and await self.receive() is not None:
                    pass
