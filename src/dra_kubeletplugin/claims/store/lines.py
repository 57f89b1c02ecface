"""Encodes and parses the lines of the record journal, also of a damaged one. All functions are pure.

A line is one change: ``<CRC-32> <head>\\t<CRC-32> <body>\\n``, with JSON texts as head and body. The body of a ``put`` is the whole
record; its head has the devices that the claim holds. Other changes have the same text in both parts. So one damaged byte never loses
the devices of a claim. JSON texts contain neither tabs nor newlines.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

FORMAT = 1
PUT, MARK, DELETE, META, OPEN, MOVED = "put", "mark", "delete", "meta", "open", "moved"
_PART = re.compile(rb"[0-9a-f]{8} \{")
_SUM = 9  # bytes of a checksum and its space
_decode_text = json.JSONDecoder().raw_decode


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The head of a line. ``holds`` are tuples of pool, device, share and taken amounts. ``value`` is None for a deleted meta key."""

    op: str
    uid: str = ""
    claim: str = ""  # namespace/name
    holds: tuple[tuple[str, str, str, str], ...] = ()
    state: str = ""
    owner: str = ""
    updated: float = 0.0
    key: str = ""
    value: str | None = None
    format: int = 0
    driver: str = ""
    generation: int = 0
    repaired: int = 0
    id: str = ""


class Line(NamedTuple):
    """A change with its body. ``change`` is None if the head is damaged, ``body`` is None for a ``put`` if the body is damaged."""

    change: Change | None
    body: bytes | None
    raw: bytes


class Parsed(NamedTuple):
    """``end`` is the number of bytes that count; the rest is a write that a crash cut. ``damaged`` is the number of damaged lines."""

    lines: list[Line]
    end: int
    damaged: int


_changes = msgspec.json.Decoder(Change)
_encode = msgspec.json.Encoder().encode
KNOWN = frozenset({PUT, MARK, DELETE, META, OPEN, MOVED})


class _Named(msgspec.Struct):
    uid: str


_named = msgspec.json.Decoder(_Named)


def encode(change: Change, body: bytes | None = None) -> bytes:
    """Encodes a line."""
    head = _encode(change)
    if change.op != PUT:
        body = head
    return b"%08x %s\t%08x %s\n" % (zlib.crc32(head), head, zlib.crc32(body or b""), body or b"")


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
            lines += _salvage(raw)
    end = len(data) - len(tail)
    # A crash cuts a write before its end. A tail that is a whole line has lost only its newline, or another byte took its place.
    for complete in (tail, tail[:-1]):
        if line := _parse_line(complete):
            lines.append(line)
            end = len(data)
            damaged += complete is not tail
            break
    return Parsed(lines, end, damaged)


def _parse_line(raw: bytes) -> Line | None:
    head, tab, body = raw.partition(b"\t")
    if not tab or not _is_intact(head) or not _is_intact(body):
        return None
    try:
        change = _changes.decode(head[_SUM:])
    except ValueError:
        return None
    return Line(change, body[_SUM:] if change.op == PUT else b"", raw)


def _is_intact(part: bytes) -> bool:
    return part[:_SUM] == b"%08x " % zlib.crc32(part[_SUM:])


def _salvage(raw: bytes) -> Iterator[Line]:
    """Yields each part of a damaged line that is intact. A head and its body become one line."""
    last: Change | None = None
    for part in _parts(raw):
        try:
            change = _changes.decode(part)
        except ValueError:
            uid = _named.decode(part).uid
            if last and last.op == PUT and last.uid == uid:
                yield Line(last, part, b"")
                last = None
                continue
            change = None
        if last:
            yield Line(last, None if last.op == PUT else b"", b"")
        last = change
        if change is None:
            yield Line(None, part, b"")
    if last:
        yield Line(last, None if last.op == PUT else b"", b"")


def _parts(raw: bytes) -> Iterator[bytes]:
    """Yields the JSON texts whose checksum matches."""
    at = 0
    while found := _PART.search(raw, at):
        start = found.start() + _SUM
        at = found.start() + 1
        try:
            tab = raw.find(
                b"\t", start
            )  # no JSON text contains a tab; without this limit, a long damaged region would take quadratic time
            rest = raw[start : tab if tab >= 0 else len(raw)].decode(errors="surrogateescape")
            part = rest[: _decode_text(rest)[1]].encode(errors="surrogateescape")
            if raw[found.start() : start] == b"%08x " % zlib.crc32(part) and (_is_change(part) or _named.decode(part)):
                yield part
                at = start + len(part)
        except (ValueError, RecursionError):
            continue


def _is_change(part: bytes) -> bool:
    try:
        return _changes.decode(part).op in KNOWN
    except ValueError:
        return False
