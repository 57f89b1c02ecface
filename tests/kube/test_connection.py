"""The lines of a watch, as a connection returns them while they arrive from a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.kube.connection import Connection
from dra_kubeletplugin.kube.http1 import MalformedResponseError
from dra_kubeletplugin.kube.transport import Transport

MIB = 1024 * 1024
UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def watch(*pieces: bytes, stays_open: bool = False) -> AsyncIterator[tuple[Connection, asyncio.Event]]:
    """Opens a watch at a server that sends ``pieces``. The event is set when it has sent them all."""
    sent, done = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            sent.set()
            if stays_open:
                await done.wait()
        writer.transport.abort() if done.is_set() else writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(60):
        transport = Transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            async with transport.stream("/w", {}) as (head, connection):
                assert head.status == 200
                yield connection, sent
        finally:
            done.set()
            await transport.close()


@settings(max_examples=25, deadline=None)
@given(data=st.text("ab\n", max_size=30), cuts=st.lists(st.integers(0, 30), max_size=5))
async def test_lines_do_not_depend_on_the_pieces_in_which_they_arrive(data: str, cuts: list[int]) -> None:
    whole = data.encode()
    edges = sorted({0, len(whole), *(c for c in cuts if c < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    async with watch(UNTIL_THE_END, *pieces) as (connection, _):
        found = [line async for line in connection.lines(30)]
    assert found == [line for line in whole.split(b"\n") if line]


async def test_an_early_end_is_reported_after_the_lines() -> None:
    async with watch(CHUNKED + b"2\r\na\n\r\n") as (connection, _):
        lines = connection.lines(30)
        assert await anext(lines) == b"a"
        with pytest.raises(ConnectionResetError):
            await anext(lines)


async def test_a_server_that_sends_only_half_a_line_times_out() -> None:
    async with watch(UNTIL_THE_END + b"a\n", *[b"b"] * 100, stays_open=True) as (connection, _):
        lines = connection.lines(0.1)
        assert await anext(lines) == b"a"
        with pytest.raises(TimeoutError):
            await anext(lines)


async def test_a_line_may_have_16_mib_and_not_more() -> None:
    long = b"x" * (16 * MIB)
    async with watch(UNTIL_THE_END, long + b"\n", long + b"xx") as (connection, _):
        lines = connection.lines(30)
        assert await anext(lines) == long
        with pytest.raises(MalformedResponseError, match="longer than 16777216 bytes"):
            await anext(lines)


async def test_a_server_waits_while_the_reader_of_a_watch_does_not_read() -> None:
    line = b"x" * (MIB - 1) + b"\n"
    async with watch(UNTIL_THE_END, *[line] * 64) as (connection, sent):
        lines = connection.lines(30)
        await anext(lines)
        await asyncio.sleep(0.5)
        assert not sent.is_set(), "the client buffered a response without a limit"
        assert sum([len(found) + 1 async for found in lines]) == 63 * MIB
