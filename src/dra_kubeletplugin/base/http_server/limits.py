"""Limits of the HTTP server, and the choice of the connection to close when a limit is reached.

A connection is closed only while the server waits for its client, or if its client sends requests without waiting for responses.
The server first closes connections that were unfinished for ``SLOW`` seconds, then idle ones, then other unfinished ones.
In each group, it closes the oldest connection first. A new client has ``GRACE`` seconds for its request, however many clients connect,
unless the process has no file descriptor left.
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
_PIPELINED = 8  # pipelined requests, of all connections together, that are read in one pass of the event loop
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
    send_timeout: float | None = None  # for the client to read a response that is not a stream
    connections: int | None = None  # one client address may use at most three quarters
    requests: int | None = (
        None  # handled at the same time. Readiness probes have a second limit of the same size; liveness probes have none
    )
    head_bytes: int = 64 * 1024
    head_lines: int = 1000
    body_bytes: int = MAX_BODY
    # Of all connections together: bodies of requests in progress, and responses that are not sent completely.
    buffered_bytes: int | None = None
    socket_bytes: int | None = (
        None  # the kernel's buffer of a connection, for each direction; the kernel doubles this value
    )


PROBES = Limits(
    head_timeout=5,
    body_timeout=5,
    idle_timeout=30,
    send_timeout=10,
    connections=128,
    requests=32,
    head_bytes=16 * 1024,
    head_lines=64,
    body_bytes=1024,
    buffered_bytes=8 * 1024 * 1024,
    socket_bytes=32 * 1024,
)
"""For metrics and probes: requests without a body, from the kubelet, a few scrapers, and any other client that reaches the port."""


class Phase(Enum):
    UNFINISHED = auto()  # the client has not sent all of its handshake or request
    QUEUED = auto()  # the client has sent a byte of its handshake, which waits for its turn
    WORKING = auto()  # the server's handler runs, or the response is a stream
    RESPONDING = auto()  # the client has not read all of the response
    PIPELINED = auto()  # the client sent several requests without waiting for responses; the next request waits
    IDLE = auto()  # the response was sent, and no byte of the next request was received


class ClientConnection:
    """The state of one open connection, as far as the limits need it.

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
        """Whether the server waits for the client, or the client sends requests without waiting for responses."""
        match self.phase:
            case _ if self.closing:
                return False
            case Phase.QUEUED | Phase.WORKING:
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

    def ensure_capacity_for(self, new: ClientConnection) -> bool:
        """Closes another connection if there are too many. If the client exceeds its share, closes one of this client.

        Returns False if a connection must be closed, but none can be closed now.
        """
        return not (self._is_full() or self._exceeds_share(new)) or self._close_one(self._rivals(new))

    def may_wait(self, new: ClientConnection) -> bool:
        """Whether to wait until a connection can be closed. A client whose handled requests use its whole share is refused instead."""
        return self._is_full() or any(c.may_be_closed or c.phase is Phase.QUEUED for c in self._rivals(new))

    def _is_full(self) -> bool:
        return self.most is not None and self._by_peer.total() > self.most

    def _exceeds_share(self, new: ClientConnection) -> bool:
        return self.most is not None and self._by_peer[new.peer] > self.most - self.most // 4

    def _rivals(self, new: ClientConnection) -> list[ClientConnection]:
        """Returns the connections, one of which is closed for ``new``."""
        same = self._exceeds_share(new)
        return [c for c in self._open if c is not new and (c.peer == new.peer or not same)]

    def close_any(self) -> bool:
        """Closes a connection, also one within ``GRACE``. Used when the process has no file descriptors left."""
        return self._close_one(self._open, also_new=True)

    def hold(self, connection: ClientConnection, size: int) -> None:
        """Sets the number of buffered bytes of a connection to ``size``.

        While the total exceeds the limit, closes the connection with the largest product of bytes and time.

        Raises:
            RefusedError: with status 429, if ``connection`` itself has the largest product.
        """
        self._buffered += size - connection.buffered
        connection.buffered = size
        most = self.limits.buffered_bytes
        while most is not None and self._buffered > most:
            now = asyncio.get_running_loop().time()
            holders = [c for c in self._open if c.buffered and c.may_be_closed]
            if connection.phase is Phase.RESPONDING:  # a response that is ready is always sent
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

    def _close_one(self, connections: Iterable[ClientConnection], *, also_new: bool = False) -> bool:
        now, grace = asyncio.get_running_loop().time(), 0.0 if also_new else GRACE
        found = min(((key, c) for c in connections if (key := _order(c, now, grace))), key=lambda f: f[0], default=None)
        if found is None:
            return False
        self.close(found[1])
        return True


def _order(connection: ClientConnection, now: float, grace: float) -> tuple[int, float] | None:
    """Returns the sort key: the connection with the smallest key is closed first. None means that it must not be closed."""
    if not connection.may_be_closed:
        return None
    age = now - connection.since
    if connection.phase is Phase.IDLE:
        return 1, connection.since
    if age < grace:
        return None
    return (0 if age >= SLOW else 2), connection.since


def _within_descriptors(connections: int | None) -> int | None:
    """Limits connections to half of the process's file descriptors: without a free one, it can accept no connection and open no file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if connections is None or soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(1, soft // 2))
