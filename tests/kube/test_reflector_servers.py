"""The reflector through upgrades, silent servers and malformed responses: it never ends, and reports its state."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.kube import ApiConfig, KubeClient, Reflector
from dra_kubeletplugin.kube.resource import NODES
from tests.helpers.raw_server import RawServer, http_response
from tests.helpers.waiting import wait_until

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(*lines: Any) -> bytes:
    data = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return b"%x\r\n%b\r\n" % (len(data), data)


def obj(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": version}}


@contextlib.asynccontextmanager
async def following(reflector: Reflector) -> AsyncIterator[list[tuple[str, str]]]:
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        async for event in reflector.events():
            seen.append((event.type, event.name))

    task = asyncio.create_task(follow())
    try:
        yield seen
        assert not task.done(), "the reflector ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_reflector_restarts_a_silent_watch() -> None:
    async def reply(peer: RawServer, request: bytes) -> bytes:
        if b"watch=true" not in request:
            return http_response({"metadata": {"resourceVersion": "7"}, "items": [obj("a")]})
        # After the bookmark the server is silent.
        return HEAD + chunk({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}})

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        reflector = Reflector(client, NODES)
        reflector.idle_timeout = 0.2
        async with following(reflector) as seen:
            await wait_until(
                lambda: any(b"resourceVersion=8&" in r for r in peer.requests), "another watch, from the bookmark"
            )
            watches = [r for r in peer.requests if b"watch=true" in r]
            assert b"resourceVersion=7&" in watches[0]
            assert seen == [("ADDED", "a"), ("SYNCED", "")]


async def test_the_reflector_reports_its_state() -> None:
    away = True

    async def reply(peer: RawServer, request: bytes) -> bytes | None:
        if away:
            return http_response({"message": "etcd is away"}, "500 Internal Server Error")
        if b"watch=true" in request:
            return HEAD + chunk({"type": "ADDED", "object": obj("b", "9")})
        return http_response({"metadata": {"resourceVersion": "7"}, "items": []})

    async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url)) as client:
        reflector = Reflector(client, NODES)
        assert (reflector.last_message, reflector.fault) == (0.0, "")
        async with following(reflector) as seen:
            await wait_until(lambda: "etcd is away" in reflector.fault, "a fault")
            assert reflector.last_message == 0.0
            began = time.monotonic()
            away = False
            await wait_until(lambda: ("ADDED", "b") in seen, "an event")
            assert reflector.fault == ""
            assert began <= reflector.last_message <= time.monotonic()
            away = True
            peer.cut()
            await wait_until(lambda: bool(reflector.fault), "a fault again")


NONSENSE: list[bytes] = [
    b"",
    b"{}",
    b"null\n",
    b"[]\n",
    b'{"type":"ADDED"}\n',
    b'{"type":"ADDED","object":null}\n',
    b'{"type":"ADDED","object":{"metadata":{"uid":{},"resourceVersion":"1","name":"x"}}}\n',
    b'{"type":"ADDED","object":{"metadata":{"uid":"u","resourceVersion":7,"name":"x"}}}\n',
    b'{"type":["x"],"object":{"metadata":{}}}\n',
    b'{"type":"BOOKMARK","object":[]}\n',
    b'{"type":"ERROR","object":{"code":410,"message":"\xff"}}\n',
    b'{"type":"ERROR","object":{"code":410}}\n',
    b'{"type":"ERROR","object":{"code":"x"}}\n',
    b'{"type":"ERROR","object":{"code":1e400}}\n',
    b'{"type":"ERROR","object":"text"}\n',
    b"<html>\n",
    b"\n\n\n",
    b"\xff\xfe\0\n",
]
LISTS: list[Any] = [
    {},
    {"items": 7, "metadata": {}},
    {"items": {"a": 1}, "metadata": {"resourceVersion": "1"}},
    {"items": [None], "metadata": {"resourceVersion": "1"}},
    {"items": [{"metadata": {"uid": "u", "name": []}}], "metadata": {"resourceVersion": "1"}},
    {"items": [], "metadata": {"resourceVersion": 5}},
    {"items": [], "metadata": {"resourceVersion": "5", "continue": {}}},
    {"items": [], "metadata": None},
]


@pytest.mark.full
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    watches=st.lists(st.sampled_from(NONSENSE) | st.binary(max_size=40), min_size=1, max_size=6),
    lists=st.lists(st.sampled_from(LISTS) | st.binary(max_size=40), max_size=3),
    raw=st.lists(st.binary(max_size=60) | st.none(), max_size=2),
)
def test_malformed_responses_never_end_the_reflector_and_it_recovers(watches: Any, lists: Any, raw: Any) -> None:
    async def one() -> None:
        waiting = (
            [http_response(x) for x in lists],
            [HEAD + chunk(w) + b"0\r\n\r\n" if w else HEAD for w in watches],
            list(raw),
        )

        async def reply(peer: RawServer, request: bytes) -> bytes | None:
            asyncio.get_running_loop().call_later(0.02, peer.cut)
            if waiting[2]:
                return waiting[2].pop()
            if b"watch=true" in request:
                return waiting[1].pop() if waiting[1] else HEAD + chunk({"type": "ADDED", "object": obj("true", "9")})
            return (
                waiting[0].pop() if waiting[0] else http_response({"metadata": {"resourceVersion": "7"}, "items": []})
            )

        async with RawServer(reply) as peer, KubeClient(ApiConfig(peer.url), timeout=1) as client:
            reflector = Reflector(client, NODES)
            reflector.idle_timeout = 0.5
            async with following(reflector) as seen:
                await wait_until(lambda: ("ADDED", "true") in seen, "the truth", 60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_kubeletplugin.kube.reflector._MAX_PAUSE", 0.01)
        asyncio.run(one())
