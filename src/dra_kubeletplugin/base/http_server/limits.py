"""Limits of the HTTP server, and which connection it closes when a limit is reached.

A connection is closed only while the server waits for its client, or where the client sends requests without waiting for responses.
The order: first those that have been unfinished for a second; then idle ones; then the other unfinished ones; the oldest first.
A new client therefore always has ``GRACE`` seconds to send its request, however many others connect.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from .messages import Response, busy

MAX_BODY = 8 * 1024 * 1024
LIVENESS = "/healthz"
READINESS = "/readyz"
GRACE = 0.1  # seconds in which a new client is never closed in favour of another
_NO_LIMIT = 1 << 62
_PIPELINED = 8  # requests sent without waiting for a response, of all connections, in one pass of the event loop
SLOW = 1.0  # seconds after which an unfinished request or response is closed before an idle connection


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on clients: seconds, connections, bytes. None means no limit.

    Refusals: status 413 for a body above ``body_bytes``, 431 for a head above its limits, 429 for a request that exceeds ``requests``
    or ``buffered_bytes``.
    """

    head_timeout: float | None = None  # for the TLS handshake, and for a request's line and headers from the first byte
    body_timeout: float | None = None  # for a request's whole body
    idle_timeout: float | None = None  # from the end of a request to the first byte of the next
    send_timeout: float | None = None  # for the client to read a response that is no stream
    connections: int | None = None  # a client's address may have three quarters of them
    requests: int | None = None  # handled at the same time; liveness probes do not count, readiness probes have as many
    head_bytes: int = 64 * 1024
    head_lines: int = 1000
    body_bytes: int = MAX_BODY
    buffered_bytes: int | None = (
        None  # of all connections: bodies of requests until their end, and responses until read
    )
    socket_bytes: int | None = None  # the kernel's buffers of a connection, for each direction; the kernel doubles it


PROBES = Limits(
    head_timeout=5, body_timeout=5, idle_timeout=30, send_timeout=10, connections=128, requests=32, head_bytes=16 * 1024,
    head_lines=64, body_bytes=1024, buffered_bytes=8 * 1024 * 1024, socket_bytes=32 * 1024,
)  # fmt: skip
"""For metrics and probes: requests without a body, by a kubelet, a few scrapers, and anyone else who reaches the port."""


class Phase(Enum):
    UNFINISHED = auto()  # the client has not sent all of its handshake or request
    WORKING = auto()  # the server's handler runs, or the response is a stream
    RESPONDING = auto()  # the client has not read all of the response
    PIPELINED = (
        auto()
    )  # the client has sent several requests without waiting for the responses, and the next of them waits
    IDLE = auto()  # the response was sent, and nothing of the next request has been received


class ClientConnection:
    """One open connection, as the limits see it.

    Args:
        peer: the client's address.
        now: the loop's time in seconds.
    """

    def __init__(self, peer: str, now: float) -> None:
        self.peer = peer
        self.phase = Phase.UNFINISHED
        self.since = now  # when the phase began
        self.unread = False  # bytes were received that the server has not processed yet
        self.buffered = 0  # bytes of the request's body or of the response
        self.task: asyncio.Task[None] | None = None
        self.closing = False
        self.refusal: Response | None = None  # to be sent before the connection is closed

    def enter(self, phase: Phase, since: float | None = None) -> None:
        self.phase, self.since = phase, asyncio.get_running_loop().time() if since is None else since

    @property
    def may_be_closed(self) -> bool:
        """Whether the client, and not the server, is late."""
        match self.phase:
            case _ if self.closing:
                return False
            case Phase.WORKING:
                return False
            case Phase.RESPONDING | Phase.PIPELINED:
                return True
            case Phase.UNFINISHED | Phase.IDLE:
                return not self.unread


class Connections:
    """All open connections of a server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.most = _within_descriptors(limits.connections)
        self._open: set[ClientConnection] = set()
        self._by_peer: Counter[str] = Counter()
        self._buffered = 0
        self.readiness_probes = asyncio.Semaphore(limits.requests or _NO_LIMIT)
        self.requests = asyncio.Semaphore(limits.requests or _NO_LIMIT)
        self.pipelined = asyncio.Semaphore(_PIPELINED)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def buffered(self) -> int:
        """Bytes of bodies and of responses, of all connections."""
        return self._buffered

    def add(self, connection: ClientConnection) -> None:
        self._open.add(connection)
        self._by_peer[connection.peer] += 1  # connections that are closing are not counted

    def remove(self, connection: ClientConnection) -> None:
        """Does nothing for a connection that was removed before."""
        self.release(connection)
        if connection in self._open:
            self._open.discard(connection)
            if not connection.closing:
                self._forget(connection.peer)

    def make_room_for(self, new: ClientConnection) -> bool:
        """Closes another connection where there are too many: one of the same client's where that has more than its share.

        Returns False where none can be closed now.
        """
        return not (self._is_full() or self._exceeds_share(new)) or self._close_one(self._rivals(new))

    def may_wait(self, new: ClientConnection) -> bool:
        """Whether to wait until a connection can be closed. A client whose handled requests use its whole share is refused instead."""
        return self._is_full() or any(c.may_be_closed for c in self._rivals(new))

    def _is_full(self) -> bool:
        return self.most is not None and self._by_peer.total() > self.most

    def _exceeds_share(self, new: ClientConnection) -> bool:
        return self.most is not None and self._by_peer[new.peer] > self.most - self.most // 4

    def _rivals(self, new: ClientConnection) -> list[ClientConnection]:
        """The connections of which one is closed for a new one."""
        same = self._exceeds_share(new)
        return [c for c in self._open if c is not new and (c.peer == new.peer or not same)]

    def close_any(self) -> bool:
        """Closes a connection, also one within ``GRACE``: for a process that has no descriptors left."""
        return self._close_one(self._open, grace=0.0)

    def hold(self, connection: ClientConnection, size: int) -> None:
        """Counts ``size`` bytes for a connection, in place of those before.

        Where the total exceeds the limit, closes the connections that hold the most bytes for the longest time.

        Raises:
            RefusedError: with status 429, where the connection itself is the first of them.
        """
        self._buffered += size - connection.buffered
        connection.buffered = size
        most = self.limits.buffered_bytes
        while most is not None and self._buffered > most:
            now = asyncio.get_running_loop().time()
            holders = [c for c in self._open if c.buffered and c.may_be_closed]
            if connection.phase is Phase.RESPONDING:  # a response that has just been made is sent in any case
                holders = [c for c in holders if c is not connection]
                if not holders:
                    return
            worst = max(holders, key=lambda c: c.buffered * (now - c.since), default=connection)
            error = busy(f"requests of more than {most} bytes together are in progress")
            self.release(worst)
            if worst is connection:
                raise error
            self.close(worst, error.response if worst.phase is Phase.UNFINISHED else None)

    def release(self, connection: ClientConnection) -> None:
        self._buffered -= connection.buffered
        connection.buffered = 0

    def close(self, connection: ClientConnection, response: Response | None = None) -> None:
        """Ends a connection at once, or after ``response`` was sent."""
        if response is None:
            connection.closing = True
            self._forget(connection.peer)
        connection.refusal = response
        if connection.task:
            connection.task.cancel()

    def _forget(self, peer: str) -> None:
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def _close_one(self, connections: Iterable[ClientConnection], grace: float = GRACE) -> bool:
        now = asyncio.get_running_loop().time()
        found = min(((key, c) for c in connections if (key := _order(c, now, grace))), key=lambda f: f[0], default=None)
        if found is None:
            return False
        self.close(found[1])
        return True


def _order(connection: ClientConnection, now: float, grace: float) -> tuple[int, float] | None:
    """The connection with the smallest value is closed first; None where it may not be closed."""
    if not connection.may_be_closed:
        return None
    age = now - connection.since
    if connection.phase is Phase.IDLE:
        return 1, connection.since
    if age < grace:
        return None
    return (0 if age >= SLOW else 2), connection.since


def _within_descriptors(connections: int | None) -> int | None:
    """At most half of the process's descriptors: with none left nothing can be accepted, opened or read."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if connections is None or soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(1, soft // 2))


__all__ = [
    "GRACE",
    "LIVENESS",
    "MAX_BODY",
    "PROBES",
    "READINESS",
    "SLOW",
    "ClientConnection",
    "Connections",
    "Limits",
    "Phase",
]
