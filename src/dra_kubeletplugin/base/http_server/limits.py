"""Limits of the HTTP server, and the choice of the connection to close when a limit is reached.

A connection is closed only while the server waits for its client. The server first closes connections that were unfinished for
``SLOW`` seconds, then idle ones, then other unfinished ones; in each group, it closes the oldest connection first. A new client
has ``GRACE`` seconds for its request, however many clients connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, SupportsIndex

from .messages import Response, busy

if TYPE_CHECKING:
    from .connection import Session

MAX_BODY = 8 * 1024 * 1024
READ = 16 * 1024  # bytes of one read
LIVENESS = "/healthz"
READINESS = "/readyz"
GRACE = 0.1  # seconds in which a new client is never closed in favour of another
SLOW = 1.0  # seconds after which an unfinished request or response is closed before an idle connection
_NO_LIMIT = 1 << 62


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
    connections: int | None = None
    # Handled at the same time. Readiness probes have a second limit of the same size; liveness probes have none.
    requests: int | None = None
    head_bytes: int = 64 * 1024
    head_lines: int = 1000
    body_bytes: int = MAX_BODY
    # Of all connections together: bodies of requests in progress, and responses that are not sent completely.
    buffered_bytes: int | None = None
    # The kernel's buffer of a connection, for each direction; the kernel doubles this value.
    socket_bytes: int | None = None


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
    WORKING = auto()  # the server's handler runs, or the response is a stream
    RESPONDING = auto()  # the client has not read all of the response
    IDLE = auto()  # the response was sent, and no byte of the next request was received


class Reader(asyncio.StreamReader):
    """A stream reader that notes whether it received bytes that the server has not processed yet.

    It does not refer to its connection: in such a cycle, the objects of closed connections would stay in memory.
    """

    unread = False

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.unread = True
        super().feed_data(data)


class Connections:
    """All open connections of a server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open: set[Session] = set()
        self.buffered = 0
        """Bytes of bodies and of responses, of all connections."""
        self.readiness_probes = asyncio.Semaphore(limits.requests or _NO_LIMIT)
        self.requests = asyncio.Semaphore(limits.requests or _NO_LIMIT)

    def ensure_capacity_for(self, new: Session) -> bool:
        """Closes another connection if there are too many. Returns False if one must be closed, but none can be closed now."""
        limit = self.limits.connections
        if limit is None or sum(not c.closing for c in self.open) <= limit:
            return True
        now = asyncio.get_running_loop().time()
        found = min(
            ((key, c) for c in self.open if c is not new and (key := _order(c, now))), key=lambda f: f[0], default=None
        )
        if found is not None:
            self.close(found[1])
        return found is not None

    def hold(self, connection: Session, size: int) -> None:
        """Sets the number of buffered bytes of a connection to ``size``.

        While the total exceeds the limit, closes the connection with the largest product of bytes and time.

        Raises:
            RefusedError: with status 429, if ``connection`` itself has the largest product.
        """
        self.buffered += size - connection.buffered
        connection.buffered = size
        most = self.limits.buffered_bytes
        while most is not None and self.buffered > most:
            now = asyncio.get_running_loop().time()
            holders = [c for c in self.open if c.buffered and c.may_be_closed]
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

    def release(self, connection: Session) -> None:
        self.buffered -= connection.buffered
        connection.buffered = 0

    def close(self, connection: Session, response: Response | None = None) -> None:
        """Ends a connection at once, or after ``response`` was sent."""
        connection.closing = response is None
        connection.refusal = response
        if connection.task:
            connection.task.cancel()


def _order(connection: Session, now: float) -> tuple[int, float] | None:
    """Returns the sort key: the connection with the smallest key is closed first. None means that it must not be closed."""
    if not connection.may_be_closed:
        return None
    age = now - connection.since
    if connection.phase is Phase.IDLE:
        return 1, connection.since
    if age < GRACE:
        return None
    return (0 if age >= SLOW else 2), connection.since
