"""A controller watches claims with the worst parameters: no step of its event loop is long, and it keeps little of each
claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.plugin.controller.binding.claims import ClaimWatch
from dra_kubeletplugin.resourceapi.encoded import from_json
from tests.helpers import worst_parameters
from tests.helpers.worst_parameters import DRIVER, ENTRIES, LIMIT, MACHINE, SHAPES, Plain

VERSIONS = {"versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]}
KIB, MIB = 1024, 1024 * 1024


class Server:
    """An API server in separate threads, so that its work is not part of the measured event loop.

    Args:
        claims: encoded claims, created again for each request.
        changes: lines of each watch.
    """

    def __init__(self, claims: Callable[[int], bytes | None], changes: Sequence[bytes] = ()) -> None:
        self.largest_page = 0
        self.stopped = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {k: v[0] for k, v in parse_qs(url.query).items()}
                if not url.path.endswith("/resourceclaims"):
                    self._send(json.dumps(VERSIONS).encode())
                elif "watch" in query:
                    self.send_response(200)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    for change in changes:
                        self.wfile.write(change + b"\n")
                    outer.stopped.wait()
                else:
                    self._send(outer.page(claims, int(query.get("limit", 0)), int(query.get("continue", 0))))

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def page(self, claims: Callable[[int], bytes | None], limit: int, start: int) -> bytes:
        items = list(itertools.takewhile(bool, map(claims, range(start, start + limit))))
        self.largest_page = max(self.largest_page, len(items))
        metadata = {"continue": str(start + limit)} if len(items) == limit else {}
        head = json.dumps({"resourceVersion": "1", **metadata}).encode()
        return b'{"metadata":%b,"items":[%b]}' % (head, b",".join(filter(None, items)))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            self.stopped.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def encoded(name: str, config: list[JSON], *, version: str = "1", is_waiting: bool = True) -> bytes:
    """A claim with one device of the driver, which waits for its binding condition or has none."""
    claim = worst_parameters.with_allocation(worst_parameters.claim(config, name), config)
    claim["metadata"]["resourceVersion"] = version
    if is_waiting:
        claim["status"]["allocation"]["devices"]["results"][0]["bindingConditions"] = ["attached"]
    return json.dumps(claim, separators=(",", ":")).encode()


@contextlib.asynccontextmanager
async def watched_claims(server: Server) -> AsyncIterator[tuple[ClaimWatch, asyncio.Queue[str]]]:
    changed: asyncio.Queue[str] = asyncio.Queue()
    with server.running():
        async with KubeClient(ApiConfig(server.url), timeout=120) as client:
            watch = ClaimWatch(client, DRIVER, changed.put_nowait)
            task = asyncio.create_task(watch.run())
            try:
                yield watch, changed
            finally:
                task.cancel()
                await asyncio.wait({task})


@pytest.mark.full
async def test_no_step_of_the_event_loop_is_long() -> None:
    """Before a fix, a page of such claims was decoded in one step, and one claim took 55 ms."""
    bodies = {name: encoded(name, worst_parameters.entries(Plain, name)) for name in SHAPES}
    lines = [b'{"type":"MODIFIED","object":%b}' % b.replace(b'"resourceVersion":"1"', b'"resourceVersion":"2"') for b in bodies.values()]  # fmt: skip
    listed_claims = list(bodies.values())
    server = Server(lambda i: listed_claims[i] if i < len(listed_claims) else None, lines)
    async with watched_claims(server) as (watch, changed):
        with worst_parameters.event_loop_steps() as steps:
            async with asyncio.timeout(120):
                changes_read = [await changed.get() for _ in range(2 * len(SHAPES))]
        assert sorted(changes_read) == sorted([*SHAPES, *SHAPES])
        assert max(steps) < LIMIT * MACHINE, sorted(steps)[-3:]
        for claim in watch:
            assert len(claim.config) == 2 * ENTRIES, claim.claim
            assert from_json(claim.encoded)["spec"]["devices"]["config"]


async def test_claims_without_a_binding_condition_are_not_kept() -> None:
    """1,000 claims of 40 KiB each. Decoded claims would take more than 300 MB."""
    count, max_kept = 1000, 3 * KIB
    template = encoded("NAME", worst_parameters.entries(Plain, "same", 2), is_waiting=False)
    assert len(template) > 35 * KIB

    def claim(i: int) -> bytes | None:
        return template.replace(b"NAME", b"c%d" % i) if i < count else None

    server = Server(claim)
    tracemalloc.start()
    try:
        async with watched_claims(server) as (watch, _):
            async with asyncio.timeout(120):
                await watch.synced.wait()
            size, peak = tracemalloc.get_traced_memory()
            assert len(list(watch)) == len(await watch.held()) + count - 1 == count  # one device for all claims
    finally:
        tracemalloc.stop()
    assert server.largest_page < 50
    assert size < count * max_kept, size / count
    assert peak < size + 32 * MIB, peak
