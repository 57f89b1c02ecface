"""Requests and responses of the HTTP server, without the connection that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    arguments: Sequence[tuple[str, str]] = ()  # the query in order, including repeated names
    peer: str = ""  # the client's address; empty if it is unknown


Tunnel = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Handles a connection after an upgrade. The bytes have already been received; the reader returns the bytes after them."""


@dataclass
class Response:
    """A response.

    ``stream``, if set, is sent in chunks instead of ``body``. ``tunnel``, if set, handles the connection after status 101.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    tunnel: Tunnel | None = None


Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(Exception):
    """Makes the server respond before it has read the whole request, and then close the connection."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def refusal(status: int, text: str) -> RefusedError:
    """Returns an error whose response is one line of text."""
    return RefusedError(Response(status, f"{text}\n".encode(), "text/plain", {"Connection": "close"}))


def busy(text: str) -> RefusedError:
    """Returns an error with status 429. The API server's client repeats the request after ``Retry-After`` seconds."""
    error = refusal(429, f"{text}: retry after 1 s")
    error.response.headers["Retry-After"] = "1"
    return error
