"""The server's side of a WebSocket: checks the handshake, and receives and sends messages. Source: RFC 6455."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import struct
from collections.abc import Mapping
from enum import IntEnum

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_MESSAGE = 4 * 1024 * 1024  # bytes of one message; Kubernetes' clients send 32 KiB at a time
_CLOSE = 2.0  # seconds to wait for the peer's close frame


class _Op(IntEnum):
    CONTINUE = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class HandshakeError(ValueError):
    """The request is not a WebSocket handshake that the server supports."""


def accept(headers: Mapping[str, str], supported: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Checks a handshake.

    Args:
        headers: the request's headers, with names in lower case.
        supported: the supported subprotocols.

    Returns:
        The client's first subprotocol that the server supports, and the response's headers.

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
    digest = hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()
    response = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": chosen}
    return chosen, response | {"Sec-WebSocket-Accept": base64.b64encode(digest).decode()}


class WebSocket:
    """One connection. ``initial`` contains the bytes that were read after the handshake."""

    def __init__(self, initial: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._buffer = bytearray(initial)
        self._reader = reader
        self._writer = writer
        self._closing = False

    async def receive(self) -> bytes | None:
        """Returns the next message; None after the peer closed the connection, disconnected, or violated the protocol."""
        message = bytearray()
        started = False
        try:
            while True:
                final, op, payload = await self._frame(len(message))
                if op is _Op.PING:
                    await self._send(_Op.PONG, payload)
                elif op is _Op.CLOSE:
                    await self._send_close(payload[:2])
                    return None
                elif op is not _Op.PONG:
                    if (op is _Op.CONTINUE) != started:
                        raise _ProtocolError(1002)
                    started = True
                    message += payload
                    if final:
                        return bytes(message)
        except _ProtocolError as e:
            await self._send_close(struct.pack("!H", e.code))
        except (OSError, EOFError):
            pass
        return None

    async def _frame(self, before: int) -> tuple[bool, _Op, bytes]:
        first, second = await self._exactly(2)
        try:
            op = _Op(first & 0x0F)
        except ValueError:
            raise _ProtocolError(1002) from None
        length = second & 0x7F
        if first & 0x70 or not second & 0x80 or (op >= _Op.CLOSE and (length > 125 or not first & 0x80)):
            raise _ProtocolError(1002)
        if length == 126:
            (length,) = struct.unpack("!H", await self._exactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self._exactly(8))
        if before + length > _MAX_MESSAGE:
            raise _ProtocolError(1009)
        mask = await self._exactly(4)
        return bool(first & 0x80), op, _unmasked(await self._exactly(length), mask)

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = await self._reader.read(65536)
            if not data:
                raise EOFError
            self._buffer += data
        out = bytes(self._buffer[:count])
        del self._buffer[:count]
        return out

    async def send(self, data: bytes) -> None:
        """Sends one binary message. Raises ``OSError`` if the connection broke."""
        await self._send(_Op.BINARY, data)

    async def _send(self, op: _Op, data: bytes) -> None:
        if self._closing:
            return
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x80 | op, size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | op, 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | op, 127, size)
        self._writer.write(head + data)
        await self._writer.drain()

    async def _send_close(self, payload: bytes) -> None:
        with contextlib.suppress(OSError):
            await self._send(_Op.CLOSE, payload)
        self._closing = True

    async def close(self) -> None:
        """Sends a close frame, and waits a limited time for the peer's close frame."""
        if self._closing:
            return
        await self._send_close(struct.pack("!H", 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE):
                while await self.receive() is not None:
                    pass


class _ProtocolError(Exception):
    """The peer violated the protocol. ``code`` is the status of the close frame."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _unmasked(data: bytes, mask: bytes) -> bytes:
    if not data:
        return b""
    repeated = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(data), "big")
