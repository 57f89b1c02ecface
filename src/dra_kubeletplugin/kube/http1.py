"""HTTP/1.1 for API servers: builds request heads, and reads responses with httptools."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MAX_FIELDS = 64 * 1024  # bytes of an incomplete head, and between two parts of a body
_TARGET = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[\t -~]*")


class MalformedResponseError(Exception):
    """The peer does not speak HTTP, or a response exceeds a limit."""


class HttpResponse(msgspec.Struct, frozen=True):
    """A response. Header names are in lower case."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")


def header_block(headers: Mapping[str, str]) -> bytes:
    """Encodes headers. Raises ``ValueError`` for text that is invalid in a header."""
    for name, value in headers.items():
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name} contains characters that no header has")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


def request_bytes(method: str, target: str, block: bytes, body: bytes) -> bytes:
    """Builds a request. ``block`` comes from :func:`header_block`. Raises ``ValueError`` for an invalid target."""
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not a valid target of a request")
    line = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    if body or method in {"POST", "PUT", "PATCH"}:
        return b"%bContent-Length: %d\r\n%b\r\n%b" % (line, len(body), block, body)
    return line + block + b"\r\n"


class ResponseReader:
    """Parses one response. Feed it until ``done``; ``head`` is set as soon as the response's head is complete."""

    def __init__(self) -> None:
        self.head: HttpResponse | None = None
        self.done = False
        self.keeps = False  # whether the connection may be used again
        self._body: list[bytes] = []
        self._parser = HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._begins = b""  # the first bytes, for the message
        self._held = 0  # bytes since the last part of the body; httptools limits no header and no line between chunks

    def feed(self, data: bytes) -> None:
        """Parses the next bytes of the response. Raises :class:`MalformedResponseError`."""
        self._held += len(data)
        self._begins = self._begins or data[:40]
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise MalformedResponseError("the response switches to another protocol") from None
        except HttpParserError as e:
            if not self.done:
                text = f"{e}" if self.head else f"the response begins with {self._begins!r}: {e}"
                raise MalformedResponseError(text) from None
            self.keeps = False  # data without a request
        if self._held > _MAX_FIELDS and not self.done:
            raise MalformedResponseError(f"a header of the response is longer than {_MAX_FIELDS} bytes")

    def end(self) -> None:
        """Handles the end of the connection. Raises ``ConnectionResetError`` if the response is incomplete."""
        if not self.head or self.head.headers.keys() & {b"content-length", b"transfer-encoding"}:
            raise ConnectionResetError("the connection was closed before the end of a response")
        self.done = True  # a response without a length ends with its connection

    def take(self) -> list[bytes]:
        """Returns the parts of the body that were received since the last call."""
        parts, self._body = self._body, []
        return parts

    # --- what httptools calls -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.done:
            self.keeps = False  # data without a request

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip(b" \t")
        self._headers[name] = self._headers[name] + b", " + value if name in self._headers else value

    def on_headers_complete(self) -> None:
        if not self.done:
            headers, self._headers = self._headers, {}
            status = self._parser.get_status_code()
            if status >= 200:  # the others precede a response
                self.head = HttpResponse(status, headers, b"")
                self.keeps = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if not self.done:
            self._held = 0
            self._body.append(data)

    def on_message_complete(self) -> None:
        self.done = self.head is not None
