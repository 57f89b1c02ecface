"""Decodes JSON that the API server, written in Go, accepts, but msgspec rejects. Users can write such JSON into objects.

An opaque parameter may contain half of a surrogate pair (``"\\ud800"``) or 5,000 nested lists: the API server accepts both. Without
this module, one such object makes a whole list unreadable.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

TOO_DEEP = "<nested too deeply>"
"""Replaces a value that is nested too deeply, in decoded JSON."""
_DEPTH = 128  # levels of nested lists and objects that are kept if the decoder rejects the depth of a document
_MARK = f'"{TOO_DEEP}"'.encode()
_HEX = rb"[0-9a-fA-F]"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}|(u[dD][89a-fA-F]" + _HEX + rb"{2})|.)",
    re.DOTALL,
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)


def from_json(encoded: bytes | memoryview | msgspec.Raw, type: Any = Any) -> Any:
    """Decodes JSON like ``msgspec.json.decode``, but accepts lone surrogates and any depth.

    A lone surrogate becomes U+FFFD. If the decoder rejects the depth, each value below level 128 becomes :data:`TOO_DEEP`.

    Raises the same exceptions as ``msgspec.json.decode``.
    """
    try:
        return msgspec.json.decode(encoded, type=type)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        readable = flattened(_ESCAPE.sub(_replace_lone_surrogate, bytes(encoded)))
        return msgspec.json.decode(readable, type=type)


def config_entries(encoded: msgspec.Raw) -> list[dict[str, Any]]:
    """Returns the entries of ``devices.config``, with ``opaque.parameters`` still encoded, as :class:`msgspec.Raw`.

    A user can write 10 KiB of parameters into each of 32 entries, and decoded parameters need 20 times this memory. Values of a wrong
    type are left out.
    """
    return [entry for raw in _as(encoded, list[msgspec.Raw]) or () if (entry := _config_entry(raw))]


def _config_entry(encoded: msgspec.Raw) -> dict[str, Any]:
    entry: dict[str, Any] = _as(encoded, dict[str, msgspec.Raw]) or {}
    out: dict[str, Any] = {key: from_json(entry[key]) for key in entry.keys() & {"source", "requests"}}
    if (opaque := _as(entry.get("opaque", msgspec.Raw(b"null")), dict[str, msgspec.Raw])) is not None:
        out["opaque"] = {key: value if key == "parameters" else from_json(value) for key, value in opaque.items()}
    return out


def _as(encoded: msgspec.Raw, type: Any) -> Any:
    """Returns the decoded value, or None if it has another type."""
    try:
        return from_json(encoded, type)
    except msgspec.ValidationError:
        return None


def _replace_lone_surrogate(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def flattened(encoded: bytes, max_depth: int = _DEPTH) -> bytes:
    """Returns the document with :data:`TOO_DEEP` in place of each value that is nested too deeply."""
    out: list[bytes] = []
    depth = kept = 0
    for token in _TOKEN.finditer(encoded):
        text = token[0]
        if text in b"[{":
            depth += 1
            if depth == max_depth + 1:
                out += (encoded[kept : token.start()], _MARK)
        elif text in b"]}":
            depth -= 1
            if depth == max_depth:
                kept = token.end()
    if depth <= max_depth:
        out.append(encoded[kept:])
    return b"".join(out)
