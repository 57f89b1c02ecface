"""Compares the HTTP/1.1 parser with h11: it accepts nothing that h11 rejects, and never returns a different result."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.kube.http1 import MalformedResponseError, ResponseReader, header_block, request_bytes

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a:  2 \r\n\r\nhello"
CHUNKS = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
OTHERS = [
    LENGTH,
    CHUNKS,
    b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200\r\nConnection: keep-alive\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nFolded: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
]

Read = tuple[int, bytes, bool]


def read_with_parser(data: bytes, cuts: list[int]) -> Read | None:
    """Returns status, body and whether the connection can be reused; None for a refused or incomplete response."""
    body: list[bytes] = []
    response = ResponseReader(body.append)
    places = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    try:
        for start, end in itertools.pairwise(places):
            response.feed(data[start:end])
        if not response.done:
            response.end()
    except (MalformedResponseError, ConnectionResetError):
        return None
    assert response.head
    return response.head.status, b"".join(body), response.keeps


def read_with_h11(data: bytes) -> Read | None:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, b""
    try:
        connection.receive_data(data)
        ended = False
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            elif event is h11.NEED_DATA and not ended:
                ended = True
                connection.receive_data(b"")
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None
    keeps = connection.their_state is h11.DONE and not connection.trailing_data[0] and not ended
    return status, body, keeps


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(OTHERS)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + 1] = draw(
                    st.sampled_from([b"\r", b"\n", b" ", b":", b"\0", b"\xff", b"0", b"f", b";", b","])
                )
            case 1:
                del data[at : at + draw(st.integers(1, 6))]
            case 2:
                data[at:at] = draw(st.binary(max_size=4))
            case 3:
                data += data[at:]
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(data=responses(), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_h11_returns_the_same_result_for_every_accepted_response(data: bytes, cuts: list[int]) -> None:
    found = read_with_parser(data, cuts)
    assert found == read_with_parser(data, []), "the result depends on the pieces of the data"
    if found is not None:
        assert found == read_with_h11(data)


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_responses_of_api_servers_are_accepted(cut: int) -> None:
    for data, expected in ((LENGTH, (200, b"hello", True)), (CHUNKS, (201, b"hello0123456789", True))):
        assert read_with_parser(data, list(range(0, 200, cut))) == expected
    assert read_with_parser(OTHERS[4], []) == (200, b"until the end", False)


@pytest.mark.parametrize("data", OTHERS[7:])
def test_the_parser_rejects_ambiguous_responses(data: bytes) -> None:
    assert read_with_parser(data, []) is None


def test_endless_heads_and_chunk_lines_are_rejected() -> None:
    for start, more in ((b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), (CHUNKS[:55], b"0")):
        response = ResponseReader(lambda _: None)
        response.feed(start)
        with pytest.raises(MalformedResponseError):
            for _ in range(100_000):
                response.feed(more)


def read(data: bytes, *, tunnel: bool = False) -> tuple[ResponseReader, bytes]:
    body: list[bytes] = []
    response = ResponseReader(body.append, tunnel=tunnel)
    response.feed(data)
    return response, b"".join(body)


@pytest.mark.parametrize("more", [0, 1])
def test_a_head_may_have_64_kib_and_not_more(more: int) -> None:
    start = b"HTTP/1.1 204 No Content\r\nX: "
    head = start + b"x" * (64 * 1024 - len(start) + more)
    whole, held = ResponseReader(print), ResponseReader(print)
    if more:
        with pytest.raises(MalformedResponseError, match="head"):
            whole.feed(head + b"\r\n\r\n")
        with pytest.raises(MalformedResponseError, match="head"):
            held.feed(head)
    else:
        whole.feed(head + b"\r\n\r\n")
        held.feed(head)
        assert (whole.done, held.done) == (True, False)


def test_a_line_between_chunks_may_have_4_kib_with_its_end_and_not_more() -> None:
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    longest = b"0;" + b"x" * (4096 - 4)
    assert read(start + longest + b"\r\n\r\n")[0].done
    assert not read(start + longest + b"x")[0].done
    with pytest.raises(MalformedResponseError, match="too long"):
        read(start + longest + b"xx")


@pytest.mark.parametrize(
    ("status", "tunnel", "has_body"),
    [(200, False, True), (200, True, False), (299, True, False), (300, True, True), (203, False, True)]
    + [(204, t, False) for t in (False, True)]
    + [(205, False, True), (303, False, True), (304, False, False), (304, True, False), (305, False, True)],
)
def test_responses_without_a_body_ignore_content_length(status: int, tunnel: bool, has_body: bool) -> None:
    response, body = read(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\nhello" % status, tunnel=tunnel)
    assert response.done
    assert (body, response.rest) == ((b"hello", b"") if has_body else (b"", b"hello"))
    assert response.keeps == has_body, "the connection has unexpected data, so it cannot be reused"


def test_statuses_100_to_199_except_101_precede_the_response() -> None:
    with pytest.raises(MalformedResponseError, match="protocol"):
        read(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    for status in (100, 102, 199):
        response, _ = read(b"HTTP/1.1 %d X\r\n\r\n" % status)
        assert (response.head, response.done, response.keeps) == (None, False, False)
        response.feed(LENGTH)
        assert response.head
        assert (response.head.status, response.done, response.keeps) == (200, True, True)


@pytest.mark.parametrize("field", [b"X: a\nb", b"X: a\rb", b"X: \0", b"X: \x7f", b"X", b": a", b"X : a", b"\nX: a"])
@pytest.mark.parametrize("trailer", [False, True])
def test_the_parser_rejects_malformed_headers_and_trailers(field: bytes, trailer: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
    data = head + b"\r\n0\r\nY: 1\r\n" + field if trailer else head + field
    with pytest.raises(MalformedResponseError):
        read(data + b"\r\n\r\n")
    read(data.replace(field, b"X: a\tb") + b"\r\n\r\n")


def test_repeated_headers_are_joined_and_equal_content_lengths_are_accepted() -> None:
    response, body = read(
        b"HTTP/1.1 200 OK\r\nA: 1\r\nContent-Length: 1\r\nCONTENT-length: 1\r\na: 1\r\nA:\t2 \r\nB: x\r\n\r\ny"
    )
    assert response.head
    assert (response.head.headers, body) == ({b"a": b"1, 1, 2", b"content-length": b"1", b"b": b"x"}, b"y")
    assert (response.head.header(b"b"), response.head.header(b"c")) == ("x", "")


@pytest.mark.parametrize("size", [1, 9, 10, 15, 16, 17, 255, 256, 4097])
def test_the_size_of_a_chunk_is_hexadecimal(size: int) -> None:
    response, body = read(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, b"z" * size)
    )
    assert (response.done, response.rest, body) == (True, b"", b"z" * size)


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


def test_h11_reads_the_requests() -> None:
    block = header_block({"Host": "x", "Accept": "a/b"})
    for method, body in (("GET", b""), ("POST", b"{}"), ("PUT", b""), ("DELETE", b"{}")):
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(request_bytes(method, "/a?b=c", block, body))
        head = connection.next_event()
        assert isinstance(head, h11.Request)
        assert (head.method, head.target) == (method.encode(), b"/a?b=c")
        event = connection.next_event()
        if body:
            assert isinstance(event, h11.Data)
            assert bytes(event.data) == body
            event = connection.next_event()
        assert isinstance(event, h11.EndOfMessage)
