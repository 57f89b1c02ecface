"""Tests a connection on a stub wire whose bytes the test controls, and the lines of a watch."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.kube.connection import KEEPALIVE, Connection, Lines
from dra_kubeletplugin.kube.http1 import HttpResponse, MalformedResponseError
from tests.helpers.fake_transport import Wire

MIB = 1024 * 1024


@contextlib.asynccontextmanager
async def connect_wire(lost: list[Connection] | None = None, **limits: int) -> AsyncIterator[tuple[Connection, Wire]]:
    with socket.socket() as peer:
        wire = Wire(peer)
        connection = Connection((lost if lost is not None else []).append, **limits)
        connection.connection_made(wire)
        yield connection, wire


async def start_request(connection: Connection) -> asyncio.Task[HttpResponse]:
    task = asyncio.create_task(connection.request("GET", "/x", b"", b""))
    await asyncio.sleep(0)
    return task


def response_bytes(body: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


async def test_a_connection_serves_requests_in_turn_without_data_of_earlier_requests() -> None:
    async with connect_wire() as (connection, wire):
        assert (connection.usable(), connection.has_response) == (True, False)
        connection.eof_received()
        for body in (b"one", b"", b"three"):
            task = await start_request(connection)
            assert (connection.usable(), connection.has_response) == (False, False)
            for at in range(len(response_bytes(body))):
                assert not task.done()
                connection.data_received(response_bytes(body)[at : at + 1])
                assert connection.has_response
            assert connection.usable()
            answer = await task
            assert (answer.status, answer.body, wire.ended) == (200, body, "")
        assert wire.sent == [b"GET /x HTTP/1.1\r\n\r\n"] * 3


@pytest.mark.parametrize("cut", range(1, 5))
async def test_the_connection_joins_the_pieces_of_a_body(cut: int) -> None:
    async with connect_wire() as (connection, _):
        task = await start_request(connection)
        whole = response_bytes(b"hello")
        connection.data_received(whole[:-cut])
        connection.data_received(whole[-cut:])
        assert (await task).body == b"hello"


async def test_the_connection_sees_the_peer_s_unread_data_in_the_kernel() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client_socket,
    ):
        server_socket, _ = server.accept()
        connection = Connection(lambda connection: None)
        connection.connection_made(Wire(client_socket))
        assert not connection.unread()
        server_socket.close()
        async with asyncio.timeout(30):
            while not connection.unread():
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("before", [b"", response_bytes(b"x")], ids=["before any request", "after an answer"])
async def test_unrequested_bytes_end_a_connection(before: bytes) -> None:
    async with connect_wire() as (connection, wire):
        if before:
            task = await start_request(connection)
            connection.data_received(before)
            await task
        connection.data_received(b"H")
        assert (wire.ended, connection.usable()) == ("aborted", False)


async def test_a_malformed_response_fails_its_request_and_the_connection() -> None:
    async with connect_wire() as (connection, wire):
        task = await start_request(connection)
        connection.data_received(b"SSH-2.0")
        assert wire.ended == "aborted"
        with pytest.raises(MalformedResponseError, match="SSH"):
            await task


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nhalf", b"half"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhalf", None),
        (b"", None),
        (response_bytes(b"whole"), b"whole"),
    ],
)
async def test_the_end_of_the_peer_completes_only_a_response_without_a_length(data: bytes, body: bytes | None) -> None:
    async with connect_wire() as (connection, _):
        task = await start_request(connection)
        connection.data_received(data)
        connection.eof_received()
        await asyncio.sleep(0)
        assert task.done()
        if body is None:
            with pytest.raises(ConnectionResetError, match="before the end of a response"):
                await task
        else:
            assert (await task).body == body


async def test_a_lost_connection_fails_its_request_and_all_later_requests() -> None:
    lost: list[Connection] = []
    async with connect_wire(lost) as (connection, wire):
        task = await start_request(connection)
        connection.connection_lost(OSError("no route"))
        with pytest.raises(OSError, match="no route"):
            await task
        assert (lost, connection.gone.done(), connection.usable()) == ([connection], True, False)
        with pytest.raises(ConnectionResetError, match="before the request"):
            await connection.request("GET", "/x", b"", b"")
        assert len(wire.sent) == 1


async def test_a_cancelled_request_ends_its_connection() -> None:
    async with connect_wire() as (connection, wire):
        task = await start_request(connection)
        task.cancel()
        await asyncio.wait({task})
        assert (task.cancelled(), wire.ended) == (True, "aborted")


async def test_every_response_may_be_as_large_as_the_limit_and_not_larger() -> None:
    async with connect_wire(max_body=5) as (connection, wire):
        for _ in range(2):
            task = await start_request(connection)
            connection.data_received(response_bytes(b"12345"))
            assert (await task).body == b"12345"
        task = await start_request(connection)
        connection.data_received(response_bytes(b"123456"))
        assert wire.ended == "aborted"
        with pytest.raises(MalformedResponseError, match="5 bytes"):
            await task


async def test_a_response_may_have_128_mib_and_not_one_byte_more() -> None:
    async with connect_wire() as (connection, wire):
        task = await start_request(connection)
        connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        piece = bytes(MIB)
        for _ in range(128):
            connection.data_received(piece)
        await asyncio.sleep(0)
        assert not task.done()
        connection.data_received(b"x")
        assert wire.ended == "aborted"
        with pytest.raises(MalformedResponseError, match="larger"):
            await task


@pytest.mark.parametrize("end", [Connection.close, Connection.abort])
async def test_a_closing_connection_is_not_usable(end: Callable[[Connection], None]) -> None:
    async with connect_wire() as (connection, wire):
        end(connection)
        assert (connection.usable(), wire.ended) == (False, "closed" if end is Connection.close else "aborted")


async def test_a_connection_that_the_peer_will_close_is_not_usable() -> None:
    async with connect_wire() as (connection, _):
        task = await start_request(connection)
        connection.data_received(response_bytes(b"x", b"Connection: close\r\n"))
        await task
        assert not connection.usable()


async def test_a_connection_to_a_peer_that_is_silent_for_30_seconds_is_aborted() -> None:
    options = {(level, option): value for level, option, value in KEEPALIVE}
    idle, interval, count = (
        options[socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{n}")] for n in ("IDLE", "INTVL", "CNT")
    )
    assert (idle, idle + interval * count, options[socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT]) == (15, 30, 30_000)
    assert interval == 5
    async with connect_wire() as (_, wire):
        peer = wire.get_extra_info("socket")
        assert all(peer.getsockopt(level, option) == value for level, option, value in KEEPALIVE)


# --- lines --------------------------------------------------------------------------------------------------


async def rest_of(lines: Lines) -> list[bytes]:
    async with asyncio.timeout(30):
        return [line async for line in lines.read(60)]


@settings(max_examples=50, deadline=None)
@given(data=st.text("ab\n", max_size=30), cuts=st.lists(st.integers(0, 30), max_size=5))
async def test_lines_do_not_depend_on_the_pieces_in_which_they_arrive(data: str, cuts: list[int]) -> None:
    lines = Lines(lambda pause: None)
    reading = asyncio.create_task(rest_of(lines))
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        lines.feed(data[at:cut].encode())
        at = max(at, cut)
        await asyncio.sleep(0)
    lines.end(None)
    assert await reading == [line.encode() for line in data.split("\n") if line]


async def test_an_error_is_raised_after_the_earlier_lines_and_ends_the_stream() -> None:
    lines = Lines(lambda pause: None)
    lines.feed(b"a\nb\nha")
    lines.end(OSError("cut"))
    lines.end(None)
    lines.feed(b"lf\nmore\n")
    got: list[bytes] = []
    with pytest.raises(OSError, match="cut"):
        async for line in lines.read(1):
            got.append(line)
    assert got == [b"a", b"b", b"ha"]


@pytest.mark.parametrize(
    "event", [lambda lines: lines.feed(b"x\n"), lambda lines: lines.end(None)], ids=["a line", "the end"]
)
async def test_a_waiting_reader_wakes_up_when_a_line_arrives(event: Callable[[Lines], None]) -> None:
    lines = Lines(lambda pause: None)
    reader = lines.read(60)
    waiting: Awaitable[bytes | None] = asyncio.ensure_future(anext(reader, None))
    await asyncio.sleep(0)
    event(lines)
    event(lines)
    async with asyncio.timeout(30):
        assert await waiting in {b"x", None}


async def test_the_silence_timeout_begins_at_the_last_line() -> None:
    lines = Lines(lambda pause: None)
    lines.feed(b"a\nhalf a line")
    reader = lines.read(0.01)
    assert await anext(reader) == b"a"
    with pytest.raises(TimeoutError):
        await anext(reader)


async def test_a_line_may_have_16_mib_and_not_more() -> None:
    lines = Lines(lambda pause: None)
    piece = bytes(b"x" * MIB)
    for _ in range(16):
        lines.feed(piece)
    with pytest.raises(MalformedResponseError, match="longer"):
        lines.feed(b"x")


async def test_reading_pauses_when_the_buffer_exceeds_one_mib() -> None:
    pauses: list[bool] = []
    lines = Lines(pauses.append)
    half = b"x" * (MIB // 2)
    lines.feed(half + b"\n" + half + b"\n")
    assert not pauses
    lines.feed(b"y\n")
    lines.feed(b"z\n")
    assert pauses == [True]
    reader = lines.read(1)
    assert await anext(reader) == half
    assert pauses == [True, False]
    lines.feed(half + b"\n")
    assert pauses == [True, False, True], "1 MiB and 2 bytes"
    lines.end(None)
    assert [len(line) async for line in reader] == [MIB // 2, 1, 1, MIB // 2]
    assert pauses == [True, False, True, False]


async def test_reading_continues_only_when_the_buffer_is_below_one_mib() -> None:
    pauses: list[bool] = []
    lines = Lines(pauses.append)
    lines.feed(b"y\n" + b"x" * MIB + b"\nz\n")
    reader = lines.read(1)
    await anext(reader)
    await anext(reader)
    assert pauses == [True, False]
    lines.feed(b"x" * (MIB - 1) + b"\ny\n")
    assert await anext(reader) == b"z"
    assert pauses == [True, False, True], "the buffer has 1 MiB"
    await anext(reader)
    assert pauses == [True, False, True, False]


async def test_a_stream_returns_its_head_first_and_a_full_buffer_pauses_the_wire() -> None:
    async with connect_wire() as (connection, wire):
        task = asyncio.create_task(connection.stream("/w", b""))
        await asyncio.sleep(0)
        assert wire.sent == [b"GET /w HTTP/1.1\r\n\r\n"]
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        head, lines = await task
        assert head.status == 200
        connection.data_received(b"%x\r\n%b\r\n" % (2 * MIB, b"x" * MIB + b"\n" + b"y" * (MIB - 2) + b"\n"))
        assert wire.reading == [True, False]
        connection.data_received(b"0\r\n\r\n")
        assert [len(line) for line in await rest_of(lines)] == [MIB, MIB - 2]
        assert wire.reading == [True, False, True]


@pytest.mark.parametrize(
    ("data", "eof"), [(b"zz\r\n", False), (b"", True), (b"", False)], ids=["no chunk", "an end", "a loss"]
)
async def test_an_early_end_of_a_stream_is_reported_after_its_lines(data: bytes, eof: bool) -> None:
    async with connect_wire() as (connection, wire):
        task = asyncio.create_task(connection.stream("/w", b""))
        await asyncio.sleep(0)
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n")
        _, lines = await task
        if data:
            connection.data_received(data)
        elif eof:
            connection.eof_received()
        else:
            connection.connection_lost(None)
        reader = lines.read(1)
        assert await anext(reader) == b"a"
        with pytest.raises((MalformedResponseError, ConnectionResetError)):
            await anext(reader)
        wire.abort()
        lines.feed(b"x" * 2 * MIB + b"\n")  # the reader ignores data after the end of the stream
        assert wire.reading == [True]


async def test_a_closing_wire_is_not_paused() -> None:
    async with connect_wire() as (connection, wire):
        task = asyncio.create_task(connection.stream("/w", b""))
        await asyncio.sleep(0)
        connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        _, lines = await task
        connection.close()
        connection.data_received(b"x" * (MIB + 1) + b"\n")
        connection.eof_received()
        assert [len(line) for line in await rest_of(lines)] == [MIB + 1]
        assert wire.reading == [True]
