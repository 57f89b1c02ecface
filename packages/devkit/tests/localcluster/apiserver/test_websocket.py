"""WebSockets: fragments, pings, close codes, and peers that violate the protocol. The tests of wsproto test the frames."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver.websocket import HandshakeError, WebSocket, accept

TEXT, BINARY, CONTINUE, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


def frame(
    op: int, data: bytes = b"", *, final: bool = True, masked: bool = True, mask: bytes = b"\x01\x02\x03\x04"
) -> bytes:
    size = len(data)
    length = bytes([size]) if size < 126 else b"\x7f" + struct.pack("!Q", size)
    if not masked:
        return bytes([0x80 * final | op]) + length + data
    body = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
    return bytes([0x80 * final | op, length[0] | 0x80]) + length[1:] + mask + body


class Peer(asyncio.Transport):
    """Records the data sent to the peer."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return True  # a discarded writer calls this


def open_socket(data: bytes, *, initial: int = 0) -> tuple[WebSocket, Peer]:
    reader, peer = asyncio.StreamReader(), Peer()
    reader.feed_data(data[initial:])
    reader.feed_eof()
    protocol = asyncio.StreamReaderProtocol(reader)
    writer = asyncio.StreamWriter(peer, protocol, reader, asyncio.get_running_loop())
    return WebSocket(data[:initial], reader, writer), peer


async def test_fragments_with_a_ping_between_them_form_one_message() -> None:
    fragments = (
        frame(BINARY, b"a", final=False) + frame(PING, b"?") + frame(CONTINUE, b"", final=False) + frame(CONTINUE, b"b")
    )
    socket, peer = open_socket(fragments, initial=3)
    assert await socket.receive() == b"ab"
    assert peer.sent == bytes([0x80 | PONG, 1]) + b"?"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"x", masked=False), 1002),
        (frame(BINARY, bytes(3 << 20), final=False) + frame(CONTINUE, bytes(2 << 20)), 1009),
        (frame(TEXT, b"\xff"), 1007),
        (frame(CLOSE, struct.pack("!H", 1000) + b"bye"), 1000),
    ],
)
async def test_a_protocol_violation_closes_the_socket_with_its_code(data: bytes, code: int) -> None:
    socket, peer = open_socket(data)
    assert await socket.receive() is None
    assert peer.sent == bytes([0x80 | CLOSE, 2]) + struct.pack("!H", code)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_do_not_break_the_reader(data: bytes) -> None:
    async def read() -> None:
        socket, _ = open_socket(data)
        async with asyncio.timeout(30):
            while await socket.receive() is not None:
                pass

    asyncio.run(read())


def test_the_handshake_matches_the_example_of_the_rfc() -> None:
    headers = {
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol": "chat, v4.channel.k8s.io",
    }
    response = accept(headers, ("v5.channel.k8s.io", "v4.channel.k8s.io"))
    assert response == {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
        "Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    }


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"upgrade": "SPDY/3.1"}, "the header Upgrade is 'SPDY/3.1', but only 'websocket' is supported"),
        ({"upgrade": "websocket", "sec-websocket-version": "8"}, "not 13"),
        ({"upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}, "none of the protocols"),
    ],
)
def test_an_unsupported_handshake_is_reported(headers: dict[str, str], message: str) -> None:
    with pytest.raises(HandshakeError, match=message):
        accept(headers, ("v5.channel.k8s.io",))
