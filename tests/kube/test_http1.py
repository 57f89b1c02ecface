"""Tests requests as h11 reads them, and responses in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.kube.http1 import (
    HttpResponse,
    MalformedResponseError,
    ResponseReader,
    header_block,
    request_bytes,
)

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a:  2 \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = CHUNKED + b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
UNTIL_THE_END = b"HTTP/1.0 200\r\nConnection: keep-alive\r\n\r\nuntil the end"


def read(data: bytes, cuts: list[int] | None = None) -> tuple[HttpResponse, bool]:
    """Returns the response, which arrives in pieces, and whether the connection can be used again."""
    reader = ResponseReader()
    for start, end in itertools.pairwise(sorted({min(c, len(data)) for c in cuts or []} | {0, len(data)})):
        reader.feed(data[start:end])
    if not reader.done:
        reader.end()
    assert reader.head
    return HttpResponse(reader.head.status, reader.head.headers, b"".join(reader.take())), reader.keeps


@pytest.mark.parametrize(
    ("data", "status", "body", "usable"),
    [
        (LENGTH, 200, b"hello", True),
        (CHUNKS, 201, b"hello0123456789", True),
        (UNTIL_THE_END, 200, b"until the end", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + LENGTH, 200, b"hello", True),
        (b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n", 200, b"", False),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n0fF\r\n%b\r\n0\r\n\r\n" % bytes(255),
            200,
            bytes(255),
            True,
        ),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_every_form_of_response_is_read(data: bytes, status: int, body: bytes, usable: bool, cut: int) -> None:
    response, found = read(data, list(range(0, len(data), cut)))
    assert (response.status, response.body, found) == (status, body, usable)
    assert b"a" not in response.headers, "a header of an earlier response"


@pytest.mark.parametrize("data", [LENGTH, CHUNKS, b"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\n\r\n"])
@pytest.mark.parametrize("more", [b"x", LENGTH, LENGTH + LENGTH])
def test_data_after_a_response_ends_the_connection_and_not_the_response(data: bytes, more: bytes) -> None:
    expected, _ = read(data)
    assert read(data + more) == (expected, False)
    assert read(data + more, [len(data)]) == (expected, False)


@settings(max_examples=100, deadline=None)
@given(
    data=st.sampled_from([LENGTH, CHUNKS, UNTIL_THE_END]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    at=st.integers(0, 200),
    byte=st.binary(max_size=1),
)
def test_the_result_does_not_depend_on_the_pieces_in_which_it_arrives(
    data: bytes, cuts: list[int], at: int, byte: bytes
) -> None:
    data = data[:at] + byte + data[at + 1 :]
    results = []
    for pieces in ([], cuts):
        try:
            results.append(read(data, pieces))
        except (MalformedResponseError, ConnectionResetError) as e:
            results.append(type(e))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (LENGTH[:17], b"X: y\r\n"),
        (LENGTH[:17] + b"X: ", b"yyyyyy"),
        (CHUNKED + b"1;", b"000000"),
        (CHUNKED + b"0\r\nX: ", b"yyyyyy"),
    ],
    ids=["headers", "a header", "a line between chunks", "a trailer"],
)
def test_endless_headers_are_rejected(start: bytes, more: bytes) -> None:
    with pytest.raises(MalformedResponseError, match="65536"):
        read(start + more * 12_000, list(range(0, 72_000, 1000)))


def test_repeated_headers_are_joined() -> None:
    response, _ = read(b"HTTP/1.1 200 OK\r\nA: 1\r\nContent-Length: 1\r\na: 1\r\nE:\r\nA:\t2 \r\nB: x\r\n\r\ny")
    assert response.headers == {b"a": b"1, 1, 2", b"content-length": b"1", b"b": b"x", b"e": b""}
    assert (response.header(b"b"), response.header(b"c")) == ("x", "")


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("GET", b"", ""), ("DELETE", b"", ""), ("DELETE", b"{}", "2")]
    + [(m, b, str(len(b))) for m in ("POST", "PUT", "PATCH") for b in (b"", b"{}")],
)
def test_a_request_has_a_content_length_if_its_method_allows_a_body(method: str, body: bytes, length: str) -> None:
    length_header = f"Content-Length: {length}\r\n" if length else ""
    sent = request_bytes(method, "/a", header_block({"Host": "x"}), body)
    assert sent == f"{method} /a HTTP/1.1\r\n{length_header}Host: x\r\n\r\n".encode() + body


@pytest.mark.parametrize("text", ["a\r\nX: y", "a\nb", "ä", "\0", "\ud800"])
def test_text_that_would_inject_a_request_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="header"):
        header_block({"Authorization": text})
    with pytest.raises(ValueError, match="target"):
        request_bytes("GET", f"/{text}", b"", b"")
