"""Tests with stub wires which connection a request uses, and that the transport never loses or exceeds connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.kube import transport as module
from dra_kubeletplugin.kube.connection import Connection
from dra_kubeletplugin.kube.tls import Tls
from dra_kubeletplugin.kube.transport import Transport, split_server
from tests.helpers.fake_transport import Wire

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Line(Wire):
    """A wire to a server that sends ``replies``: bytes, or None to close. Without replies the server is silent."""

    def __init__(self, network: Network, connection: Connection, number: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.near = socket.create_connection(server.getsockname())
            self.far = server.accept()[0]
        super().__init__(self.near)
        self.network, self.connection, self.number = network, connection, number
        self.replies: list[bytes | None] = []
        self.stubborn = False
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        super().write(data)
        self.network.order.append((self.number, bytes(data).split(b" ")[1].decode()))
        if self.replies:
            self.reply(self.replies.pop(0))
        elif self.network.replies is not None:
            self.reply(self.network.replies)

    def reply(self, data: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        if data is None:
            loop.call_soon(self.abort)
        else:
            loop.call_soon(self.connection.data_received, data)

    def close(self) -> None:
        was, self.ended = self.ended, self.ended or "closed"
        if not was and not self.stubborn:
            self._lose()

    def abort(self) -> None:
        was, self.ended = self.ended, "aborted"
        if was != "aborted":
            self._lose()

    def _lose(self) -> None:
        asyncio.get_running_loop().call_soon(self.lose)

    def lose(self) -> None:
        if not self.connection.gone.done():
            self.connection.connection_lost(None)


class Network:
    """Creates lines. ``replies`` is the reply of each line without its own replies; None for no reply."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.order: list[tuple[int, str]] = []
        self.replies: bytes | None = GOOD
        self.faults: list[Exception | None] = []
        self.connects: list[tuple[Any, ...]] = []

    async def connect(self, make: Callable[[], Connection], *where: Any) -> Connection:
        self.connects.append(where)
        if self.faults and (fault := self.faults.pop(0)):
            raise fault
        connection = make()
        self.lines.append(Line(self, connection, len(self.lines)))
        return connection

    def open(self) -> list[int]:
        return [line.number for line in self.lines if not line.ended]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Any:
    created = Network()
    monkeypatch.setattr(module, "connect", created.connect)
    yield created
    for line in created.lines:
        line.near.close()
        line.far.close()


def start_requests(transport: Transport, *names: str, method: str = "GET") -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(transport.request(method, f"/{n}", {})) for n in names]


async def run_pending_tasks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def collect_results(tasks: list[asyncio.Task[Any]]) -> list[str]:
    """Returns each task's result: its status, its error, or that it still waits."""
    await run_pending_tasks()
    out = []
    for t in tasks:
        fault = t.exception() if t.done() and not t.cancelled() else None
        out.append("waits" if not t.done() else "cancelled" if t.cancelled() else type(fault).__name__ if fault else str(t.result().status))  # fmt: skip
    return out


# --- number of connections ------------------------------------------------------------------------------------------


async def test_eight_requests_are_in_flight_and_others_wait_in_order(network: Network) -> None:
    network.replies = None
    transport = Transport("http://x")
    tasks = start_requests(transport, *"abcdefghijk")
    await run_pending_tasks()
    assert len(network.lines) == 8
    assert transport.load == "8 of 8 connections in use, 3 requests waiting"
    for number in (5, 2):
        network.lines[number].reply(GOOD)
        await run_pending_tasks()
    assert network.order[8:] == [(5, "/i"), (2, "/j")]
    assert transport.load == "8 of 8 connections in use, 1 requests waiting"
    network.replies = GOOD
    for line in network.lines:
        line.reply(GOOD)
    assert await collect_results(tasks) == ["200"] * 11
    assert (transport.load, len(network.lines)) == ("0 of 8 connections in use, 0 requests waiting", 8)
    await transport.close()
    assert [line.ended for line in network.lines] == ["closed"] * 8


async def test_the_most_recently_used_connection_is_used_next(network: Network) -> None:
    transport = Transport("http://x", connections=3)
    await collect_results(start_requests(transport, *"abc"))
    await collect_results(start_requests(transport, "d"))
    await collect_results(start_requests(transport, "e"))
    assert network.order == [(0, "/a"), (1, "/b"), (2, "/c"), (2, "/d"), (2, "/e")]
    await transport.close()


async def test_lost_idle_connections_release_their_slots_once(network: Network) -> None:
    transport = Transport("http://x", connections=2)
    await collect_results(start_requests(transport, *"ab"))
    for line in network.lines:
        line.lose()
    assert transport.load == "0 of 2 connections in use, 0 requests waiting"
    network.replies = None
    tasks = start_requests(transport, *"cdefg")
    await run_pending_tasks()
    assert transport.load == "2 of 2 connections in use, 3 requests waiting"
    assert len(network.lines) == 4
    network.replies = GOOD
    for line in network.lines[2:]:
        line.reply(GOOD)
    assert await collect_results(tasks) == ["200"] * 5
    await transport.close()
    assert [line.ended for line in network.lines] == ["", "", "closed", "closed"], (
        "the transport forgets closed connections"
    )


async def test_a_failed_connection_attempt_releases_its_slot(network: Network) -> None:
    transport = Transport("http://x", connections=1)
    network.faults = [OSError("no route"), None]
    assert await collect_results(start_requests(transport, "a")) == ["OSError"]
    assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    assert await collect_results(start_requests(transport, *"bc")) == ["200", "200"]
    await transport.close()


async def test_a_connection_that_closes_passes_its_slot_to_a_waiting_request(network: Network) -> None:
    network.replies = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    transport = Transport("http://x", connections=1)
    assert await collect_results(start_requests(transport, *"abc")) == ["200"] * 3
    assert network.order == [(0, "/a"), (1, "/b"), (2, "/c")]
    assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    assert network.open() == []
    await transport.close()


# --- retries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "replies", "outcome", "sent"),
    [
        ("GET", [None], "200", 2),
        ("HEAD", [None], "200", 2),
        ("POST", [None], "ConnectionResetError", 1),
        ("GET", [b"HTTP/1.1 200 OK\r\n"], "waits", 1),
        ("GET", [b"SSH"], "MalformedResponseError", 1),
    ],
)
async def test_only_reading_requests_without_a_response_on_a_reused_connection_are_sent_again(
    method: str, replies: list[bytes | None], outcome: str, sent: int, network: Network
) -> None:
    transport = Transport("http://x", connections=1)
    await collect_results(start_requests(transport, "a"))
    network.lines[0].replies = replies
    tasks = start_requests(transport, "b", method=method)
    assert await collect_results(tasks) == [outcome]
    assert [target for _, target in network.order] == ["/a"] + ["/b"] * sent
    for task in tasks:
        task.cancel()
    await run_pending_tasks()
    assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    await transport.close()


async def test_a_request_without_a_response_on_a_new_connection_fails(network: Network) -> None:
    transport = Transport("http://x")
    tasks = start_requests(transport, "a")
    network.replies = None
    await run_pending_tasks()
    network.lines[0].reply(None)
    assert await collect_results(tasks) == ["ConnectionResetError"]
    assert len(network.lines) == 1
    await transport.close()


async def test_a_connection_that_is_passed_to_a_waiting_request_counts_as_reused(network: Network) -> None:
    network.replies = None
    transport = Transport("http://x", connections=1)
    tasks = start_requests(transport, *"ab")
    await run_pending_tasks()
    network.lines[0].replies = [None]
    network.replies = GOOD
    network.lines[0].reply(GOOD)
    assert await collect_results(tasks) == ["200", "200"]
    assert network.order == [(0, "/a"), (0, "/b"), (1, "/b")]
    await transport.close()


@pytest.mark.parametrize("fault", ["loss", "cancelled before a response", "cancelled during a response"])
async def test_a_failed_request_ends_idle_connections_unless_a_response_had_begun(fault: str, network: Network) -> None:
    transport = Transport("http://x", connections=3)
    await collect_results(start_requests(transport, *"abc"))
    network.replies = None
    (task,) = start_requests(transport, "d", method="POST")
    await run_pending_tasks()
    if fault == "loss":
        network.lines[2].reply(None)
    else:
        if fault == "cancelled during a response":
            network.lines[2].reply(GOOD[:10])
            await run_pending_tasks()
        task.cancel()
    await run_pending_tasks()
    assert task.done()
    assert network.open() == ([0, 1] if fault == "cancelled during a response" else [])
    assert transport.load == "0 of 3 connections in use, 0 requests waiting"
    await transport.close()


# --- unread data in the kernel ------------------------------------------------------------------------------


async def test_an_idle_connection_that_the_peer_closed_is_not_used(network: Network) -> None:
    transport = Transport("http://x", connections=1)
    await collect_results(start_requests(transport, "a"))
    network.lines[0].far.close()
    assert await collect_results(start_requests(transport, "b")) == ["200"]
    assert network.order == [(0, "/a"), (1, "/b")]
    assert network.lines[0].ended == "aborted"
    assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    await transport.close()


async def test_data_that_the_event_loop_reads_does_not_end_an_idle_connection(network: Network) -> None:
    """An example is a TLS session ticket, which the TLS layer consumes."""
    transport = Transport("http://x", connections=1)
    await collect_results(start_requests(transport, "a"))
    line = network.lines[0]
    line.far.send(b"ticket")
    while not line.connection.unread():
        await asyncio.sleep(0.001)
    tasks = start_requests(transport, "b")
    asyncio.get_running_loop().call_soon(line.near.recv, 100)
    assert await collect_results(tasks) == ["200"]
    assert network.order == [(0, "/a"), (0, "/b")]
    await transport.close()


async def test_a_request_cancelled_during_the_check_of_a_connection_releases_it(network: Network) -> None:
    transport = Transport("http://x", connections=1)
    await collect_results(start_requests(transport, "a"))
    line = network.lines[0]
    line.far.send(b"ticket")
    while not line.connection.unread():
        await asyncio.sleep(0.001)
    (task,) = start_requests(transport, "b")
    asyncio.get_running_loop().call_soon(task.cancel)
    assert await collect_results([task]) == ["cancelled"]
    line.near.recv(100)
    assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    assert await collect_results(start_requests(transport, "c")) == ["200"]
    assert network.order == [(0, "/a"), (0, "/c")]
    await transport.close()


# --- waiting requests ---------------------------------------------------------------------------------------


async def test_a_request_cancelled_while_waiting_is_skipped(network: Network) -> None:
    network.replies = None
    transport = Transport("http://x", connections=1)
    tasks = start_requests(transport, *"abcd")
    await run_pending_tasks()
    tasks[1].cancel()
    await run_pending_tasks()
    assert transport.load == "1 of 1 connections in use, 2 requests waiting"
    network.replies = GOOD
    network.lines[0].reply(GOOD)
    assert await collect_results(tasks) == ["200", "cancelled", "200", "200"]
    await transport.close()


@pytest.mark.parametrize("kept", [True, False], ids=["a connection", "a slot"])
async def test_a_connection_passed_to_a_cancelled_request_goes_to_the_next(kept: bool, network: Network) -> None:
    network.replies = None
    transport = Transport("http://x", connections=1)
    tasks = start_requests(transport, *"abc")
    await run_pending_tasks()
    network.replies = GOOD
    # One step contains the response, the end of the first request, and the cancellation of the second before it wakes up.
    if kept:
        network.lines[0].connection.data_received(GOOD)
    else:
        network.lines[0].lose()
    asyncio.get_running_loop().call_soon(tasks[1].cancel)
    assert await collect_results(tasks) == ["200" if kept else "ConnectionResetError", "cancelled", "200"]
    assert network.order[-1] == ((0 if kept else 1), "/c")
    assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    await transport.close()


# --- streams and close --------------------------------------------------------------------------------------


async def test_a_stream_has_its_own_connection_that_ends_with_the_stream(network: Network) -> None:
    transport = Transport("http://x/prefix/", connections=1)
    async with transport.stream("/w", {"A": "1"}) as (head, _):
        assert head.status == 200
        assert network.lines[0].sent == [b"GET /prefix/w HTTP/1.1\r\nHost: x:80\r\nA: 1\r\n\r\n"]
        assert network.open() == [0]
        assert transport.load == "0 of 1 connections in use, 0 requests waiting"
    assert network.lines[0].ended == "aborted"
    await transport.close()


class Clock:
    """A stub clock with its scheduled callbacks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        names = {n: getattr(asyncio, n) for n in ("sleep", "wait", "CancelledError")}
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: self, **names))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = (self.now + seconds, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    async def until(self, at: float) -> None:
        while self.timers and self.timers[0][0] <= at:
            self.now, callback = self.timers.pop(0)
            callback()
            await run_pending_tasks()
        self.now = at


async def test_all_unused_connections_except_one_are_closed_after_their_idle_time(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    network.replies = None
    transport = Transport("http://x", connections=4, idle_seconds=90)
    tasks = start_requests(transport, *"abcd")
    await run_pending_tasks()
    for number in (0, 1, 2, 3):  # at 1000, 1010, 1020, 1030
        network.lines[number].reply(GOOD)
        await run_pending_tasks()
        clock.now += 10
        assert [at for at, _ in clock.timers] == ([] if number == 0 else [1100]), (
            "one timer, if there are at least two connections"
        )
    assert await collect_results(tasks) == ["200"] * 4
    for at, opened in ((1099.9, [0, 1, 2, 3]), (1100, [2, 3]), (1109.9, [2, 3]), (1110, [3]), (2000, [3])):
        await clock.until(at)
        assert network.open() == opened
        assert transport.load == "0 of 4 connections in use, 0 requests waiting"
    assert clock.timers == []
    assert [line.ended for line in network.lines[:3]] == ["closed"] * 3
    network.replies = GOOD
    assert await collect_results(start_requests(transport, *"abcdefg")) == ["200"] * 7
    assert len(clock.timers) == 1
    await transport.close()
    assert clock.timers == [], "no timer remains after the close"


async def test_a_connection_that_is_used_again_stays_open(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    transport = Transport("http://x", connections=2, idle_seconds=90)
    await collect_results(start_requests(transport, *"ab"))
    await clock.until(1050)
    await collect_results(start_requests(transport, *"cd"))
    await clock.until(1139)
    assert network.open() == [0, 1]
    assert [at for at, _ in clock.timers] == [1140]
    await clock.until(1140)
    assert len(network.open()) == 1
    await transport.close()


async def test_close_waits_for_peers_for_a_limited_time(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSING", 0.01)
    transport = Transport("http://x", connections=2)
    await collect_results(start_requests(transport, *"ab"))
    network.lines[0].stubborn = True
    await transport.close()
    assert [line.ended for line in network.lines] == ["aborted", "aborted"]
    assert network.lines[0].connection.gone.done()
    await Transport("http://x").close()


async def test_requests_send_their_own_headers(network: Network) -> None:
    transport = Transport("http://[::1]:7/")
    for headers in ({"A": "1"}, {"B": "2"}):
        for _ in range(2):
            await transport.request("GET", "/x", headers)
    sent = network.lines[0].sent
    assert sent == [
        f"GET /x HTTP/1.1\r\nHost: [::1]:7\r\n{h}\r\n\r\n".encode() for h in ("A: 1", "A: 1", "B: 2", "B: 2")
    ]
    await transport.close()


# --- TLS ----------------------------------------------------------------------------------------------------


class Files:
    """Certificate files whose content changes after a rejection."""

    server_name = "name"

    def __init__(self, *contexts: str) -> None:
        self.contexts = list(contexts)

    def context(self) -> str:
        return self.contexts[0]

    def rejected(self) -> None:
        if len(self.contexts) > 1:
            self.contexts.pop(0)


@pytest.mark.parametrize(("contexts", "tries"), [(["old", "new"], ["old", "new"]), (["old"], ["old"])])
async def test_a_rejected_certificate_is_retried_when_the_file_has_changed(
    contexts: list[str], tries: list[str], network: Network
) -> None:
    transport = Transport("https://x", cast(Tls, Files(*contexts)))
    network.faults = [ssl.SSLError("unknown ca")]
    outcome = await collect_results(start_requests(transport, "a"))
    assert outcome == (["200"] if len(tries) == 2 else ["SSLError"])
    assert network.connects == [("x", 443, context, "name", None) for context in tries]
    await transport.close()


async def test_without_tls_no_certificates_are_read(network: Network) -> None:
    transport = Transport("http://x", cast(Tls, Files("old", "new")))
    network.faults = [ssl.SSLError("odd")]
    assert await collect_results(start_requests(transport, "a")) == ["SSLError"]
    assert network.connects == [("x", 80, None, "", None)]
    with contextlib.suppress(asyncio.CancelledError):
        await transport.close()


@pytest.mark.parametrize(
    ("server", "parts"),
    [
        ("http://h", (False, "h", 80, "")),
        ("https://h", (True, "h", 443, "")),
        ("https://h:6443/", (True, "h", 6443, "")),
        ("https://[::1]:1/a/b/", (True, "::1", 1, "/a/b")),
        ("ftp://h", None),
        ("h:6443", None),
        ("https://", None),
        ("https://h:x", None),
        ("https://h:99999", None),
        ("", None),
    ],
)
def test_only_http_urls_with_host_and_valid_port_are_accepted(server: str, parts: Any) -> None:
    if parts is None:
        with pytest.raises(SettingsError, match="is not the URL of an API server"):
            split_server(server)
    else:
        assert split_server(server) == parts
