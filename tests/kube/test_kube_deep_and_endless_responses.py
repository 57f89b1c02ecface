"""Tests deep, large, endless and slow responses: each ends with an API error within the timeout, and is retried with pauses.

Deeply nested parameters of a user must not make a command fail.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Reflector
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi.conversion import convert
from dra_kubeletplugin.resourceapi.encoded import TOO_DEEP, flattened, from_json
from dra_tools.doctor.redaction import redact_object
from tests.helpers.hostile_text import HOSTILE, HostileServer, assert_clean, cluster
from tests.helpers.kubeconfigs import config_of, write_config
from tests.helpers.raw_server import RawServer, http_response

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MIB = 1 << 20


def item(more: bytes) -> bytes:
    """Returns the JSON of an object that contains ``more``."""
    head = b'{"metadata":{"name":"n","uid":"u","resourceVersion":"1"},"x":'
    return b'{"metadata":{"resourceVersion":"1"},"items":[' + head + more + b"}]}"


BODIES = {
    "nested 100,000 deep without an end": b"[" * 100_000,
    "objects nested 100,000 deep with the wrong ends": b'{"a":' * 100_000 + b"1" + b"]" * 100_000,
    "a number of a million digits": b"9" * 1_000_000,
    "a number beyond all floats": b"1e999999",
    "NaN": b"NaN",
    "bytes that are no UTF-8": b'"\xff\xfe"',
    "a control character": b'"\x1b[2J"',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_an_unreadable_body_is_an_api_error_in_every_kind_of_response(body: bytes) -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        return http_response(item(body) if b"/nodes" in request else b'{"a":' + body + b"}")

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        started = time.process_time()
        for question in (client.call("GET", "/x"), client.list(NODES), read_all(client, NODES, as_json)):
            with pytest.raises(ApiError) as e:
                await question
            assert e.value.status == 0
            assert_clean(str(e.value), "the message")
            assert len(str(e.value)) < 1000
        assert time.process_time() - started < 5


async def test_the_client_reads_an_object_of_10_mib() -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        return http_response(item(b'"' + b"a" * (10 * MIB) + b'"'))

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        [found] = await read_all(client, NODES, as_json)
        assert len(found["x"]) == 10 * MIB


class Endless:
    """Writes one piece after another until the peer closes the connection."""

    def __init__(self, first: bytes, piece: bytes, pause: float) -> None:
        self._first, self._piece, self._pause = first, piece, pause
        self.requests = 0

    async def __aenter__(self) -> Endless:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._first)
            while True:
                writer.write(self._piece)
                await writer.drain()
                await asyncio.sleep(self._pause)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0005),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n", 0.0005),
    "chunks of nothing but spaces": (CHUNKED, b"1\r\n \r\n", 0.0005),
    "a head that goes on": (OK, b"X: y\r\n", 0.0005),
    "a line between chunks": (CHUNKED + b"1;", b"a", 0.0005),
    "a byte at a time": (OK + b"Content-Length: 100000\r\n\r\n{", b" ", 0.1),
    "a body without an end": (OK + b"\r\n{", b" " * 1000, 0.0005),
}


@pytest.mark.parametrize(("first", "piece", "pause"), ENDLESS.values(), ids=ENDLESS)
async def test_an_endless_response_ends_at_the_timeout_and_needs_little_memory(
    first: bytes, piece: bytes, pause: float
) -> None:
    async with Endless(first, piece, pause) as server, KubeClient(ApiConfig(server.url), timeout=1.0) as client:
        tracemalloc.start()
        try:
            async with asyncio.timeout(30):
                with pytest.raises(ApiError) as e:
                    await client.call("GET", "/x")
            assert tracemalloc.get_traced_memory()[1] < 20 * MIB
        finally:
            tracemalloc.stop()
        assert "no response from" in str(e.value) or "not HTTP" in str(e.value), str(e.value)
        assert e.value.unreachable


# --- parameters with the maximum depth that the API server accepts -------------------------------------------


def nested(depth: int) -> JSON:
    out: JSON = {"a": 1}
    for _ in range(depth):
        out = {"a": out}
    return out


@pytest.mark.parametrize("depth", [40, 500, 2000])
@pytest.mark.parametrize("wrap", [lambda v: {"a": v}, lambda v: [v], lambda v: {"token": v}, lambda v: {"env": [v]}])
def test_dra_gather_writes_the_readable_part_of_a_deep_object(depth: int, wrap: Callable[[Any], Any]) -> None:
    value: Any = "end"
    for _ in range(depth):
        value = wrap(value)
    shown = json.dumps(redact_object(value))
    assert (TOO_DEEP in shown) is (depth > 100)


COMMANDS = ["explain", "explain pod/p", "explain claim/has", "top --once", "doctor --no-host", "gather FILE --no-host"]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_work_with_a_claim_with_deeply_nested_parameters(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API server accepts 10 KiB of parameters, which can contain 1,700 nested objects such as `{"a":`, or 5,000 lists."""
    objects = cluster()
    has = next(o for o in objects if o["metadata"]["name"] == "has")
    has["spec"]["devices"]["config"][0]["opaque"]["parameters"] = "DEEP"
    deep = '{"a":' * 1700 + "1" + "}" * 1700
    with HostileServer(objects, lambda text: text.replace('"DEEP"', deep)) as server:
        archive = tmp_path / "x.tar.gz"
        argv = [str(archive) if w == "FILE" else w for w in words.split()]
        expected = {3} if "doctor" in words else {0, 1}  # the server has no access reviews, so doctor cannot decide
        assert main([*argv, "--kubeconfig", write_config(tmp_path, config_of(server=server.url))]) in expected
        captured = capsys.readouterr()
        assert "RecursionError" not in captured.out + captured.err
        assert HOSTILE not in captured.out
    if archive.exists():
        with tarfile.open(archive) as found:
            member = found.extractfile("x/cluster/resourceclaims.json")
            assert member is not None
            assert TOO_DEEP in member.read().decode()


# --- limits of the decoder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [b"[", b'{"a":', b'[{"]}\\"{[":'])
def test_the_decoder_replaces_values_nested_too_deeply_and_reads_the_rest(opened: bytes) -> None:
    closed = {b"[": b"]", b'{"a":': b"}", b'[{"]}\\"{[":': b"}]"}[opened]
    deep = opened * 20_000 + b"1" + closed * 20_000
    found = from_json(b'{"before": "[[[", "deep": ' + deep + b', "after": [{"x": "}}"}]}')
    assert (found["before"], found["after"]) == ("[[[", [{"x": "}}"}])
    assert TOO_DEEP in json.dumps(found["deep"])
    with pytest.raises(ValueError, match=r"truncated|malformed|trailing"):
        from_json(b'{"deep": ' + deep[:-1] + b"}")


@given(
    st.recursive(
        st.integers() | st.text(max_size=5),
        lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    )
)
def test_the_decoder_keeps_values_within_the_depth_limit(value: Any) -> None:
    data = json.dumps(value).encode()
    assert flattened(data, 100) == data
    assert msgspec.json.decode(flattened(data, 1)) is not None or value is None


@pytest.mark.parametrize("depth", [1700, 9000, 50_000])
async def test_a_deep_object_does_not_hide_other_objects_of_a_list_or_watch(depth: int) -> None:
    deep, plain = (b'{"metadata":{"name":"%b","uid":"%b","resourceVersion":"1"},"x":%b}' % (n, n, x) for n, x in (
        (b"deep", b"[" * depth + b"]" * depth), (b"plain", b"1")))  # fmt: skip

    async def reply(peer: RawServer, request: bytes) -> bytes:
        if b"watch=true" in request:
            line = b'{"type":"MODIFIED","object":' + deep.replace(b'"1"', b'"2"') + b"}\n"
            return b"%b%x\r\n%b\r\n" % (CHUNKED, len(line), line)
        return http_response(b'{"metadata":{"resourceVersion":"1"},"items":[' + deep + b"," + plain + b"]}")

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        assert [o["metadata"]["name"] for o in await read_all(client, NODES, as_json)] == ["deep", "plain"]
        events = Reflector(client, NODES).events()
        found = [(e.type, e.name) async for e, _ in _first(events, 4)]
        await events.aclose()  # type: ignore[attr-defined]
        assert found == [("ADDED", "deep"), ("ADDED", "plain"), ("SYNCED", ""), ("MODIFIED", "deep")]


async def _first(events: AsyncIterator[Any], number: int) -> AsyncIterator[tuple[Any, int]]:
    async with asyncio.timeout(30):
        for i in range(number):
            yield await anext(events), i


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_deeply_nested_claim_can_be_converted(version: str) -> None:
    made = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": nested(900),
    }
    assert convert(made, "v1")["spec"]["a"]["a"]["a"]
