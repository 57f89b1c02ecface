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
    peer: str = ""  # the client's address; empty where it is not known


Tunnel = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Takes over a connection after an upgrade. The bytes were received before the reader's."""


@dataclass
class Response:
    """A response.

    ``stream``, where set, is sent in chunks instead of ``body``. ``tunnel`` takes over the connection, after status 101.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    tunnel: Tunnel | None = None


Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(Exception):
    """The server responds before it has read the whole request, and closes the connection."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def refusal(status: int, text: str) -> RefusedError:
    """An error with one line of text."""
    return RefusedError(Response(status, f"{text}\n".encode(), "text/plain", {"Connection": "close"}))


def busy(text: str) -> RefusedError:
    """Status 429. The API server's client repeats the request after the time in ``Retry-After``, in seconds."""
    error = refusal(429, f"{text}: retry after 1 s")
    error.response.headers["Retry-After"] = "1"
    return error


__all__ = ["Handler", "RefusedError", "Request", "Response", "Tunnel", "busy", "refusal"]
