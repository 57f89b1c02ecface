"""Decodes JSON of an API server that has text of users in it, which Go reads and msgspec refuses.

An opaque parameter may contain half of a surrogate pair (``"\\ud800"``) or 5,000 nested lists: the API server accepts both. Without
this module one such object makes a whole list unreadable.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_DEPTH = 128  # levels of nested lists and objects that are kept where a decoder refuses the depth
_PART = 32 * 1024  # bytes that are decoded in one step of C code, which holds the interpreter's lock
_PARTS_DEPTH = 8  # levels of an object that are decoded in parts: metadata.managedFields[0].fieldsV1, status.allocation.devices.config[0]
_HEX = rb"[0-9a-fA-F]"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}|(u[dD][89a-fA-F]" + _HEX + rb"{2})|.)",
    re.DOTALL,
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)


def from_json(encoded: bytes | memoryview | msgspec.Raw, type: Any = Any) -> Any:
    """As ``msgspec.json.decode``, also for lone surrogates, which become U+FFFD, and for any depth: a value below level 128 becomes null
    where a decoder refuses the depth.

    Raises what ``msgspec.json.decode`` raises.
    """
    try:
        return msgspec.json.decode(encoded, type=type)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        mended = _shallow(_ESCAPE.sub(_without_half, bytes(encoded)))
        return msgspec.json.decode(mended, type=type)


def in_parts(encoded: bytes | memoryview | msgspec.Raw, depth: int = _PARTS_DEPTH) -> Any:
    """As :func:`from_json`, in steps of at most 32 KiB where the document is made of smaller values: between two steps another thread
    may run."""
    if depth and memoryview(encoded).nbytes > _PART:
        for kind in (dict[str, msgspec.Raw], list[msgspec.Raw]):
            try:
                found = from_json(encoded, kind)
            except msgspec.ValidationError:
                continue
            if isinstance(found, dict):
                return {key: in_parts(value, depth - 1) for key, value in found.items()}
            return [in_parts(value, depth - 1) for value in found]
    return from_json(encoded)


def _without_half(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _shallow(encoded: bytes) -> bytes:
    """The document, with null in the place of each value that is nested too deep."""
    out: list[bytes] = []
    depth = kept = 0
    for token in _TOKEN.finditer(encoded):
        text = token[0]
        if text in b"[{":
            depth += 1
            if depth == _DEPTH + 1:
                out += (encoded[kept : token.start()], b"null")
        elif text in b"]}":
            depth -= 1
            if depth == _DEPTH:
                kept = token.end()
    return b"".join((*out, encoded[kept:])) if depth == 0 else encoded
