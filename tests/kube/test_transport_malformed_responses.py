"""The client with malformed responses: bytes, statuses, versions and objects."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.errors import ApiError, printable
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.credentials import TokenFile
from dra_kubeletplugin.kube.errors import GoneError
from dra_kubeletplugin.kube.http1 import MalformedResponseError
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.kube.transport import Transport
from tests.helpers.raw_server import RawServer, http_response, serve_replies

OBJECT = http_response({"kind": "X"})
PAGE = b"<html>Gateway</html>"
HTML = "Content-Type: text/html\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("bytes_", "status", "text"),
    [
        (http_response(PAGE, "200 OK", HTML), 0, "not JSON.*Gateway"),
        (http_response(PAGE, "403 Forbidden", HTML), 0, "403 <html>Gateway"),
        (http_response(PAGE, "404 Not Found", HTML), 0, "404"),
        (http_response(PAGE, "502 Bad Gateway", HTML), 502, "502 <html>Gateway"),
        (http_response(b"404 page not found\n", "404 Not Found"), 404, "404 page not found"),
        (
            http_response(b"", "302 Found", "Location: https://login.example.com/\r\n"),
            0,
            "302, a redirect to 'https://login",
        ),
        (http_response({"message": "m"}, "399 -"), 0, "399, a redirect"),
        (http_response([1], "409 Conflict"), 409, "409 \\[1\\]"),
        (http_response(b"x" * 5000, "500 -"), 500, f"500 {'x' * 297}\\.\\.\\.$"),
        (http_response([1, 2]), 0, "not a JSON object: \\[1, 2\\]"),
        (http_response(b'"text"'), 0, "not a JSON object"),
        (http_response(b'{"a":'), 0, "not JSON"),
        (http_response(b'{"a":"\xff"}'), 0, "not JSON|cannot be used"),
        (http_response(b"[" * 100_000), 0, "not JSON"),
        (http_response({"message": "\ud800\x1b[31m", "code": 409}, "409 Conflict"), 409, "409"),
        (http_response({"message": ["odd"]}, "422 Unprocessable Entity"), 422, "odd"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", 0, "end of a response|cannot be reached|not HTTP"),
        (CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", 0, "not HTTP"),
        (CHUNKED + b"2\r\n{}", 0, "not HTTP|cannot be reached"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 0, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: \xc3\xa4\r\nContent-Length: 2\r\n\r\n[]", 0, "not a JSON object"),
        (b"HTTP/1.1 200 OK\r\n\xc3\xa4: x\r\nContent-Length: 2\r\n\r\n{}", 0, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n", 0, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}", 0, "cannot be reached|not HTTP"),
        (None, 0, "cannot be reached"),
    ],
)
async def test_a_malformed_response_is_an_api_error(bytes_: bytes | None, status: int, text: str) -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes | None:
        asyncio.get_running_loop().call_later(0.05, peer.cut)
        return bytes_

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        with pytest.raises(ApiError, match=text) as e:
            await client.call("GET", "/x", timeout=30)
        assert e.value.status == status
        assert str(e.value).replace("\n", " ").isprintable()
        assert str(e.value).startswith("GET /x: ")
        assert e.value.unreachable == (status == 0 or status >= 500)


@pytest.mark.parametrize(("size", "more"), [(1, 0), (1000, 0), (100_000, 2_000_000)])
async def test_a_refused_watch_has_the_status_of_the_server_however_its_response_arrives(size: int, more: int) -> None:
    whole = http_response({"kind": "Status", "message": "too old", "code": 410, "more": "x" * more}, "410 Gone")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(whole), size):
            writer.write(whole[start : start + size])
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        config = ApiConfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with KubeClient(config) as client:
            with pytest.raises(GoneError, match=r"GET /w: 410 .*too old"):
                async with client.stream("/w", {}, 30, lambda: None):
                    pytest.fail("opened")


async def test_the_client_rejects_a_response_over_the_limit_before_it_fills_memory() -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        return CHUNKED + (b"100000\r\n" + b" " * 2**20 + b"\r\n") * 4

    async with RawServer(reply) as peer:
        transport = Transport(peer.url, max_body=2**20)
        with pytest.raises(MalformedResponseError, match="1048576"):
            await transport.request("GET", "/x", {})
        await transport.close()


async def test_a_token_that_is_invalid_in_a_header_is_an_api_error(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with serve_replies(OBJECT) as peer:
        async with KubeClient(ApiConfig(peer.url, credentials=TokenFile(token))) as client:
            for text, said in (
                (None, "No such file"),
                (b"", "is empty"),
                (b"a\nb", "no token has"),
                ("ä".encode(), "no token has"),
                (b"\xff", "cannot be used"),
            ):
                if text is not None:
                    token.write_bytes(text)
                with pytest.raises(ApiError, match=said) as e:
                    await client.call("GET", "/x")
                assert e.value.unreachable
                assert str(token) in str(e.value)
            token.write_text("good\n")
            await client.call("GET", "/x")
        assert len(peer.requests) == 1
        assert b"Authorization: Bearer good\r\n" in peer.requests[0].replace(b"authorization", b"Authorization")


GOOD = http_response({"kind": "X", "metadata": {}, "items": []}, headers="Content-Type: application/json\r\n")


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draws a valid response with bytes changed, cut or repeated, or random bytes."""
    data = bytearray(draw(st.sampled_from([GOOD, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", http_response(PAGE, "302 Found")])))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["set", "cut", "insert", "twice"])):
            case "set":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del data[at : at + draw(st.integers(0, 20))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "twice":
                data += data[at:]
    return draw(st.just(bytes(data)) | st.binary(max_size=200))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=mutated(), second=mutated())
def test_arbitrary_bytes_raise_only_api_errors(first: bytes, second: bytes) -> None:
    async def one() -> None:
        async def reply(peer: RawServer, request: bytes) -> bytes:
            asyncio.get_running_loop().call_later(0.01, peer.cut)
            return first if len(peer.requests) % 2 else second

        async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
            for _ in range(2):
                started = time.monotonic()
                try:
                    assert isinstance(await client.call("GET", "/x", timeout=1), dict)
                except ApiError as e:
                    assert str(e) == printable(e)
                assert time.monotonic() - started < 20

    asyncio.run(one())


# --- served versions ---------------------------------------------------------------------------------


async def test_all_waiting_callers_share_one_version_request() -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        await asyncio.sleep(0.05)
        return http_response({"versions": [{"version": "v1beta1"}, {"version": "v1"}, "odd", {}]})

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        found = await asyncio.gather(*(client.dra("resourceslices") for _ in range(32)))
        assert {f.version for f in found} == {"v1"}
        assert len(peer.requests) == 1


@pytest.mark.parametrize("body", [{}, {"versions": None}, {"versions": "v1"}, {"versions": {"v1": 1}}])
async def test_malformed_version_responses_are_api_errors(body: Any) -> None:
    async with serve_replies(http_response(body)) as peer, KubeClient(ApiConfig(peer.url)) as client:
        with pytest.raises(ApiError, match="lists no versions") as e:
            await client.dra_version()
        assert e.value.unreachable


async def test_only_a_404_of_the_whole_resource_forgets_the_version() -> None:
    about_object = http_response({"details": {"name": "c", "kind": "resourceclaims"}}, "404 Not Found")
    whole = http_response(b"404 page not found\n", "404 Not Found")
    versions = [http_response({"versions": [{"version": v}]}) for v in ("v1beta1", "v1")]
    async with (
        serve_replies(versions[0], about_object, whole, versions[1]) as peer,
        KubeClient(ApiConfig(peer.url)) as client,
    ):
        assert await client.dra_version() == "v1beta1"
        for left in ("v1beta1", "v1"):
            with pytest.raises(ApiError):
                await client.get(CLAIMS, "c", "default")
            assert await client.dra_version() == left
        assert len(peer.requests) == 4


NO_OBJECTS: list[Any] = [
    {},
    {"metadata": None},
    {"metadata": {"name": "c", "uid": "", "resourceVersion": "1"}},
    {"metadata": {"name": 7, "uid": "u", "resourceVersion": "1"}},
    {"metadata": {"name": "c", "uid": "u", "resourceVersion": 1}},
]


@pytest.mark.parametrize("body", NO_OBJECTS)
async def test_an_object_without_its_identity_is_rejected(body: Any) -> None:
    claim = {"metadata": {"name": "c", "namespace": "default"}}
    async with serve_replies(http_response(body)) as peer, KubeClient(ApiConfig(peer.url)) as client:
        for retry_after in (
            client.get(CLAIMS, "c", "default"),
            client.create(CLAIMS, claim),
            client.update(CLAIMS, claim),
            client.patch(CLAIMS, "c", {}, "default"),
        ):
            with pytest.raises(ApiError, match="not an object with name, UID and resourceVersion") as e:
                await retry_after
            assert e.value.unreachable


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"items": [], "metadata": {"resourceVersion": 1}},
        {"items": [], "metadata": {"resourceVersion": "1", "continue": 1}},
        {"items": {}, "metadata": "x"},
        {"items": {"a": 1}, "metadata": {"resourceVersion": "1"}},
        *({"items": [o], "metadata": {"resourceVersion": "1"}} for o in (*NO_OBJECTS, None, "x")),
    ],
)
async def test_a_list_without_valid_objects_is_rejected(body: Any) -> None:
    async with serve_replies(http_response(body)) as peer, KubeClient(ApiConfig(peer.url)) as client:
        with pytest.raises(ApiError, match=r"GET /apis.*: the response is not") as e:
            await client.list(CLAIMS)
        assert e.value.unreachable


async def test_an_empty_list_may_be_null() -> None:
    body = {"items": None, "metadata": {"resourceVersion": "1"}}
    async with serve_replies(http_response(body)) as peer, KubeClient(ApiConfig(peer.url)) as client:
        assert (await client.list(CLAIMS))["items"] == []
