"""Encodes and parses the lines of the record journal, also if the journal is damaged. All functions are pure.

A line is one change: ``<CRC-32> <head>\\t<CRC-32> <body>\\n``, with JSON texts as head and body. The body of a ``put`` is the whole
record; its head has the devices that the claim holds. Other changes have the same text in both parts. So one damaged byte never loses
the devices of a claim. JSON texts contain neither tabs nor newlines.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

FORMAT = 1
PUT, DELETE, META, OPEN, MOVED = "put", "delete", "meta", "open", "moved"
KNOWN = frozenset({PUT, DELETE, META, OPEN, MOVED})
_SUM = 9  # bytes of a checksum and its space
_SEPARATOR = re.compile(rb"\t|(?<=\}).{0,2}(?=[0-9a-f]{8} \{)")  # the second alternative: a damaged tab or newline


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The head of a line. ``holds`` are tuples of pool, device, share and taken amounts. ``value`` is None for a deleted meta key."""

    op: str
    uid: str = ""
    claim: str = ""  # namespace/name
    holds: tuple[tuple[str, str, str, str], ...] = ()
    key: str = ""
    value: str | None = None
    format: int = 0
    driver: str = ""
    generation: int = 0
    repaired: int = 0
    id: str = ""


class Line(NamedTuple):
    """A change with its body. Each intact part of a damaged line becomes its own Line; ``change`` is None for a body without its head.

    ``body`` is empty if it is damaged, or if the change is not a ``put``. ``raw`` is empty for a part of a damaged line.
    """

    change: Change | None
    body: bytes
    raw: bytes


class Parsed(NamedTuple):
    """The lines of a text.

    ``end`` is the number of bytes in complete lines; the bytes after it are from a write that a crash cut. ``damaged`` is the number of
    damaged lines.
    """

    lines: list[Line]
    end: int
    damaged: int


_changes = msgspec.json.Decoder(Change)
_encode = msgspec.json.Encoder().encode


def encode(change: Change, body: bytes = b"") -> bytes:
    """Encodes a line."""
    head = _encode(change)
    if change.op != PUT:
        body = head
    return b"%08x %s\t%08x %s\n" % (zlib.crc32(head), head, zlib.crc32(body), body)


def parse(data: bytes) -> Parsed:
    """Parses whole lines. Never raises."""
    lines: list[Line] = []
    damaged = 0
    *whole, tail = data.split(b"\n")
    for raw in whole:
        if not raw:
            continue  # the line before it lost its newline in a crash, and the next writer added one
        line = _parse_line(raw)
        if line:
            lines.append(line)
        else:
            damaged += 1
            lines += _intact_parts(raw)
    end = len(data) - len(tail)
    # The tail is usually from a write that a crash cut. If it is a complete line, only its newline is missing or damaged.
    for complete in (tail, tail[:-1]):
        if line := _parse_line(complete):
            lines.append(line)
            end = len(data)
            damaged += complete is not tail
            break
    return Parsed(lines, end, damaged)


def _parse_line(raw: bytes) -> Line | None:
    head, _, body = raw.partition(b"\t")
    change = _decode(head[_SUM:])
    if change is None or not _is_intact(head) or not _is_intact(body):
        return None
    return Line(change, body[_SUM:] if change.op == PUT else b"", raw)


def _intact_parts(raw: bytes) -> Iterator[Line]:
    """Yields each intact part of a damaged line as a line of its own, except parts of unknown changes."""
    for part in filter(_is_intact, _SEPARATOR.split(raw)):
        change = _decode(part[_SUM:])
        if change is None:
            yield Line(None, part[_SUM:], b"")
        elif change.op in KNOWN:
            yield Line(change, b"", b"")


def _is_intact(part: bytes) -> bool:
    return part[:_SUM] == b"%08x " % zlib.crc32(part[_SUM:])


def _decode(head: bytes) -> Change | None:
    try:
        return _changes.decode(head)
    except (ValueError, RecursionError):
        return None
